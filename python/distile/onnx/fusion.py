"""What a masked operator takes in: the addition of a residual and an activation, where the result stays exact.

The output of a marked node is 0 where its mask is not active. A sum with a residual is then the residual there: the
operator keeps its values. An activation with f(0) = 0 changes nothing there, and after a residual it may be taken in
if it changes nothing in the residual either.
"""

from __future__ import annotations

import dataclasses

import onnx

from .graph import Graph
from .patterns import activation_of, single
from .unit import Unit

# The activations that change nothing in their own results, and in those of which others.
UNCHANGED = {"relu": {"relu", "relu6"}, "relu6": {"relu6"}}


@dataclasses.dataclass
class Fused:
    """A unit and what it takes in."""

    nodes: list[onnx.NodeProto]
    output: str
    residual: str | None = None
    kept: str | None = None  # Where inactive pixels take their values from; None: they are 0.
    activation: str = "none"


def fuse(graph: Graph, mask_of: dict[str, tuple], units: list[Unit]) -> tuple[dict[str, Fused], dict[str, tuple]]:
    """For each unit, by its output, what it takes in, and the masks of tensors that are 0 where those are not active.
    `mask_of`: what is equal for units whose outputs have one mask."""
    plans: dict[str, Fused] = {}
    claimed: set[int] = set()
    # Tensors that are 0 where a mask is not active, and tensors that are results of an activation everywhere.
    zero_outside = dict(mask_of)
    activated: dict[str, str] = {}
    for unit in units:
        plan = plans[unit.output] = Fused([*unit.before, *unit.nodes], unit.output, activation=unit.activation)
        if not unit.has_activation:
            continue
        mask = mask_of[unit.output]
        residual = _residual(graph, unit.output, claimed) if unit.has_epilogue else None
        if residual is not None:
            adder, plan.residual = residual
            claimed.add(id(adder))
            if zero_outside.get(plan.residual) != mask:
                plan.kept = plan.residual
            plan.nodes.append(adder)
            plan.output = adder.output[0]
        found = activation_of(graph, plan.output)
        if found and (not plan.kept or _result_of(graph, plan.kept, activated) in UNCHANGED.get(found.name, ())):
            plan.activation = found.name
            plan.nodes += found.nodes
            plan.output = found.output
            activated[plan.output] = found.name
        plan.nodes.sort(key=lambda node: graph.position[id(node)])
        if not plan.kept:
            zero_outside[plan.output] = mask
    return plans, zero_outside


def _residual(graph: Graph, tensor: str, claimed: set[int]) -> tuple[onnx.NodeProto, str] | None:
    """The addition that alone reads a tensor, and its other operand, if that has the same shape."""
    adder = graph.only_reader(tensor)
    if adder is None or adder.op_type != "Add" or id(adder) in claimed:
        return None
    other = adder.input[1] if adder.input[0] == tensor else adder.input[0]
    shape = graph.size(other)
    if graph.constant(other) is not None or shape is None or None in shape or shape != graph.size(tensor):
        return None
    return adder, other


def _result_of(graph: Graph, tensor: str, activated: dict[str, str]) -> str | None:
    """The activation whose results a tensor consists of."""
    if tensor in activated:
        return activated[tensor]
    node = graph.producer.get(tensor)
    if node is None:
        return None
    if node.op_type == "MaxPool":
        return _result_of(graph, node.input[0], activated)
    return single(graph, node)
