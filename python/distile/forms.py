"""The forms of an operator that modules call."""

from __future__ import annotations

import functools

import torch
from torch.autograd import forward_ad

from ._library import ops

_FORMS = {
    name: tuple(getattr(ops, f"{name}{form}").default for form in ("", "_inference", "_into"))
    for name in (
        "conv2d",
        "conv_transpose2d",
        "upsample_conv2d",
        "linear",
        "attention",
        "layer_norm",
        "rms_norm",
        "max_pool2d",
        "avg_pool2d",
        "add",
        "multiply",
        "activate",
        "group_norm",
        "upsample_nearest",
    )
}

_NAMES = {form._schema.name: name for name, forms in _FORMS.items() for form in forms}


def form(name):
    """An operator, or where no gradients are recorded its form without them, which costs less to call."""
    differentiates = torch.is_grad_enabled() or forward_ad._current_level >= 0 or torch.compiler.is_compiling()
    return _FORMS[name][0 if differentiates else 1]


def name_of(function) -> str | None:
    """The name of the operator that a function of torch.ops is a form of, `out` included; None if it is of another."""
    return _NAMES.get(function._schema.name) if function.namespace == "distile" else None


def into(name):
    """An operator that writes into its argument `into`, of any strides, and returns nothing."""
    operator = _FORMS[name][2]
    return operator if forward_ad._current_level < 0 else functools.partial(_without_tangents, operator)


def _without_tangents(operator, *tensors, **keywords):
    refuse_tangents(operator, tensors)
    return operator(*tensors, **keywords)


def refuse_tangents(operator, tensors) -> None:
    """Raises RuntimeError where forward mode would differentiate an operator."""
    if forward_ad._current_level >= 0 and any(
        isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    ):
        raise RuntimeError(
            f"{operator} has no derivatives in forward mode: take those of backward() or torch.autograd.grad(), or "
            "compute without a mask, in distile.mask(None)"
        )


class Gradients(torch.library.Library):
    """Where gradients of operators are registered, which refuses forward mode. PyTorch would take a derivative of 0."""

    def __init__(self):
        super().__init__("distile", "IMPL")

    def impl(self, name, function, dispatch_key="", **keywords):
        def in_reverse(keyset, *tensors, **more):
            refuse_tangents(f"distile.{name}", tensors)
            return function(keyset, *tensors, **more)

        super().impl(name, in_reverse, dispatch_key, **keywords)


gradients = Gradients()
