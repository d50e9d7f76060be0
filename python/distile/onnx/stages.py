"""Gathers chains of masked convolutions into one node each, `Stage` (docs/stages.md)."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..stage_description import Convolution, Stage, Window
from .graph import reads
from .weights import array_of

MOST_IMAGES, MOST_MASKS, MOST_RESULTS = 4, 8, 4  # As many as the operator has places for.
_X, _WEIGHTS, _MASK, _BIAS, _RESIDUAL, _KEPT = range(6)


@dataclasses.dataclass
class Gathered:
    """Nodes that became a stage, and why it ends where it does."""

    name: str
    nodes: list[str]
    ends: str


@dataclasses.dataclass
class _Chain:
    """Places of nodes: those of the chain, and those that read it and run behind it."""

    nodes: list[int] = dataclasses.field(default_factory=list)
    late: list[int] = dataclasses.field(default_factory=list)
    made: set[str] = dataclasses.field(default_factory=set)
    late_names: set[str] = dataclasses.field(default_factory=set)
    given: dict[str, int] = dataclasses.field(default_factory=dict)  # Images from before it, with their channels.
    masks: dict[str, None] = dataclasses.field(default_factory=dict)

    def with_node(self, place: int, node: onnx.NodeProto, channels: dict[str, int]) -> _Chain:
        given = self.given | {name: count for name, count in channels.items() if name not in self.made}
        masks = self.masks | {node.input[_MASK]: None}
        more = dict(nodes=[*self.nodes, place], made=self.made | {node.output[0]}, given=given, masks=masks)
        return dataclasses.replace(self, **more)

    @property
    def fits(self) -> bool:
        return len(self.given) <= MOST_IMAGES and len(self.masks) <= MOST_MASKS


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if len(node.input) > place else ""


def gather(model: onnx.ModelProto, folder: str | pathlib.Path = "") -> list[Gathered]:
    """Lets chains of masked convolutions of a converted model run as stages, in place: those of one group and
    depthwise ones in float32, which ONNX Runtime runs on a CPU. `folder` has the files with weights."""
    gathering = _Gathering(model, folder)
    gathering.run()
    return gathering.report


class _Gathering:
    def __init__(self, model: onnx.ModelProto, folder: str | pathlib.Path):
        self.graph, self.folder, self.nodes = model.graph, folder, list(model.graph.node)
        given = {value.name for value in model.graph.input}
        self.weights = {one.name: one for one in model.graph.initializer if one.name not in given}
        self.readers: dict[str, set[int]] = {value.name: {-1} for value in model.graph.output}
        for place, node in enumerate(self.nodes):
            for name in reads(node):
                self.readers.setdefault(name, set()).add(place)
        self.report: list[Gathered] = []
        self.stages: dict[int, tuple[onnx.NodeProto, list[int]]] = {}  # By the places of last nodes; what runs behind.
        self.gone: set[int] = set()

    def run(self) -> None:
        chain = _Chain()
        for place, node in enumerate(self.nodes):
            chain = self._visit(place, node, chain)
        self._close(chain, "the model ends")
        if self.stages:
            self._rebuild()

    def _visit(self, place: int, node: onnx.NodeProto, chain: _Chain) -> _Chain:
        channels, late = self._channels(node), chain.late_names.intersection(reads(node))
        if channels is None:
            if late or chain.made.intersection(reads(node)):
                chain.late.append(place)
                chain.late_names.update(node.output)
            return chain
        if late:
            self._close(chain, f"{node.name} reads {min(late)}, which no step makes")
            chain = _Chain()
        longer = chain.with_node(place, node, channels)
        if not longer.fits:
            self._close(chain, f"{node.name} needs more images or masks than a stage has")
            longer = _Chain().with_node(place, node, channels)
        return longer

    def _channels(self, node: onnx.NodeProto) -> dict[str, int] | None:
        """The images that a convolution reads, with their channels; None for what is no step of a stage."""
        if node.domain != "distile" or node.op_type != "MaskedConv":
            return None
        values = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        filter, bias = self.weights.get(_input(node, _WEIGHTS)), _input(node, _BIAS)
        ready = (
            values.get("layout") == b"NHWC"
            and filter is not None
            and (values.get("group", 1) == 1 or (values["group"] == filter.dims[0] and filter.dims[1] == 1))
            and filter.data_type == TensorProto.FLOAT
            and (not bias or bias in self.weights)
        )
        if not ready:
            return None
        added = {name: filter.dims[0] for name in (_input(node, _RESIDUAL), _input(node, _KEPT)) if name}
        return {node.input[_X]: filter.dims[1] * values.get("group", 1), **added}

    def _close(self, chain: _Chain, why: str) -> None:
        inside = set(chain.nodes)
        outputs = [self.nodes[place].output[0] for place in chain.nodes]
        results = [name for name in outputs if self.readers.get(name, set()) - inside]
        if len(chain.nodes) < 2 or not 0 < len(results) <= MOST_RESULTS:
            return
        name = f"distile/stage_{len(self.report)}"
        self.report.append(Gathered(name, [self.nodes[place].name for place in chain.nodes], why))
        self.stages[chain.nodes[-1]] = self._stage(chain, name, results), chain.late
        self.gone |= inside

    def _stage(self, chain: _Chain, name: str, results: list[str]) -> onnx.NodeProto:
        steps = tuple(self._step(self.nodes[place]) for place in chain.nodes)
        stage = Stage(tuple(chain.given.items()), tuple(chain.masks), steps, tuple(results))
        numbers = stage.numbers()
        tensors = [self.weights[one] for one in numbers.parameters]
        values = [np.asarray(array_of(one, self.folder), np.float32).ravel() for one in tensors]
        parameters = f"{name}/parameters"
        self.graph.initializer.append(numpy_helper.from_array(np.concatenate(values), parameters))
        images, masks = list(chain.given), list(chain.masks)
        inputs = [images[0], parameters, *images[1:]]
        inputs += [""] * (1 + MOST_IMAGES - len(inputs))
        attributes = dict(
            steps=numbers.steps,
            activations=numbers.activations,
            results=numbers.outputs,
            channels=[one.dims[0] for one in tensors],
            input_channels=list(chain.given.values()),
        )
        return helper.make_node(
            "Stage", inputs + masks, results, name, stage.json(), domain="distile", **attributes
        )

    def _step(self, node: onnx.NodeProto) -> Convolution:
        values = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        filter = self.weights[node.input[_WEIGHTS]]
        top, left, bottom, right = values.get("pads", [0, 0, 0, 0])
        window = Window(
            tuple(filter.dims[2:]),
            tuple(values.get("strides", (1, 1))),
            tuple(values.get("dilations", (1, 1))),
            (top, bottom, left, right),
        )
        bias, residual, kept = (_input(node, place) or None for place in (_BIAS, _RESIDUAL, _KEPT))
        activation = values.get("activation", b"none").decode()
        return Convolution(
            node.output[0], node.input[_X], filter.dims[0], window, node.input[_WEIGHTS], bias, residual, kept,
            node.input[_MASK], activation=activation, groups=values.get("group", 1),
        )  # fmt: skip

    def _rebuild(self) -> None:
        """Writes the nodes anew, those that read a stage behind it, and leaves out weights that nobody reads."""
        waiting = {place for last, (_, late) in self.stages.items() for place in late if place < last}
        order: list[onnx.NodeProto] = []
        for place, node in enumerate(self.nodes):
            if place in self.stages:
                stage, late = self.stages[place]
                order += [stage, *(self.nodes[one] for one in late if one in waiting)]
            elif place not in self.gone and place not in waiting:
                order.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
        del self.graph.node[:]
        self.graph.node.extend(kept)
        read = {name for node in kept for name in reads(node)} | {value.name for value in self.graph.output}
        for place in reversed(range(len(self.graph.initializer))):
            name = self.graph.initializer[place].name
            if name in self.weights and name not in read:
                del self.graph.initializer[place]
