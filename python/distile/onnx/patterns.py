"""Activations in graphs: single nodes, and the patterns that exporters make of them."""

from __future__ import annotations

import dataclasses
import math

import onnx

from .graph import Graph, attributes


@dataclasses.dataclass
class Activation:
    """An activation of a tensor, all of whose nodes serve nothing else."""

    name: str
    nodes: list[onnx.NodeProto]

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]


def _clip(graph: Graph, node: onnx.NodeProto) -> str | None:
    limits = attributes(node)
    least = graph.scalar(node.input[1]) if len(node.input) > 1 else limits.get("min")
    most = graph.scalar(node.input[2]) if len(node.input) > 2 and node.input[2] else limits.get("max", math.inf)
    return {(0.0, 6.0): "relu6", (0.0, math.inf): "relu"}.get((least, most))


def single(graph: Graph, node: onnx.NodeProto) -> str | None:
    """The activation that one node is; None if it is none with f(0) = 0."""
    values = attributes(node)
    if node.op_type == "Clip":
        return _clip(graph, node)
    if node.op_type == "Gelu" and values.get("approximate", "none") == "none":
        return "gelu"
    if node.op_type == "Swish" and values.get("alpha", 1.0) == 1.0:
        return "silu"
    return {"Relu": "relu", "HardSwish": "hardswish"}.get(node.op_type)


def _other(node: onnx.NodeProto, name: str) -> str:
    """The operand of a node with two operands that is not `name`."""
    return node.input[1] if node.input[0] == name else node.input[0]


def _gate(graph: Graph, tensor: str, gate: onnx.NodeProto, product: onnx.NodeProto) -> Activation | None:
    """x * sigmoid(x) or x * hardsigmoid(x)."""
    if product.op_type != "Mul" or graph.only_reader(gate.output[0]) is not product:
        return None
    if gate.op_type == "Sigmoid":
        return Activation("silu", [gate, product])
    values = attributes(gate)
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
        for match in (_gate, _gelu):
            found = match(graph, tensor, first, second)
            if found:
                return found
    return None
