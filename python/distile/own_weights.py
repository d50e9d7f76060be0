"""Layers whose weights can have PolyKernels of their own, where another computes them too: pruned weights on CPUs, which
those that ship multiply as all others, and weights of 16 bits, which those that ship keep in float32."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from .description import Operator
from .forms import name_of
from .operators import WEIGHTED
from .weight_zeros import zeros_of


class OwnWeightCalls(TorchDispatchMode):
    """Collects in `found`, with their typical sizes, the operators of masked calls that could have such PolyKernels."""

    def __init__(self):
        super().__init__()
        self.found: dict[Operator, dict] = {}

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
        zeros = zeros_of(given["weight"]) if operator.can_skip_zeros else {}
        operator = operator.skipping_zeros() if zeros else operator
        if zeros or operator.has_narrow_weights:
            size = given["input"].shape
            extents = dict(height=size[2], width=size[3]) if len(size) == 4 else dict(tokens=size[1])
            self.found.setdefault(operator, {"batch": size[0], **extents, **zeros})
