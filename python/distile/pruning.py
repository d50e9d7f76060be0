"""Magnitude pruning, for trials of how fast a pruned model would be (docs/sparse_weights.md)."""

from __future__ import annotations

import torch
from torch import nn

KINDS = (nn.Conv2d, nn.Linear)


@torch.no_grad()
def prune(model: nn.Module, zeros: float, *, scope: str = "layer", block: tuple[int, int] = (1, 1)) -> dict[str, float]:
    """Sets the weights of least magnitude to 0, in place: those of convolutions that are not depthwise, and of linear
    layers, but not their biases. No training follows, so the results of the model change.

    `zeros`, from 0 to below 1, is the share that becomes 0: of each layer, or with the scope "global" of all layers
    together. `block` is output channels x input channels that become 0 together, by the sum of their magnitudes; what
    they leave of a layer's channels is not pruned. Returns the share of zeros of each layer by its name. Raises
    ValueError for other arguments."""
    if not (isinstance(zeros, (int, float)) and 0 <= zeros < 1):
        raise ValueError(f"zeros is {zeros!r}; it is a share from 0 to below 1")
    if scope not in ("layer", "global"):
        raise ValueError(f'scope is {scope!r}, not "layer" or "global"')
    if len(block) != 2 or min(block) < 1:
        raise ValueError(f"block is {block}, not two numbers of channels from 1 on")
    layers = {name: layer for name, layer in model.named_modules() if _is_pruned(layer)}
    sizes = {name: _magnitudes(layer.weight, block) for name, layer in layers.items()}
    everything = torch.cat([size.flatten() for size in sizes.values()]) if sizes else torch.empty(0)
    for name, layer in layers.items():
        weights = sizes[name].flatten() if scope == "layer" else everything
        count = int(zeros * weights.numel())
        if count > 0:
            most = weights.kthvalue(count).values
            _keep(layer.weight, sizes[name] > most, block)
    return {name: float((layer.weight == 0).double().mean()) for name, layer in layers.items()}


def _is_pruned(layer: nn.Module) -> bool:
    return isinstance(layer, KINDS) and getattr(layer, "groups", 1) < max(2, layer.weight.shape[0])


def _magnitudes(weight: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """The magnitudes of blocks: [blocks of output channels, blocks of input channels, ...]."""
    outputs, inputs = (weight.shape[i] // block[i] * block[i] for i in (0, 1))
    whole = weight[:outputs, :inputs].abs().float()
    return whole.unflatten(0, (-1, block[0])).unflatten(2, (-1, block[1])).sum((1, 3))


def _keep(weight: torch.Tensor, kept: torch.Tensor, block: tuple[int, int]) -> None:
    spread = kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    part = weight[: spread.shape[0], : spread.shape[1]]
    part.copy_(torch.where(spread, part, torch.zeros_like(part)))
