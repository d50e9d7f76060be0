"""Layers with pruned weights whose PolyKernel multiplies with all weights, as those that ship do."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import operators
from .description import Operator
from .weight_zeros import zeros_of

KINDS = {"distile::conv2d": operators.conv2d_operator, "distile::linear": operators.linear_operator}


class PrunedCalls(TorchDispatchMode):
    """Collects in `found`, with their typical sizes, the operators of masked calls on CPUs that could skip zeros."""

    def __init__(self):
        super().__init__()
        self.found: dict[Operator, dict] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name.removesuffix("_inference")  # The form of calls without gradients.
        if name in KINDS:
            self._note(name, function, args, kwargs)
        return function(*args, **kwargs)

    def _note(self, name, function, args, kwargs) -> None:
        given = dict(zip((argument.name for argument in function._schema.arguments), args), **kwargs)
        for argument in function._schema.arguments:
            given.setdefault(argument.name, argument.default_value)
        zeros = zeros_of(given["weight"])
        if not zeros:
            return
        is_image = given["input"].dim() == 4
        names = ("weight", "residual", "stride", "padding", "dilation", "groups", "activation")
        names = names if is_image else ("weight", "residual", "activation")
        operator = KINDS[name](given["input"], *(given[argument] for argument in names))
        if operator is not None and operator.can_skip_zeros:
            size = given["input"].shape
            extents = dict(height=size[2], width=size[3]) if is_image else dict(tokens=size[1])
            self.found.setdefault(operator.skipping_zeros(), {"batch": size[0], **extents, **zeros})
