"""The forms of an operator that modules call."""

from __future__ import annotations

import torch

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


def form(name):
    """An operator, or where no gradients are recorded its form without them, which costs less to call."""
    return _FORMS[name][0 if torch.is_grad_enabled() or torch.compiler.is_compiling() else 1]


def into(name):
    """An operator that writes into its argument `into`, of any strides, and returns nothing."""
    return _FORMS[name][2]
