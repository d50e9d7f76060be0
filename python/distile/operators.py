"""Operators as descriptions: what an operator file says (docs/plans.md), and the names of their PolyKernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from ._facts import FLOAT_TYPES
from .description import Operator
from .weight_zeros import zeros_in

# Types of PolyKernels.
TYPES = {getattr(torch, name): name for name in FLOAT_TYPES}
NARROW_TYPES = [dtype for dtype in TYPES if dtype.itemsize == 2]


def why_not_built(operator: Operator) -> str:
    """Why no PolyKernel can compute an operator; empty if one can."""
    params = dict(operator.params)
    if operator.generator == "masked_attention":
        return why_heads_not_built(params["head_dim"])
    if operator.generator in ("masked_conv_transpose2d", "masked_upsample_conv2d"):
        return why_groups_not_built(params.get("groups", 1))
    return ""


def why_heads_not_built(head_dim: int) -> str:
    return f"PolyKernels have heads of a multiple of 8 channels, not {head_dim}" if head_dim % 8 else ""


def why_groups_not_built(groups: int) -> str:
    """For convolutions that are transposed or after upsampling."""
    return f"PolyKernels of this kind have one group, not {groups}" if groups != 1 else ""


def _type_of(tensor: torch.Tensor) -> str | None:
    return TYPES.get(tensor.dtype)


def _types_of(input: torch.Tensor, weight: torch.Tensor) -> dict[str, str]:
    """The types of an operator with weights; empty if no PolyKernel can have the input's. On CPUs, weights of 16 bits
    stay so where the input is float32, unless most of them are 0: code that skips zeros reads float32."""
    dtype = _type_of(input)
    if not dtype:
        return {}
    narrow = input.device.type == "cpu" and dtype == "float32" and weight.dtype in NARROW_TYPES
    return {"dtype": dtype, **({"weights_dtype": TYPES[weight.dtype]} if narrow and not zeros_in(weight.detach()) else {})}


def _pair(name: str, values) -> dict[str, int]:
    return {f"{name}_h": int(values[0]), f"{name}_w": int(values[1])}


def _padding(values) -> dict[str, int]:
    return dict(zip(("pad_top", "pad_bottom", "pad_left", "pad_right"), map(int, values)))


def conv2d_operator(input, weight, residual, stride, padding, dilation, groups, activation) -> Operator | None:
    """The operator of torch.ops.distile.conv2d; None if no PolyKernel can have the input's type."""
    types = _types_of(input, weight)
    if not types:
        return None
    out_channels, in_channels = weight.shape[0], weight.shape[1] * groups
    common = {
        **types,
        **_pair("kernel", weight.shape[2:]),
        **_pair("stride", stride),
        **_padding(padding),
        **_pair("dilation", dilation),
        "epilogue": activation,
        "residual": residual is not None,
    }
    if groups == in_channels == out_channels:
        return Operator.make("masked_depthwise_conv2d", channels=out_channels, **common)
    return Operator.make("masked_conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups, **common)


def conv_transpose2d_operator(
    input, weight, residual, stride, output_padding, padding, dilation, groups, activation
) -> Operator | None:
    """The operator of torch.ops.distile.conv_transpose2d; None if no PolyKernel can have the input's type."""
    types = _types_of(input, weight)
    if not types:
        return None
    return Operator.make(
        "masked_conv_transpose2d",
        **types,
        in_channels=weight.shape[0],
        out_channels=weight.shape[1] * groups,
        **({} if groups == 1 else {"groups": groups}),
        **_pair("kernel", weight.shape[2:]),
        **_pair("stride", stride),
        **_padding(padding),
        **_pair("output_padding", output_padding),
        **_pair("dilation", dilation),
        epilogue=activation,
        residual=residual is not None,
    )


def upsample_conv2d_operator(input, weight, residual, scale, padding, dilation, groups, activation) -> Operator | None:
    """The operator of torch.ops.distile.upsample_conv2d; None if no PolyKernel can have the input's type."""
    types = _types_of(input, weight)
    if not types:
        return None
    return Operator.make(
        "masked_upsample_conv2d",
        **types,
        in_channels=weight.shape[1] * groups,
        out_channels=weight.shape[0],
        **({} if groups == 1 else {"groups": groups}),
        **_pair("kernel", weight.shape[2:]),
        **_pair("scale", scale),
        **_padding(padding),
        **_pair("dilation", dilation),
        epilogue=activation,
        residual=residual is not None,
    )


def linear_operator(input, weight, residual, activation) -> Operator | None:
    """The operator of torch.ops.distile.linear; None if no PolyKernel can have the input's type."""
    types = _types_of(input, weight)
    if not types:
        return None
    return Operator.make(
        "masked_linear",
        **types,
        in_channels=weight.shape[1],
        out_channels=weight.shape[0],
        epilogue=activation,
        residual=residual is not None,
    )


def attention_operator(query, causal) -> Operator | None:
    """The operator of torch.ops.distile.attention, for queries [N, heads, T, head_dim]."""
    dtype = _type_of(query)
    if not dtype:
        return None
    return Operator.make("masked_attention", dtype=dtype, heads=query.shape[1], head_dim=query.shape[3], causal=causal)


@dataclasses.dataclass(frozen=True)
class Weighted:
    """An operator with weights, of torch.ops.distile."""

    operator: Callable[..., Operator | None]
    parameters: tuple[str, ...]  # Its arguments behind the tensors.

    def of(self, arguments: dict) -> Operator | None:
        """The operator of a call with these arguments, by their names."""
        return self.operator(*(arguments[name] for name in ("input", "weight", "residual", *self.parameters)))


_WINDOW = ("padding", "dilation", "groups", "activation")
WEIGHTED = {
    "conv2d": Weighted(conv2d_operator, ("stride", *_WINDOW)),
    "conv_transpose2d": Weighted(conv_transpose2d_operator, ("stride", "output_padding", *_WINDOW)),
    "upsample_conv2d": Weighted(upsample_conv2d_operator, ("scale", *_WINDOW)),
    "linear": Weighted(linear_operator, ("activation",)),
}
