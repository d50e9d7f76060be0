"""Nodes that have a masked form: what each computes, with the bias or the batch norm that follows it."""

from __future__ import annotations

import numpy as np
import onnx

from .attention import attention_node, attention_of_products
from .graph import Graph, attributes
from .group_norm import group_norm
from .quantized import has_quantized_weights, layer_of, quantized, real_constant
from .unit import Unit, Unsupported, dtype_of, float32, require
from .upsampling import upsampled


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


def _windows(values: dict, shape) -> dict:
    """The attributes of a window with their defaults: pads are top, left, bottom, right."""
    require(values.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"), "it has auto_pad")
    window = {
        "kernel_shape": list(shape),
        "strides": list(values.get("strides", [1, 1])),
        "dilations": list(values.get("dilations", [1, 1])),
        "pads": list(values.get("pads", [0, 0, 0, 0])),
    }
    require(min(window["pads"]) >= 0, "its padding is negative")
    return window


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


def _norm_constants(graph: Graph, norm) -> list[np.ndarray] | None:
    """The scale, the bias, the mean and the variance of a batch norm with constant statistics."""
    if norm.op_type != "BatchNormalization" or len([name for name in norm.output if name]) > 1:
        return None
    values = [graph.constant(name) for name in norm.input[1:5]]
    return None if any(value is None for value in values) or attributes(norm).get("training_mode", 0) else values


def _following_norm(graph: Graph, node) -> tuple[np.ndarray, np.ndarray] | None:
    """The factors and summands of the batch norm that alone reads a convolution."""
    norm = graph.only_reader(node.output[0])
    values = None if norm is None else _norm_constants(graph, norm)
    if values is None:
        return None
    scale, shift, mean, variance = (value.astype(np.float64) for value in values)
    factor = scale / np.sqrt(variance + attributes(norm).get("epsilon", 1e-5))
    return factor, shift - mean * factor


def is_part(graph: Graph, node: onnx.NodeProto) -> bool:
    """Whether a node is a part of the one that it follows: a batch norm of its convolution."""
    before = graph.producer.get(node.input[0]) if node.op_type == "BatchNormalization" else None
    return before is not None and before.op_type in ("Conv", "ConvTranspose") and (
        graph.only_reader(before.output[0]) is node
        and _norm_constants(graph, node) is not None
        and not has_quantized_weights(graph, before)
    )


def _convolution(graph: Graph, node) -> Unit:
    transposed = node.op_type == "ConvTranspose"
    layer = layer_of(graph, node, axis=1 if transposed else 0)
    filter = None if layer else _weights(graph, node.input[1])
    shape = layer.shape if layer else filter.shape
    require(len(shape) == 4, "it is not a 2-D convolution")
    values = attributes(node)
    groups = values.get("group", 1)
    window = _windows(values, shape[2:])
    more = {}
    if transposed:
        require(groups == 1, "it is a transposed convolution with groups")
        require("output_shape" not in values, "it has output_shape")
        more = {"output_padding": list(values.get("output_padding", [0, 0]))}
    nodes, bias, weights = [node], layer.bias if layer else _bias(graph, node, 2), node.input[1]
    norm = None if layer else _following_norm(graph, node)
    if norm is not None:
        factor, summand = norm
        nodes.append(graph.only_reader(node.output[0]))
        bias = summand + (0 if bias is None else bias.astype(np.float64) * factor)
        spread = factor.reshape((1, -1, 1, 1) if transposed else (-1, 1, 1, 1))
        weights = (filter.astype(np.float64) * spread).astype(filter.dtype)
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


def _linear(graph: Graph, node) -> Unit:
    values = attributes(node)
    gemm = node.op_type in ("Gemm", "QGemm")
    weights = node.input[1]
    transposed = values.get("transB", 0) if gemm else 0
    layer = layer_of(graph, node, axis=0 if transposed else -1)
    if not gemm and not layer and graph.constant(weights) is None:
        return attention_of_products(graph, node)
    shape = layer.shape if layer else _weights(graph, weights).shape
    require(len(shape) == 2, "its weights are not a matrix")
    outer, inner = shape if transposed else shape[::-1]
    nodes, bias = [node], layer.bias if layer else _bias(graph, node, 2) if gemm else None
    if gemm:
        require(not values.get("transA", 0), "it transposes its input")
        require(values.get("alpha", 1.0) == 1.0 and values.get("beta", 1.0) == 1.0, "its alpha or beta is not 1")
    elif not layer or layer.output is None:
        adder = graph.only_reader(node.output[0])
        if adder is not None and adder.op_type == "Add":
            found = graph.constant(adder.input[1] if adder.input[0] == node.output[0] else adder.input[0])
            if found is not None and found.shape == (outer,):
                nodes.append(adder)
                bias = found
    require(bias is None or bias.shape == (outer,), "its bias is not a vector of its channels")
    unit = Unit(
        "MaskedLinear",
        nodes,
        [node.input[0], weights, float32(bias)],
        {"transB": int(transposed)},
        False,
        layer.dtype if layer else dtype_of(graph, node.output[0]),
        "masked_linear",
        {"in_channels": int(inner), "out_channels": int(outer)},
    )
    return quantized(graph, unit, layer) if layer else unit


def _integer(graph: Graph, node) -> Unit:
    raise Unsupported("it gives integer sums, whose scale only a run knows: quantize the model statically")


def _norm(graph: Graph, node) -> Unit:
    values = attributes(node)
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
    values = _norm_constants(graph, node)
    require(values is not None, "its statistics are not constant")
    require(len(graph.shapes.get(node.input[0]) or []) == 4, "its input is not [N, C, H, W]")
    return Unit(
        "MaskedBatchNorm",
        [node],
        [node.input[0], *map(float32, values)],
        {"epsilon": attributes(node).get("epsilon", 1e-5)},
        True,
        dtype_of(graph, node.output[0]),
    )


def _group_norm(graph: Graph, node) -> Unit:
    norm = group_norm(graph, node)
    return Unit(
        "MaskedGroupNorm",
        norm.nodes,
        [norm.input, float32(norm.scale), float32(norm.bias)],
        {"num_groups": norm.groups, "epsilon": attributes(node).get("epsilon", 1e-5)},
        True,
        dtype_of(graph, norm.input),
        before=norm.before,
    )


def _pooling(graph: Graph, node) -> Unit:
    values = attributes(node)
    require(len(values.get("kernel_shape", [])) == 2, "it is not 2-D pooling")
    require(not values.get("ceil_mode", 0), "it has ceil_mode")
    require(len([name for name in node.output if name]) == 1, "it has more than one output")
    largest = node.op_type == "MaxPool"
    more = {} if largest else {"count_include_pad": values.get("count_include_pad", 0)}
    return Unit(
        "MaskedMaxPool" if largest else "MaskedAveragePool",
        [node],
        [node.input[0]],
        {**_windows(values, values["kernel_shape"]), **more},
        True,
        dtype_of(graph, node.output[0]),
    )


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
}


def unit_of(graph: Graph, node: onnx.NodeProto) -> Unit:
    """The unit that a node begins. Raises Unsupported."""
    maker = MAKERS.get(node.op_type)
    require(maker and node.domain in ("", "ai.onnx", "com.microsoft"), f"{node.op_type} has no masked form")
    if node.op_type == "Attention":
        require(node.domain != "com.microsoft", "this Attention has no masked form")
    unit = maker(graph, node)
    require(graph.shapes.get(unit.output) is not None, "the shape of its output is not known")
    return unit
