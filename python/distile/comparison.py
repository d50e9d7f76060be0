"""Whether a masked layer computes what a dense one does, found by running both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from . import masks


@torch.no_grad()
def checked(layer: nn.Module, make: Callable[[nn.Module], nn.Module], *shapes: Sequence[int]) -> nn.Module:
    """What `make` makes of a layer. Raises ValueError unless it computes the same of inputs with these shapes, with
    random parameters, since those of the layer may hide a difference."""
    found, generator = make(layer), torch.Generator().manual_seed(0)
    try:
        twin = copy.deepcopy(layer)
        _randomise(twin, generator)
        same = all(_same(twin, make(twin), shape, generator) for shape in shapes)
    except Exception:  # What the layer's own code raises for an input that it does not expect.
        same = False
    if not same:
        raise ValueError(f"its forward does not compute what {type(found).__name__} does")
    return found


def _randomise(layer: nn.Module, generator: torch.Generator) -> None:
    for parameter in layer.parameters():
        values = torch.randn(parameter.shape, generator=generator, device="cpu") * parameter.shape[-1] ** -0.5
        parameter.copy_(values)
    for buffer in layer.buffers():
        if buffer.is_floating_point():  # A variance is positive.
            buffer.copy_(torch.rand(buffer.shape, generator=generator, device="cpu") + 0.5)


def _same(layer: nn.Module, found: nn.Module, shape: Sequence[int], generator: torch.Generator) -> bool:
    like = next(tensor for tensor in (*layer.parameters(), *layer.buffers()) if tensor.is_floating_point())
    x = torch.randn(tuple(shape), generator=generator, device="cpu").to(like)
    with masks.mask(None):
        expected, given = layer.forward(x), found(x)
    bound = expected.abs().max() * (1e-4 if x.dtype in (torch.float32, torch.float64) else 2e-2)
    return given.shape == expected.shape and bool((given - expected).abs().max() <= bound)
