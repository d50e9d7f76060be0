"""Layers whose weights can have PolyKernels of their own, where another computes them too: pruned weights, which those
that ship multiply as all others, and on CPUs weights of 16 bits, which those that ship keep in float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import numerics
from .description import Operator
from .forms import name_of
from .operators import WEIGHTED, conv2d_operator, linear_operator
from .weight_zeros import remark, why_not_skipped, zeros_for_tensor


def zeros_in_layer(layer: nn.Module) -> tuple[str, float]:
    """What becomes of the zeros in the weights of a convolution or a linear layer, for inputs of their type and on their
    device; and the share of its multiplications that code for them leaves. Otherwise "" and 1."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.device.type not in ("cpu", "cuda"):
        return "", 1.0
    # The weights stand for an input of their type.
    if isinstance(layer, nn.Linear):
        operator = linear_operator(weight, weight, None, "none")
    elif isinstance(layer, nn.Conv2d):
        window = layer.stride, (0, 0, 0, 0), layer.dilation, layer.groups
        operator = conv2d_operator(weight, weight, None, *window, "none")
    else:
        operator = None
    if operator is None:
        return "", 1.0
    operator, math = operator.on(weight.device.type), numerics.math()
    typical = zeros_for_tensor(weight, operator)
    skipped = operator.built_for(typical, math).skips_zeros
    return remark(operator, typical, math, reads=False), 1 - typical["weight_zeros"] if skipped else 1.0


class OwnWeightCalls(TorchDispatchMode):
    """Collects in `found`, with their typical sizes, the operators of masked calls that could have such PolyKernels, and in
    `multiplied` those of pruned weights whose zeros no code skips."""

    def __init__(self):
        super().__init__()
        self.found: dict[Operator, dict] = {}
        self.multiplied: dict[Operator, dict] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = name_of(function)
        if name in WEIGHTED:
            self._note(name, function, args, kwargs)
        return function(*args, **kwargs)

    def _note(self, name, function, args, kwargs) -> None:
        given = dict(zip((argument.name for argument in function._schema.arguments), args), **kwargs)
        for argument in function._schema.arguments:
            given.setdefault(argument.name, argument.default_value)
        operator = WEIGHTED[name].of(given)
        if operator is None:
            return
        operator, size, math = operator.on(given["mask"].device.type), given["input"].shape, numerics.math()
        extents = dict(height=size[2], width=size[3]) if len(size) == 4 else dict(tokens=size[1])
        typical = {"batch": size[0], **extents, **zeros_for_tensor(given["weight"], operator)}
        if why_not_skipped(operator, typical, math):
            self.multiplied.setdefault(operator, typical)
        operator = operator.built_for(typical, math)
        if operator.skips_zeros or operator.has_narrow_weights:
            self.found.setdefault(operator, typical)
