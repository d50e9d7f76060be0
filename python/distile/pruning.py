"""Magnitude pruning of PyTorch's models, for trials of how fast a pruned model would be (docs/sparse_weights.md)."""

from __future__ import annotations

import torch
from torch import nn

from .magnitudes import Pruning

KINDS = (nn.Conv2d, nn.Linear)


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
    pruning = Pruning(zeros, scope, block, pattern)
    weights = {name: layer.weight for name, layer in model.named_modules() if _is_pruned(layer)}
    left_out = pruning.left_out([weight.detach().float().cpu().numpy() for weight in weights.values()])
    for weight, where in zip(weights.values(), left_out):
        weight.masked_fill_(torch.from_numpy(where).to(weight.device), 0)
    return {name: float((weight == 0).double().mean()) for name, weight in weights.items()}


def _is_pruned(layer: nn.Module) -> bool:
    return isinstance(layer, KINDS) and getattr(layer, "groups", 1) < max(2, layer.weight.shape[0])
