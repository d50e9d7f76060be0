"""Affine steps in graphs: what adds to a tensor or multiplies it by constants, of each channel or of all, as exporters
write biases, scales and norms."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx

from .graph import Graph

ARITHMETIC = {"Add", "Div", "Mul", "Sub"}


@dataclasses.dataclass
class Affine:
    """A chain of steps that together multiply each channel by a factor and add a summand, both of float64. The nodes
    serve nothing else."""

    nodes: list[onnx.NodeProto]
    factor: np.ndarray
    summand: np.ndarray

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]


def _batch_norm(graph: Graph, norm: onnx.NodeProto) -> tuple[np.ndarray, np.ndarray] | None:
    """The factors and summands of a batch norm with constant statistics for each channel."""
    values = graph.attributes(norm)
    trains = values.get("training_mode", 0) or len([name for name in norm.output if name]) > 1
    found = [graph.constant(name) for name in norm.input[1:5]]
    if trains or not values.get("spatial", 1) or any(value is None for value in found):
        return None
    scale, shift, mean, variance = (value.astype(np.float64) for value in found)
    factor = scale / np.sqrt(variance + values.get("epsilon", 1e-5))
    return factor, shift - mean * factor


def _arithmetic(op: str, value: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """The factors and summands of a sum, a difference, a product or a quotient of a tensor and a constant; `first`:
    whether the constant is the first operand."""
    one, zero = np.ones_like(value), np.zeros_like(value)
    if op == "Div":
        return None if first or not value.all() else (1 / value, zero)
    return {"Add": (one, value), "Mul": (value, zero), "Sub": (-one, value) if first else (one, -value)}[op]


def _step(graph: Graph, node: onnx.NodeProto, tensor: str, axis: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The factors and summands for the channels of a tensor that a node is; None if it is something else."""
    shape = graph.shapes[tensor]
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "BatchNormalization":
        return _batch_norm(graph, node) if axis == 1 and node.input[0] == tensor else None
    if node.op_type not in ARITHMETIC:
        return None
    first = node.input[1] == tensor
    value = graph.per_channel(node.input[0 if first else 1], len(shape), axis, shape[axis])
    return None if value is None else _arithmetic(node.op_type, value.astype(np.float64), first)


def affine_after(graph: Graph, tensor: str, axis: int, *, norms: bool = True) -> Affine:
    """The affine steps on the channels, which are the dimension `axis` of a tensor, that alone read it, one after the
    other; `norms`: batch norms too."""
    shape = graph.shapes.get(tensor)
    if shape is None or not isinstance(shape[axis], int):
        return Affine([], np.ones(1), np.zeros(1))
    axis %= len(shape)
    found = Affine([], np.ones(shape[axis]), np.zeros(shape[axis]))
    while True:
        node = graph.only_reader(tensor)
        ends = node is None or (node.op_type == "BatchNormalization" and not norms)
        step = None if ends else _step(graph, node, tensor, axis)
        if step is None:
            return found
        factor, summand = step
        found.nodes.append(node)
        found.factor, found.summand = found.factor * factor, found.summand * factor + summand
        tensor = found.output


def affine_from(graph: Graph, norm: onnx.NodeProto) -> Affine | None:
    """A batch norm and the affine steps behind it; None if its statistics are no constants."""
    step = _batch_norm(graph, norm)
    if step is None:
        return None
    factor, summand = step
    after = affine_after(graph, norm.output[0], 1)
    if not after.nodes:
        return Affine([norm], factor, summand)
    return Affine([norm, *after.nodes], factor * after.factor, summand * after.factor + after.summand)


def before_affine(graph: Graph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The node that stands before a chain of affine steps of which a node may be one."""
    while node is not None and (node.op_type in ARITHMETIC or node.op_type == "BatchNormalization"):
        computed = [name for name in node.input if graph.constant(name) is None]
        node = graph.producer.get(computed[0]) if len(computed) == 1 else None
    return node
