"""Quantized layers in graphs: between DequantizeLinear and QuantizeLinear, or as one of ONNX's quantized operators."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper

from .._facts import QUANTIZED_TYPES
from .graph import Graph
from .patterns import activation_of
from .unit import Unit, require

TYPES = {getattr(TensorProto, of_onnx): name for name, (_, of_onnx) in QUANTIZED_TYPES.items()}

# The places of tensors among the inputs of quantized operators: each is followed by its scale and its zero point. And
# those of the bias, and of the output's scale.
OPERATORS = {
    "QLinearConv": ((0, 3), 8, 6),
    "QLinearMatMul": ((0, 3), None, 6),
    "QGemm": ((0, 3), 6, 7),
}

# The quantized forms of masked operators.
QUANTIZED = {
    "MaskedConv": "MaskedQLinearConv",
    "MaskedConvTranspose": "MaskedQLinearConvTranspose",
    "MaskedLinear": "MaskedQLinearMatMul",
}


@dataclasses.dataclass
class Quantization:
    """How integers stand for real numbers: real = (integer - zero_point) * scale."""

    scale: np.ndarray
    zero_point: np.ndarray

    @property
    def of_tensor(self) -> bool:
        return self.scale.size == 1 and self.zero_point.size == 1

    @property
    def inputs(self) -> list[np.ndarray]:
        """The inputs of a masked operator that say this of a tensor."""
        return [self.scale.reshape(()), self.zero_point.reshape(())]


@dataclasses.dataclass
class Layer:
    """A layer with a quantized input and quantized weights."""

    source: str  # The tensor that is stored, and its type.
    dtype: str
    input: Quantization
    filter: str | np.ndarray  # int8, without a zero point.
    shape: tuple[int, ...]
    filter_scale: np.ndarray
    integer_bias: np.ndarray | None
    bias: np.ndarray | None
    output: Quantization | None  # The output's numbers, in an operator; None: what follows the layer decides.
    weight_bits: int = 8


def _optional(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _constant(graph: Graph, name: str, what: str) -> np.ndarray:
    value = graph.constant(name)
    require(value is not None, f"{what} is not constant")
    return value


def _numbers(graph: Graph, node: onnx.NodeProto, place: int, kind: int, what: str) -> Quantization:
    """The scale at a place of a node's inputs, and the zero point behind it, of a tensor of a type."""
    scale = _constant(graph, node.input[place], f"the scale of {what}")
    require(scale.dtype == np.float32, f"the scale of {what} is not float32")
    name = _optional(node, place + 1)
    if not name:
        return Quantization(scale, np.zeros((), helper.tensor_dtype_to_np_dtype(kind)))
    return Quantization(scale, _constant(graph, name, f"the zero point of {what}"))


def _producer(graph: Graph, name: str, op: str) -> onnx.NodeProto | None:
    node = graph.producer.get(name)
    return node if node is not None and node.op_type == op else None


def _along(part: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Numbers of a tensor, or of each element of an axis, so that they spread over an array."""
    return part.reshape([-1 if place == axis % rank else 1 for place in range(rank)] if part.size > 1 else ())


def _stored(graph: Graph, name: str) -> np.ndarray | None:
    """A constant of integers, or what a QuantizeLinear makes of a constant."""
    stored, node = graph.constant(name), _producer(graph, name, "QuantizeLinear")
    if stored is not None or node is None:
        return stored
    values, scale = (graph.constant(name) for name in node.input[:2])
    zero = graph.constant(node.input[2]) if _optional(node, 2) else np.zeros((), np.uint8)
    blocked = graph.attributes(node).get("block_size", 0)
    if any(part is None for part in (values, scale, zero)) or zero.dtype not in (np.uint8, np.int8) or blocked:
        return None
    axis, limits = graph.attributes(node).get("axis", 1), np.iinfo(zero.dtype)
    scale, zero = (_along(part, axis, values.ndim) for part in (scale, zero))
    return np.clip(np.rint(values / scale) + zero.astype(np.float32), limits.min, limits.max).astype(zero.dtype)


@dataclasses.dataclass
class _Weights:
    """A constant DequantizeLinear; `transposed`, of a matrix that is transposed behind it."""

    node: onnx.NodeProto
    stored: np.ndarray
    transposed: bool


def _weights(graph: Graph, name: str) -> _Weights | None:
    turned = _producer(graph, name, "Transpose")
    if turned is not None and graph.attributes(turned).get("perm") == [1, 0]:
        name = turned.input[0]
    else:
        turned = None
    node = _producer(graph, name, "DequantizeLinear")
    stored = _stored(graph, node.input[0]) if node is not None else None
    return None if stored is None else _Weights(node, stored, turned is not None)


def has_quantized_weights(graph: Graph, node: onnx.NodeProto) -> bool:
    return node.op_type in OPERATORS or (len(node.input) > 1 and _weights(graph, node.input[1]) is not None)


def real_constant(graph: Graph, name: str) -> np.ndarray | None:
    """A constant of real numbers, or what a DequantizeLinear makes of a constant."""
    node = _producer(graph, name, "DequantizeLinear")
    stored = _stored(graph, node.input[0]) if node is not None else None
    if stored is None or graph.attributes(node).get("block_size", 0):
        return graph.constant(name)
    numbers, axis = _numbers(graph, node, 1, TensorProto.INT8, "a vector"), graph.attributes(node).get("axis", 1)
    scale, zero = (_along(part, axis, stored.ndim) for part in (numbers.scale, numbers.zero_point))
    return (stored.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale


def _filter(
    stored: np.ndarray, numbers: Quantization, axis: int, name: str | None
) -> tuple[str | np.ndarray, np.ndarray]:
    """The weights as int8 without a zero point, and their scale: one, or one for each element of the axis. `name`: the
    tensor that holds them."""
    channels = stored.shape[axis]
    for part in (numbers.scale, numbers.zero_point):
        require(part.size in (1, channels), "the quantization of its weights is blocked")
    scale = numbers.scale.reshape(-1)
    zero = numbers.zero_point.astype(np.int32)
    if name and stored.dtype == np.int8 and not zero.any():
        return name, scale
    centered = stored.astype(np.int32) - _along(zero, axis, stored.ndim)
    require(
        centered.min(initial=0) >= -128 and centered.max(initial=0) <= 127,
        "its weights have a zero point that is not 0, and less it they exceed int8",
    )
    return centered.astype(np.int8), scale


def _is_int4(filter: str | np.ndarray) -> bool:
    """Whether numbers of 4 bits are so still less their zero point."""
    return not isinstance(filter, str) and filter.min(initial=0) >= -8 and filter.max(initial=0) <= 7


def _biases(graph: Graph, name: str, scale: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The integer and the real part of a bias whose integers have this scale."""
    if not name:
        return None, None
    node, value = _producer(graph, name, "DequantizeLinear"), graph.constant(name)
    if node is None:
        require(value is not None, "its bias is not constant")
        return (value, None) if value.dtype == np.int32 else (None, value)
    numbers = _numbers(graph, node, 1, graph.types.get(node.input[0], TensorProto.INT32), "its bias")
    stored = _constant(graph, node.input[0], "its bias").astype(np.int32) - numbers.zero_point.astype(np.int32)
    if np.allclose(numbers.scale, scale, rtol=1e-5, atol=0):
        return stored, None
    return None, stored.astype(np.float32) * numbers.scale


def _input(graph: Graph, name: str) -> str:
    kind = graph.types.get(name)
    named = TensorProto.DataType.Name(kind).lower() if kind else "unknown"
    require(kind in TYPES, f"its input is of type {named}, not uint8 or int8")
    return TYPES[kind]


def _of_tensor(numbers: Quantization, what: str) -> Quantization:
    require(numbers.of_tensor, f"{what} has more than one scale or zero point")
    return numbers


def layer_of(graph: Graph, node: onnx.NodeProto, axis: int) -> Layer | None:
    """The quantized layer that a node is; None if its weights are not quantized. `axis`: that of the output channels in
    its weights. Raises Unsupported."""
    if node.op_type in OPERATORS:
        return _operator(graph, node, axis)
    weights = _weights(graph, node.input[1])
    if weights is None:
        return None
    source = _producer(graph, node.input[0], "DequantizeLinear")
    require(source is not None, "its weights are quantized, but its input is not")
    for dequantize, what in ((source, "its input"), (weights.node, "its weights")):
        require(not graph.attributes(dequantize).get("block_size", 0), f"the quantization of {what} is blocked")
    stored = source.input[0]
    dtype = _input(graph, stored)
    numbers = _of_tensor(_numbers(graph, source, 1, graph.types[stored], "its input"), "its input")
    name = weights.node.input[0]
    of_weights = _numbers(graph, weights.node, 1, TensorProto.INT8, "its weights")
    rank = weights.stored.ndim
    given = graph.attributes(weights.node).get("axis", 1) % rank
    given = 1 - given if weights.transposed else given
    require(of_weights.of_tensor or given == axis % rank, "its weights have scales of another axis than the outputs'")
    array = weights.stored.T if weights.transposed else weights.stored
    constant = graph.constant(name) is not None and not weights.transposed
    filter, scale = _filter(array, of_weights, axis, name if constant else None)
    biases = _biases(graph, _optional(node, 2), numbers.scale * scale)
    few = graph.types.get(name) in (TensorProto.INT4, TensorProto.UINT4) and _is_int4(filter)
    return Layer(stored, dtype, numbers, filter, array.shape, scale, *biases, None, 4 if few else 8)


def _operator(graph: Graph, node: onnx.NodeProto, axis: int) -> Layer:
    (source, weights), bias, output = OPERATORS[node.op_type]
    name = node.input[weights]
    dtype = _input(graph, node.input[source])
    numbers = _of_tensor(_numbers(graph, node, source + 1, graph.types[node.input[source]], "its input"), "its input")
    stored = graph.constant(name)
    require(stored is not None, "its weights are not constant")
    of_weights = _numbers(graph, node, weights + 1, TensorProto.INT8, "its weights")
    filter, scale = _filter(stored, of_weights, axis, name)
    biases = _biases(graph, _optional(node, bias), numbers.scale * scale) if bias else (None, None)
    result = None
    if _optional(node, output):
        kind = graph.types.get(node.output[0], TensorProto.UINT8)
        result = _of_tensor(_numbers(graph, node, output, kind, "its output"), "its output")
    return Layer(node.input[source], dtype, numbers, filter, stored.shape, scale, *biases, result)


def _quantizes(graph: Graph, tensor: str) -> tuple[onnx.NodeProto, Quantization] | None:
    """The QuantizeLinear that alone reads a tensor, if the masked operator can do it."""
    node = graph.only_reader(tensor)
    if node is None or node.op_type != "QuantizeLinear" or graph.attributes(node).get("block_size", 0):
        return None
    scale, zero_name = graph.constant(node.input[1]), _optional(node, 2)
    kind = graph.types.get(node.output[0])
    if scale is None or scale.dtype != np.float32 or kind not in TYPES:
        return None
    zero = graph.constant(zero_name) if zero_name else np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
    numbers = None if zero is None else Quantization(scale, zero)
    return (node, numbers) if numbers and numbers.of_tensor else None


def quantized(graph: Graph, unit: Unit, layer: Layer) -> Unit:
    """The quantized form of a unit: with the activation and the QuantizeLinear that follow it, or else with an output
    of float32."""
    output = layer.output
    if output is None:
        activation = activation_of(graph, unit.output)
        found = _quantizes(graph, activation.output if activation else unit.output)
        if found:
            quantize, output = found
            unit.nodes += [*(activation.nodes if activation else []), quantize]
            unit.activation = activation.name if activation else "none"
    unit.op = QUANTIZED[unit.op]
    unit.inputs = [
        layer.source,
        layer.filter,
        unit.inputs[2],
        *layer.input.inputs,
        layer.filter_scale,
        layer.integer_bias,
        *(output.inputs if output else []),
    ]
    if layer.weight_bits != 8:
        unit.attributes["weight_bits"] = layer.weight_bits
    unit.dtype, unit.zero = layer.dtype, output.zero_point.reshape(()) if output else None
    unit.params["output_dtype"] = str(output.zero_point.dtype) if output else "float32"
    return unit
