"""Elementwise nodes between masked operators that become masked, because their result is 0 anyway where the mask is not
active."""

from __future__ import annotations

import dataclasses

import onnx

from .graph import Graph
from .patterns import activation_of, single
from .unit import TYPES

SUMS = {"Add", "Sub", "Max", "Min"}
OPERATORS = {"Add": "MaskedAdd", "Concat": "MaskedConcat", "Mul": "MaskedMul"}
MOST_PARTS = 8  # A MaskedConcat takes no more.


@dataclasses.dataclass
class Combined:
    """A sum or a product of images with the activation behind it, or their concatenation, as a masked operator of a
    mask."""

    op: str
    mask: tuple  # What is equal for equal masks.
    nodes: list[onnx.NodeProto]
    operands: list[str]
    activation: str = "none"

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]


def combine(graph: Graph, zero_outside: dict[str, tuple], covered: set[int]) -> list[Combined]:
    """The elementwise nodes that become masked. `zero_outside`: the tensors that are 0 where a mask is not active, to
    which the results of such nodes are added; `covered`: the nodes that others took in."""
    found = []
    for node in graph.nodes:
        if id(node) in covered or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            continue
        mask = _mask_of(graph, node, zero_outside)
        if mask is None:
            continue
        zero_outside[node.output[0]] = mask
        operands = _operands(graph, node, zero_outside)
        if not operands:
            continue
        combined = Combined(OPERATORS[node.op_type], mask, [node], operands)
        activation = activation_of(graph, node.output[0])
        if activation and node.op_type != "Concat":
            combined.nodes += activation.nodes
            combined.activation = activation.name
            zero_outside[activation.output] = mask
        combined.nodes.sort(key=lambda one: graph.position[id(one)])
        covered.update(id(one) for one in combined.nodes)
        found.append(combined)
    return found


def _mask_of(graph: Graph, node: onnx.NodeProto, zero_outside: dict[str, tuple]) -> tuple | None:
    """The mask outside of which a node's result is 0."""
    shape = graph.size(node.output[0])
    masks = [zero_outside.get(name) if graph.size(name) == shape else None for name in node.input]
    if not masks or shape is None or None in shape:
        return None
    if node.op_type == "Mul":
        return next((mask for mask in masks if mask), None)
    if node.op_type in SUMS or (node.op_type == "Concat" and graph.attributes(node).get("axis") in (1, -3)):
        masks = [zero_outside.get(name) for name in node.input]
        return masks[0] if len(set(masks)) == 1 else None
    unary = len(node.input) == 1 and node.op_type in ("Abs", "Identity", "Neg", "Tanh")
    return masks[0] if unary or single(graph, node) else None


def _operands(graph: Graph, node: onnx.NodeProto, zero_outside: dict[str, tuple]) -> list[str]:
    """The operands of a concatenation of images, or of a sum or a product, the second of which may have one pixel, in the
    order of a masked operator; none if it is something else."""
    shape = graph.size(node.output[0])
    computed = all(graph.constant(name) is None for name in node.input)
    if node.op_type not in OPERATORS or len(shape) != 4 or graph.types.get(node.output[0]) not in TYPES or not computed:
        return []
    if node.op_type == "Concat":
        several = 1 < len(node.input) <= MOST_PARTS and all(name in zero_outside for name in node.input)
        return list(node.input) if several else []
    large = [name for name in node.input if graph.size(name) == shape and name in zero_outside]
    if not large:
        return []
    other = node.input[1] if node.input[0] == large[0] else node.input[0]
    pixel = [*shape[:2], 1, 1]
    return [large[0], other] if graph.size(other) in (shape, pixel) else []
