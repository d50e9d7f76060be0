"""Group norm in graphs: nodes of it, and the instance norm between two reshapes that exporters write."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx

from .graph import Graph
from .unit import require


@dataclasses.dataclass
class GroupNorm:
    """A group norm of images: the node that normalizes, those after it, and what it takes in before it."""

    nodes: list[onnx.NodeProto]
    input: str
    groups: int
    scale: np.ndarray
    bias: np.ndarray
    before: list[onnx.NodeProto] = dataclasses.field(default_factory=list)


def group_norm(graph: Graph, node: onnx.NodeProto) -> GroupNorm:
    """The group norm that a GroupNormalization or an InstanceNormalization is, with what scales it after it."""
    scale, bias = (graph.constant(name) for name in node.input[1:3])
    require(scale is not None and bias is not None, "its scale or bias is not constant")
    if node.op_type == "GroupNormalization":
        channels = _channels(graph, node.input[0])
        require(scale.size == bias.size == channels, "it has a scale for each group: ONNX has dropped that")
        return GroupNorm([node], node.input[0], graph.attributes(node)["num_groups"], scale, bias)
    if len(graph.shapes.get(node.input[0]) or []) == 4:
        return GroupNorm([node], node.input[0], _channels(graph, node.input[0]), scale, bias)
    return _between_reshapes(graph, node, scale, bias)


def _channels(graph: Graph, name: str) -> int:
    shape = graph.shapes.get(name) or []
    require(len(shape) == 4 and isinstance(shape[1], int), "its input is not [N, C, H, W] with known channels")
    return shape[1]


def _between_reshapes(graph: Graph, node: onnx.NodeProto, scale: np.ndarray, bias: np.ndarray) -> GroupNorm:
    before, after = graph.producer.get(node.input[0]), graph.only_reader(node.output[0])
    known = all(other is not None and other.op_type == "Reshape" for other in (before, after))
    require(known, "it is no group norm of images")
    images = before.input[0]
    channels, groups = _channels(graph, images), scale.size
    grouped = graph.shapes.get(node.input[0]) or []
    require(
        len(grouped) == 3
        and grouped[1] == groups
        and channels % groups == 0
        and grouped[0] == graph.shapes[images][0]
        and graph.shapes.get(after.output[0]) == graph.shapes[images],
        "the shapes around it are not those of a group norm of images",
    )
    # Each group has its scale, and then, by two more nodes, each channel.
    factor, summand = (value.astype(np.float64).repeat(channels // groups) for value in (scale, bias))
    nodes, last = [node, after], after
    for op in ("Mul", "Add"):
        reader = graph.only_reader(last.output[0])
        vector = _per_channel(graph, reader, last.output[0], channels) if reader and reader.op_type == op else None
        if vector is None:
            continue
        factor, summand = (factor * vector, summand * vector) if op == "Mul" else (factor, summand + vector)
        nodes.append(reader)
        last = reader
    return GroupNorm(nodes, images, groups, factor, summand, [before] if graph.only_reader(node.input[0]) else [])


def _per_channel(graph: Graph, node: onnx.NodeProto, tensor: str, channels: int) -> np.ndarray | None:
    """The other operand, if it is a constant with one element for each channel of images."""
    other = graph.per_channel(node.input[1] if node.input[0] == tensor else node.input[0], 4, 1, channels)
    return None if other is None else other.astype(np.float64)
