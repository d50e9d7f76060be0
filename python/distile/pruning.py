"""Magnitude pruning, for trials of how fast a pruned model would be (docs/sparse_weights.md)."""

from __future__ import annotations

import torch
from torch import nn

KINDS = (nn.Conv2d, nn.Linear)

PATTERNS = {"2:4": (2, 4)}
"""How many weights a pattern keeps, and of how many consecutive input channels."""


@torch.no_grad()
def prune(
    model: nn.Module,
    zeros: float | None = None,
    *,
    scope: str = "layer",
    block: tuple[int, int] = (1, 1),
    pattern: str | None = None,
) -> dict[str, float]:
    """Sets the weights of least magnitude to 0, in place: those of convolutions that are not depthwise, and of linear
    layers, but not their biases. No training follows, so the results of the model change.

    `zeros`, from 0 to below 1, is the share that becomes 0: of each layer, or with the scope "global" of all layers
    together. `block` is output channels x input channels that become 0 together, by the sum of their magnitudes; what
    they leave of a layer's channels is not pruned. In place of these, the pattern "2:4" keeps the two largest of each four
    consecutive input channels, which sparse tensor cores multiply. Returns the share of zeros of each layer by its name.
    Raises ValueError for other arguments."""
    if pattern is not None:
        if pattern not in PATTERNS:
            raise ValueError(f"pattern is {pattern!r}, not " + " or ".join(f'"{known}"' for known in PATTERNS))
        if zeros is not None or scope != "layer" or tuple(block) != (1, 1):
            raise ValueError("a pattern says which weights become 0: leave zeros, scope and block out")
        layers = {name: layer for name, layer in model.named_modules() if _is_pruned(layer)}
        for layer in layers.values():
            _keep_pattern(layer.weight, *PATTERNS[pattern])
        return _zeros_of(layers)
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
    return _zeros_of(layers)


def _zeros_of(layers: dict[str, nn.Module]) -> dict[str, float]:
    return {name: float((layer.weight == 0).double().mean()) for name, layer in layers.items()}


def _keep_pattern(weight: torch.Tensor, kept: int, of: int) -> None:
    """Keeps the largest of consecutive input channels, of each output channel and kernel position."""
    last = weight.movedim(1, -1)
    channels = last.shape[-1]
    padded = nn.functional.pad(last, (0, -channels % of)).unflatten(-1, (-1, of))
    largest = torch.zeros_like(padded, dtype=torch.bool)
    largest.scatter_(-1, padded.abs().topk(kept, -1).indices, True)
    weight.masked_fill_(~largest.flatten(-2)[..., :channels].movedim(-1, 1), 0)


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
