"""Nodes that have a masked form: what each computes, with the bias or the batch norm that follows it."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import helper

from .affine import Affine, affine_after, affine_from, before_affine
from .attention import attention_node, attention_of_products
from .chains import affine_unit
from .graph import Graph
from .group_norm import group_norm
from .quantized import has_quantized_weights, layer_of, quantized, real_constant
from .unit import Unit, Unsupported, dtype_of, float32, require
from .upsampling import nearest_scales, upsampled
from .windows import window_of, with_ceil_mode

# Layers with weights, and the dimension of channels in their outputs.
AFFINE_AXES = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}


def _weights(graph: Graph, name: str) -> np.ndarray:
    value = graph.constant(name)
    require(value is not None, "its weights are not constant")
    return value


def _bias(graph: Graph, node, index: int) -> np.ndarray | None:
    if len(node.input) <= index or not node.input[index]:
        return None
    return _weights(graph, node.input[index])


def _vector(graph: Graph, node, index: int) -> np.ndarray | None:
    """The scale or the bias of a norm, which quantized models may store as integers."""
    if len(node.input) <= index or not node.input[index]:
        return None
    value = real_constant(graph, node.input[index])
    require(value is not None, "its weights are not constant")
    return float32(value)


def _pairs(window: dict) -> dict:
    top, left, bottom, right = window["pads"]
    return {
        **dict(zip(("kernel_h", "kernel_w"), window["kernel_shape"])),
        **dict(zip(("stride_h", "stride_w"), window["strides"])),
        "pad_top": top,
        "pad_bottom": bottom,
        "pad_left": left,
        "pad_right": right,
        **dict(zip(("dilation_h", "dilation_w"), window["dilations"])),
    }


def is_part(graph: Graph, node: onnx.NodeProto) -> bool:
    """Whether a node is a part of the one that it follows: a batch norm of its convolution."""
    if node.op_type != "BatchNormalization":
        return False
    layer = before_affine(graph, node)
    if layer is None or layer.op_type not in AFFINE_AXES or has_quantized_weights(graph, layer):
        return False
    return any(part is node for part in _affine_after(graph, layer).nodes)


def _affine_after(graph: Graph, node: onnx.NodeProto) -> Affine:
    return affine_after(graph, node.output[0], AFFINE_AXES[node.op_type])


@dataclasses.dataclass
class _Folded:
    """Weights and a bias with the affine steps behind their layer, and these steps."""

    weights: np.ndarray
    bias: np.ndarray | None
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)


def _folded(weights: np.ndarray, bias: np.ndarray | None, axis: int, affine: Affine) -> _Folded:
    """`axis`: that of the output channels in the weights."""
    spread = affine.factor.reshape([-1 if place == axis else 1 for place in range(weights.ndim)])
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = weights if (affine.factor == 1).all() else (weights.astype(np.float64) * spread).astype(weights.dtype)
    if not affine.nodes or not np.isfinite(scaled.astype(np.float32)).all():  # Types of 16 bits may overflow.
        return _Folded(weights, bias)
    moved = affine.summand + (0 if bias is None else bias.astype(np.float64) * affine.factor)
    return _Folded(scaled, moved if bias is not None or moved.any() else None, affine.nodes)


def _convolution(graph: Graph, node) -> Unit:
    transposed = node.op_type == "ConvTranspose"
    layer = layer_of(graph, node, axis=1 if transposed else 0)
    filter = None if layer else _weights(graph, node.input[1])
    shape = layer.shape if layer else filter.shape
    require(len(shape) == 4, "it is not a 2-D convolution")
    values = graph.attributes(node)
    groups = values.get("group", 1)
    window = window_of(graph, node, shape[2:])
    more = {}
    if transposed:
        require(groups == 1, "it is a transposed convolution with groups")
        more = {"output_padding": list(values.get("output_padding", [0, 0]))}
    nodes, bias, weights = [node], layer.bias if layer else _bias(graph, node, 2), node.input[1]
    if not layer:
        folded = _folded(filter, bias, 1 if transposed else 0, _affine_after(graph, node))
        nodes, bias = [node, *folded.nodes], folded.bias
        weights = weights if folded.weights is filter else folded.weights
    op = "MaskedConvTranspose" if transposed else "MaskedConv"
    params, source, before = _pairs(window), node.input[0], []
    plain = not layer and not transposed and groups == 1 and window["strides"] == [1, 1]
    resize = upsampled(graph, source) if plain else None
    inner, outer = (shape[0], shape[1]) if transposed else (shape[1] * groups, shape[0])
    if transposed:
        generator = "masked_conv_transpose2d"
        channels = {"in_channels": inner, "out_channels": outer}
        params.update(zip(("output_padding_h", "output_padding_w"), more["output_padding"]))
    elif resize:
        op, generator = "MaskedUpsampleConv", "masked_upsample_conv2d"
        channels = {"in_channels": inner, "out_channels": outer}
        before, source = [resize.node], resize.input
        more = {"scales": resize.scales}
        del window["strides"], params["stride_h"], params["stride_w"]
        params.update(zip(("scale_h", "scale_w"), resize.scales))
    elif groups == inner == outer:
        generator, channels = "masked_depthwise_conv2d", {"channels": outer}
    else:
        generator, channels = "masked_conv2d", {"in_channels": inner, "out_channels": outer, "groups": groups}
    unit = Unit(
        op,
        nodes,
        [source, weights, float32(bias)],
        {**window, **more, "group": groups},
        True,
        layer.dtype if layer else dtype_of(graph, node.output[0]),
        generator,
        {**channels, **params},
        before=before,
    )
    return quantized(graph, unit, layer) if layer else unit


def _bias_after(graph: Graph, node, outer: int) -> tuple[list[onnx.NodeProto], np.ndarray | None]:
    """The addition of a bias that alone reads a layer."""
    adder = graph.only_reader(node.output[0])
    if adder is None or adder.op_type != "Add":
        return [], None
    found = graph.constant(adder.input[1] if adder.input[0] == node.output[0] else adder.input[0])
    return ([adder], found) if found is not None and found.shape == (outer,) else ([], None)


def _folded_linear(graph: Graph, node, matrix: np.ndarray, axis: int, values: dict) -> _Folded:
    """The weights and the bias of a layer, with its factors and the affine steps behind it. `axis`: that of the output
    channels in the matrix."""
    outer = matrix.shape[axis]
    alpha, beta = values.get("alpha", 1.0), values.get("beta", 1.0)
    weights = matrix if alpha == 1 else (matrix.astype(np.float64) * alpha).astype(matrix.dtype)
    bias = None
    if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]:
        require(graph.constant(node.input[2]) is not None, "its bias is not constant")
        found = graph.per_channel(node.input[2], 2, 1, outer)
        require(found is not None, "its bias is not a vector of its channels")
        bias = found if beta == 1 else found.astype(np.float64) * beta
    return _folded(weights, bias, axis, _affine_after(graph, node))


def _transposed(graph: Graph, node, name: str) -> tuple[str, list[onnx.NodeProto]]:
    """The transpose of a matrix, and the node that makes it."""
    turned = graph.fresh(f"{graph.name_of(node)}/transposed")
    graph.add_shape(turned, graph.types[name], (graph.shapes.get(name) or [None, None])[::-1])
    return turned, [helper.make_node("Transpose", [name], [turned], perm=[1, 0])]


def _linear(graph: Graph, node) -> Unit:
    values = graph.attributes(node)
    gemm = node.op_type in ("Gemm", "QGemm")
    weights = node.input[1]
    transposed = values.get("transB", 0) if gemm else 0
    layer = layer_of(graph, node, axis=0 if transposed else -1)
    if not gemm and not layer and graph.constant(weights) is None:
        return attention_of_products(graph, node)
    shape = layer.shape if layer else _weights(graph, weights).shape
    require(len(shape) == 2, "its weights are not a matrix")
    outer, inner = shape if transposed else shape[::-1]
    nodes, bias = [node], layer.bias if layer else None
    source, prepared = node.input[0], []
    if gemm and values.get("transA", 0):
        require(not layer, "it transposes its quantized input")
        source, prepared = _transposed(graph, node, source)
    if layer:
        require(values.get("alpha", 1.0) == 1.0 and values.get("beta", 1.0) == 1.0, "its alpha or beta is not 1")
        if not gemm and layer.output is None:
            adder, bias = _bias_after(graph, node, outer)
            nodes += adder
    else:
        matrix = graph.constant(weights)
        folded = _folded_linear(graph, node, matrix, 0 if transposed else 1, values)
        nodes, bias = [node, *folded.nodes], folded.bias
        weights = weights if folded.weights is matrix else folded.weights
    require(bias is None or bias.shape == (outer,), "its bias is not a vector of its channels")
    unit = Unit(
        "MaskedLinear",
        nodes,
        [source, weights, float32(bias)],
        {"transB": int(transposed)},
        False,
        layer.dtype if layer else dtype_of(graph, node.output[0]),
        "masked_linear",
        {"in_channels": int(inner), "out_channels": int(outer)},
        prepared=prepared,
    )
    return quantized(graph, unit, layer) if layer else unit


def _integer(graph: Graph, node) -> Unit:
    raise Unsupported("it gives integer sums, whose scale only a run knows: quantize the model statically")


def _norm(graph: Graph, node) -> Unit:
    values = graph.attributes(node)
    rank = len(graph.shapes.get(node.input[0], []))
    require(values.get("axis", -1) in (-1, rank - 1), "it normalizes more than the channels")
    require(len([name for name in node.output if name]) == 1, "it has more than one output")
    layer = node.op_type == "LayerNormalization"
    vectors = [_vector(graph, node, index) for index in ((1, 2) if layer else (1,))]
    require(rank >= 3, "its input is not [N, T, C]")
    return Unit(
        "MaskedLayerNorm" if layer else "MaskedRMSNorm",
        [node],
        [node.input[0], *vectors],
        {"epsilon": values.get("epsilon", 1e-5)},
        False,
        dtype_of(graph, node.output[0]),
    )


def _batch_norm(graph: Graph, node) -> Unit:
    affine = affine_from(graph, node)
    require(affine is not None, "its statistics are not constant")
    require(len(graph.shapes.get(node.input[0]) or []) == 4, "its input is not [N, C, H, W]")
    return affine_unit(graph, affine, node.input[0], True)


def _group_norm(graph: Graph, node) -> Unit:
    norm = group_norm(graph, node)
    return Unit(
        "MaskedGroupNorm",
        norm.nodes,
        [norm.input, float32(norm.scale), float32(norm.bias)],
        {"num_groups": norm.groups, "epsilon": graph.attributes(node).get("epsilon", 1e-5)},
        True,
        dtype_of(graph, norm.input),
        before=norm.before,
    )


def _pooling(graph: Graph, node) -> Unit:
    values = graph.attributes(node)
    require(len(values.get("kernel_shape", [])) == 2, "it is not 2-D pooling")
    require(len([name for name in node.output if name]) == 1, "it has more than one output")
    largest = node.op_type == "MaxPool"
    counts = values.get("count_include_pad", 0)
    window, source, prepared = window_of(graph, node, values["kernel_shape"]), node.input[0], []
    if values.get("ceil_mode", 0):
        ends = with_ceil_mode(graph, node, window)
        if counts and not largest and ends != window:  # It counts its own padding, and not that behind the last windows.
            source, prepared = _padded(graph, node, window["pads"])
            own, counts = window["pads"], 0
            ends = {**ends, "pads": [after - before for before, after in zip(own, ends["pads"])]}
        window = ends
    return Unit(
        "MaskedMaxPool" if largest else "MaskedAveragePool",
        [node],
        [source],
        window if largest else {**window, "count_include_pad": counts},
        True,
        dtype_of(graph, node.output[0]),
        prepared=prepared,
    )


def _padded(graph: Graph, node, pads: list[int]) -> tuple[str, list[onnx.NodeProto]]:
    """The images that a node reads with zeros around them, and the node that makes these."""
    if not any(pads):
        return node.input[0], []
    top, left, bottom, right = pads
    name, (batch, channels, height, width) = graph.fresh(f"{graph.name_of(node)}/padded"), graph.shapes[node.input[0]]
    shape = [batch, channels, height + top + bottom, width + left + right]
    graph.add_shape(name, graph.types[node.input[0]], shape)
    return name, [graph.padding(node.input[0], name, [0, 0, top, left, 0, 0, bottom, right])]


def _upsampling(graph: Graph, node) -> Unit:
    scales = nearest_scales(graph, node)
    require(scales, "it is no nearest upsampling of images by whole numbers")
    dtype = dtype_of(graph, node.output[0])
    return Unit("MaskedUpsample", [node], [node.input[0]], {"scales": scales}, True, dtype)


MAKERS = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "QLinearConv": _convolution,
    "MatMul": _linear,
    "Gemm": _linear,
    "QLinearMatMul": _linear,
    "QGemm": _linear,
    "ConvInteger": _integer,
    "MatMulInteger": _integer,
    "Attention": attention_node,
    "MultiHeadAttention": attention_node,
    "LayerNormalization": _norm,
    "RMSNormalization": _norm,
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
    "MaxPool": _pooling,
    "AveragePool": _pooling,
    "Resize": _upsampling,
    "Upsample": _upsampling,
}

# Nodes that a node behind them may take in.
TAKEN_IN = {"Resize", "Upsample"}


def unit_of(graph: Graph, node: onnx.NodeProto) -> Unit:
    """The unit that a node begins. Raises Unsupported."""
    maker = MAKERS.get(node.op_type)
    require(maker and node.domain in ("", "ai.onnx", "com.microsoft"), f"{node.op_type} has no masked form")
    if node.op_type == "Attention":
        require(node.domain != "com.microsoft", "this Attention has no masked form")
    unit = maker(graph, node)
    require(graph.shapes.get(unit.output) is not None, "the shape of its output is not known")
    return unit
