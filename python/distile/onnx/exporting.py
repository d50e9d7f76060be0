"""Nodes for distile's operators in models that PyTorch exports.

    torch.onnx.export(model, (x, mask), "model.onnx", dynamo=True,
                      custom_translation_table=distile.onnx.translations())

docs/onnx.md in the repository explains it.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx.defs import OpSchema

from .._facts import FLOAT_TYPES

# The table of a window's kinds in torch.ops.distile.mask_needed_input, by their numbers.
KINDS = ("conv", "transposed", "upsampled")
_FLOATS = [name.lower() for _, name in FLOAT_TYPES.values()]
_ANY = [f"tensor({name})" for name in (*_FLOATS, "bool", "int32", "int64", "uint8")]
_ATTRIBUTES = {int: OpSchema.AttrType.INT, float: OpSchema.AttrType.FLOAT, str: OpSchema.AttrType.STRING}


def translations() -> dict[object, Callable]:
    """The custom_translation_table with which torch.onnx.export, with dynamo=True, writes distile's operators as those
    of the library for ONNX Runtime. It needs onnxscript, as the exporter does. Masks are arguments of layers, and
    weights parameters. Operators that write into `out` have no nodes."""
    import torch

    ops = torch.ops.distile
    names = {name: translate for name, translate in globals().items() if name in _TRANSLATED}
    table = {getattr(ops, name).default: translate for name, translate in names.items()}
    return table | {
        getattr(ops, f"{name}_inference").default: translate
        for name, translate in names.items()
        if hasattr(ops, f"{name}_inference")
    }


def _node(name: str, *inputs, outputs: int = 1, **attributes):
    """A node of the library. The exporter takes only nodes whose operator it knows, so each gets a schema."""
    from onnxscript import values

    attributes = {key: value for key, value in attributes.items() if value is not None}
    schema = OpSchema(
        name,
        "distile",
        1,
        inputs=[_parameter("x", number, len(inputs)) for number in range(len(inputs))],
        outputs=[_parameter("y", number, 0) for number in range(outputs)],
        type_constraints=[
            (f"T{end}{number}", _ANY, "")
            for end, count in (("x", len(inputs)), ("y", outputs))
            for number in range(count)
        ],
        attributes=[OpSchema.Attribute(key, _kind(value), required=False) for key, value in attributes.items()],
    )
    return values.Op(values.Opset("distile", 1), name, schema)(*inputs, **attributes)


def _parameter(end: str, number: int, optional_before: int) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption
    chosen = option.Optional if number < optional_before else option.Single
    return OpSchema.FormalParameter(f"{end}{number}", f"T{end}{number}", param_option=chosen)


def _kind(value) -> OpSchema.AttrType:
    return OpSchema.AttrType.INTS if isinstance(value, list) else _ATTRIBUTES[type(value)]


def _core():
    from onnxscript import opset18

    return opset18


def _last(x):
    """An image with its channels innermost, as the operators compute; tokens as they are. Transposes of neighbours
    cancel out in ONNX Runtime."""
    return x if x is None or len(x.shape) != 4 else _core().Transpose(x, perm=[0, 2, 3, 1])


def _first(y, like):
    """The reverse for a result, where `like` is an image."""
    return y if len(like.shape) != 4 else _core().Transpose(y, perm=[0, 3, 1, 2])


def _layout(x) -> str | None:
    return "NHWC" if len(x.shape) == 4 else None


def _bool(mask):
    if mask is None or mask.dtype == onnx.TensorProto.BOOL:
        return mask
    return _core().Cast(mask, to=onnx.TensorProto.BOOL)


def _pads(padding) -> list[int]:
    """Padding in ONNX's order, from top, bottom, left and right, or from that of rows and of columns."""
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    return [top, left, bottom, right]


def _pair(value) -> list[int]:
    return list(value) if len(value) == 2 else [value[0], value[0]]


def _weighted(name, input, weight, bias, mask, residual, **attributes):
    inputs = _last(input), weight, _bool(mask), bias, _last(residual)
    return _first(_node(name, *inputs, layout=_layout(input), **attributes), input)


def conv2d(input, weight, bias, mask, residual=None, *, stride=(1, 1), padding=(0,) * 4, dilation=(1, 1), groups=1,
           activation="none", place=0):  # fmt: skip
    more = dict(strides=_pair(stride), pads=_pads(padding), dilations=_pair(dilation), group=groups)
    return _weighted("MaskedConv", input, weight, bias, mask, residual, activation=activation, **more)


def conv_transpose2d(input, weight, bias, mask, residual=None, *, stride=(1, 1), output_padding=(0, 0),
                     padding=(0,) * 4, dilation=(1, 1), groups=1, activation="none", place=0):  # fmt: skip
    more = dict(strides=_pair(stride), pads=_pads(padding), dilations=_pair(dilation), group=groups)
    more["output_padding"] = _pair(output_padding)
    return _weighted("MaskedConvTranspose", input, weight, bias, mask, residual, activation=activation, **more)


def upsample_conv2d(input, weight, bias, mask, residual=None, *, scale=(2, 2), padding=(0,) * 4, dilation=(1, 1),
                    groups=1, activation="none", place=0):  # fmt: skip
    more = dict(scales=_pair(scale), pads=_pads(padding), dilations=_pair(dilation), group=groups)
    return _weighted("MaskedUpsampleConv", input, weight, bias, mask, residual, activation=activation, **more)


def linear(input, weight, bias, mask, residual=None, *, activation="none", place=0):
    return _weighted("MaskedLinear", input, weight, bias, mask, residual, activation=activation, transB=1)


def attention(query, key, value, mask, key_mask=None, *, scale=0.0, causal=False):
    op = _core()
    heads, head_dim = query.shape[1], query.shape[3]

    def tokens(tensor):
        return op.Reshape(op.Transpose(tensor, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, heads * head_dim]))

    what = dict(num_heads=int(heads), head_dim=int(head_dim), scale=float(scale), is_causal=int(causal))
    masks = _bool(mask), _bool(key_mask)
    result = _node("MaskedAttention", tokens(query), tokens(key), tokens(value), *masks, **what)
    parts = op.Reshape(result, op.Constant(value_ints=[0, 0, heads, head_dim]))
    return op.Transpose(parts, perm=[0, 2, 1, 3])


def layer_norm(input, mask, weight, bias, *, epsilon=1e-5):
    return _first(_node("MaskedLayerNorm", _last(input), _bool(mask), weight, bias, epsilon=float(epsilon)), input)


def rms_norm(input, mask, weight, *, epsilon=1e-6):
    return _first(_node("MaskedRMSNorm", _last(input), _bool(mask), weight, epsilon=float(epsilon)), input)


def group_norm(input, mask, weight, bias, mean=None, variance=None, *, groups, epsilon=1e-5, activation="none"):
    what = dict(num_groups=groups, epsilon=float(epsilon), activation=activation, layout=_layout(input))
    inputs = _last(input), _bool(mask), weight, bias, mean, variance
    return _first(_node("MaskedGroupNorm", *inputs, **what), input)


def group_statistics(input, mask=None, *, groups):
    what = dict(num_groups=groups, layout=_layout(input))
    return _node("MaskedGroupStatistics", _last(input), _bool(mask), outputs=2, **what)


def _pool(name, input, mask, kernel, stride, padding, dilation, **more):
    what = dict(
        kernel_shape=_pair(kernel), strides=_pair(stride), pads=_pads(_pair(padding)), dilations=_pair(dilation)
    )
    return _first(_node(name, _last(input), _bool(mask), layout="NHWC", **what, **more), input)


def max_pool2d(input, mask, kernel, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    return _pool("MaskedMaxPool", input, mask, kernel, stride, padding, dilation)


def avg_pool2d(input, mask, kernel, *, stride=(1, 1), padding=(0, 0), count_padding=True):
    more = dict(count_include_pad=int(count_padding))
    return _pool("MaskedAveragePool", input, mask, kernel, stride, padding, (1, 1), **more)


def global_pool(input, mask=None, *, maximum=False):
    name = "MaskedGlobalMaxPool" if maximum else "MaskedGlobalAveragePool"
    return _first(_node(name, _last(input), _bool(mask), layout="NHWC"), input)


def upsample_nearest(input, mask, *, scale=(2, 2)):
    return _first(_node("MaskedUpsample", _last(input), _bool(mask), scales=_pair(scale), layout="NHWC"), input)


def _combined(name, input, other, mask, **what):
    return _first(_node(name, _last(input), _last(other), _bool(mask), layout=_layout(input), **what), input)


def add(input, other, mask, *, activation="none"):
    return _combined("MaskedAdd", input, other, mask, activation=activation)


def multiply(input, other, mask, *, other_activation="none", activation="none"):
    return _combined("MaskedMul", input, other, mask, activation=activation, other_activation=other_activation)


def activate(input, mask, *, activation="none"):
    return _first(
        _node("MaskedActivation", _last(input), _bool(mask), activation=activation, layout=_layout(input)), input
    )


def pack(input, mask):
    return _node("MaskedPack", _last(input), _bool(mask), layout=_layout(input))


def cumulative_lengths(mask):
    return _node("MaskCumulativeLengths", _bool(mask))


def mask_scores(input, weight=None, *, bias=0.0, threshold=0.0):
    what = dict(bias=float(bias), threshold=float(threshold), layout=_layout(input))
    return _node("MaskFromScores", _last(input), weight, **what)


def mask_difference(a, b, threshold=0.0):
    return _node("MaskDifference", _last(a), _last(b), threshold=float(threshold), layout=_layout(a))


def mask_dilate(mask, radius_h, radius_w):
    return _node("MaskDilate", _bool(mask), radius=[radius_h, radius_w])


def mask_pool(mask, factor_h, factor_w):
    return _node("MaskPool", _bool(mask), factor=[factor_h, factor_w])


def _through(name, mask, size, kernel, stride, dilation, padding, kind):
    what = dict(
        kernel_shape=_pair(kernel), strides=_pair(stride), dilations=_pair(dilation), pads=_pads(_pair(padding))
    )
    return _node(name, _bool(mask), size=list(size), kind=KINDS[kind], **what)


def mask_needed_input(mask, size, kernel, *, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=0):
    return _through("MaskNeededInput", mask, size, kernel, stride, dilation, padding, kind)


def mask_affected_output(mask, size, kernel, *, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=0):
    return _through("MaskAffectedOutput", mask, size, kernel, stride, dilation, padding, kind)


_TRANSLATED = (
    "conv2d", "conv_transpose2d", "upsample_conv2d", "linear", "attention", "layer_norm", "rms_norm", "group_norm",
    "group_statistics", "max_pool2d", "avg_pool2d", "global_pool", "upsample_nearest", "add", "multiply", "activate",
    "pack", "cumulative_lengths", "mask_scores", "mask_difference", "mask_dilate", "mask_pool", "mask_needed_input",
    "mask_affected_output",
)  # fmt: skip
