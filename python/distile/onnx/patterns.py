"""Activations in graphs: single nodes, and the patterns that exporters make of them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx

from ..activations import with_slope
from .graph import Graph


@dataclasses.dataclass
class Activation:
    """An activation of a tensor, all of whose nodes serve nothing else."""

    name: str
    nodes: list[onnx.NodeProto]

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]


LARGEST = float(np.finfo(np.float32).max)  # The limit that stands for none before opset 11.


def _limits(graph: Graph, node: onnx.NodeProto) -> tuple[float | None, float | None]:
    """The least and the most that a Clip leaves; None where it is no constant."""
    values = graph.attributes(node)
    given = [values.get("min", -math.inf), values.get("max", math.inf)]
    for place, name in enumerate(node.input[1:]):
        if name:
            given[place] = graph.scalar(name)
    least, most = given
    return least, math.inf if most is not None and most >= LARGEST else most


def _clip(graph: Graph, node: onnx.NodeProto) -> str | None:
    return {(0.0, 6.0): "relu6", (0.0, math.inf): "relu"}.get(_limits(graph, node))


def _leaky(slope: float) -> str | None:
    """With the shortest decimal number that float32 rounds to the slope."""
    return with_slope("leaky_relu", float(str(np.float32(slope)))) if math.isfinite(slope) else None


def single(graph: Graph, node: onnx.NodeProto) -> str | None:
    """The activation that one node is; None if it is none with f(0) = 0."""
    values = graph.attributes(node)
    if node.op_type == "Clip":
        return _clip(graph, node)
    if node.op_type == "Gelu" and values.get("approximate", "none") == "none":
        return "gelu"
    if node.op_type == "Swish" and values.get("alpha", 1.0) == 1.0:
        return "silu"
    if node.op_type == "Elu" and values.get("alpha", 1.0) == 1.0:
        return "elu"
    if node.op_type == "LeakyRelu":
        return _leaky(values.get("alpha", 0.01))
    if node.op_type == "PRelu":
        slope = graph.scalar(node.input[1])
        return None if slope is None else _leaky(slope)
    return {"Relu": "relu", "HardSwish": "hardswish", "Tanh": "tanh", "Mish": "mish"}.get(node.op_type)


def _other(node: onnx.NodeProto, name: str) -> str:
    """The operand of a node with two operands that is not `name`."""
    return node.input[1] if node.input[0] == name else node.input[0]


def _gate(graph: Graph, tensor: str, gate: onnx.NodeProto, product: onnx.NodeProto) -> Activation | None:
    """x * sigmoid(x) or x * hardsigmoid(x)."""
    if product.op_type != "Mul" or graph.only_reader(gate.output[0]) is not product:
        return None
    if gate.op_type == "Sigmoid":
        return Activation("silu", [gate, product])
    values = graph.attributes(gate)
    slope, middle = values.get("alpha", 0.2), values.get("beta", 0.5)
    if gate.op_type == "HardSigmoid" and abs(slope - 1 / 6) < 1e-6 and middle == 0.5:
        return Activation("hardswish", [gate, product])
    return None


def _gelu(graph: Graph, tensor: str, inner: onnx.NodeProto, outer: onnx.NodeProto) -> Activation | None:
    """x * (1 + erf(x / sqrt(2))) * .5, in the orders of exporters."""
    factor = graph.scalar(_other(inner, tensor)) if len(inner.input) == 2 else None
    if factor is None or not (
        (inner.op_type == "Div" and inner.input[0] == tensor and abs(factor - math.sqrt(2)) < 1e-5)
        or (inner.op_type == "Mul" and abs(factor - math.sqrt(0.5)) < 1e-5)
    ):
        return None
    erf = graph.only_reader(inner.output[0])
    plus = graph.only_reader(erf.output[0]) if erf is not None and erf.op_type == "Erf" else None
    if plus is None or plus.op_type != "Add" or graph.scalar(_other(plus, erf.output[0])) != 1.0:
        return None
    product = graph.only_reader(plus.output[0])
    if product is None or product.op_type != "Mul" or outer.op_type != "Mul":
        return None
    if product is outer:  # (x * (1 + erf)) * .5
        half = graph.only_reader(product.output[0])
        if half is None or half.op_type != "Mul" or graph.scalar(_other(half, product.output[0])) != 0.5:
            return None
        return Activation("gelu", [inner, erf, plus, product, half])
    # (x * .5) * (1 + erf)
    if graph.scalar(_other(outer, tensor)) != 0.5 or graph.only_reader(outer.output[0]) is not product:
        return None
    return Activation("gelu", [inner, erf, plus, outer, product])


def _factor(graph: Graph, node: onnx.NodeProto | None, tensor: str) -> float | None:
    """What a node multiplies a tensor by, if it is a constant."""
    value = graph.scalar(_other(node, tensor)) if node is not None and len(node.input) == 2 else None
    if node is None or value is None or (node.op_type == "Div" and (node.input[0] != tensor or not value)):
        return None
    return {"Mul": value, "Div": 1 / value if value else None}.get(node.op_type)


def _is_sixth(factor: float | None) -> bool:
    return factor is not None and abs(factor - 1 / 6) < 1e-6


def _relu6(graph: Graph, tensor: str) -> list[onnx.NodeProto]:
    """The nodes that limit a tensor to 0 to 6 and alone read it."""
    clip = graph.only_reader(tensor)
    if clip is None:
        return []
    if clip.op_type == "Clip" and _clip(graph, clip) == "relu6":
        return [clip]
    bounded = graph.only_reader(clip.output[0]) if single(graph, clip) == "relu" else None
    if bounded is not None and bounded.op_type == "Min" and len(bounded.input) == 2:
        return [clip, bounded] if graph.scalar(_other(bounded, clip.output[0])) == 6 else []
    return []


def _hardswish(graph: Graph, tensor: str, plus: onnx.NodeProto, outer: onnx.NodeProto) -> Activation | None:
    """x * relu6(x + 3) / 6, in the orders of exporters."""
    if plus.op_type != "Add" or graph.scalar(_other(plus, tensor)) != 3:
        return None
    clip = _relu6(graph, plus.output[0])
    after = graph.only_reader(clip[-1].output[0]) if clip else None
    if after is None:
        return None
    if after is outer:  # (x * relu6) / 6
        sixth = graph.only_reader(outer.output[0]) if outer.op_type == "Mul" else None
        if _is_sixth(_factor(graph, sixth, outer.output[0])):
            return Activation("hardswish", [plus, *clip, outer, sixth])
    elif _is_sixth(_factor(graph, after, clip[-1].output[0])):  # x * (relu6 / 6)
        if outer.op_type == "Mul" and graph.only_reader(after.output[0]) is outer:
            return Activation("hardswish", [plus, *clip, after, outer])
    elif after.op_type == "Mul" and graph.only_reader(outer.output[0]) is after:  # (x / 6) * relu6
        if _is_sixth(_factor(graph, outer, tensor)):
            return Activation("hardswish", [plus, *clip, outer, after])
    return None


def _mish(graph: Graph, tensor: str, softplus: onnx.NodeProto, product: onnx.NodeProto) -> Activation | None:
    """x * tanh(softplus(x)), as exporters write it before opset 18."""
    tanh = graph.only_reader(softplus.output[0]) if softplus.op_type == "Softplus" else None
    if tanh is None or tanh.op_type != "Tanh" or product.op_type != "Mul":
        return None
    if graph.only_reader(tanh.output[0]) is not product:
        return None
    return Activation("mish", [softplus, tanh, product])


def activation_of(graph: Graph, tensor: str) -> Activation | None:
    """The activation that alone reads a tensor."""
    if tensor in graph.outputs:
        return None
    readers = graph.readers(tensor)
    if len(readers) == 1:
        name = single(graph, readers[0])
        return Activation(name, [readers[0]]) if name else None
    if len(readers) != 2:
        return None
    for first, second in (readers, readers[::-1]):
        for match in (_gate, _gelu, _hardswish, _mish):
            found = match(graph, tensor, first, second)
            if found:
                return found
    return None
