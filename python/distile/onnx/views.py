"""What makes queries, keys and values of one tensor without a computation: a split of its channels."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .weights import array_of

# Nodes that only move numbers, or compute extents.
_MOVES = {"Reshape", "Transpose", "Gather", "Split", "Slice", "Squeeze", "Unsqueeze", "Identity", "Concat", "Constant",
          "Shape", "Flatten", "Cast", "Mul", "Div"}  # fmt: skip
_OF_EXTENTS = {"Concat", "Constant", "Shape", "Cast", "Mul", "Div"}  # What they make is no tensor's view.
_SIZES = ((2, 3), (1, 5))  # The batch and the tokens with which those of any size are tried.


class Views:
    """The nodes of a model, with the places of producers and readers of tensors, -1 for the model's outputs."""

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: str | pathlib.Path,
        producers: dict[str, int],
        readers: dict[str, set[int]],
        shapes: dict[str, list],
    ):
        self.nodes, self.folder = list(model.graph.node), folder
        self.opsets = [one for one in model.opset_import if one.domain in ("", "ai.onnx")]
        self.weights = {one.name: one for one in model.graph.initializer}
        self.producers, self.readers, self.shapes = producers, readers, shapes

    def find(self, place: int, channels: int) -> tuple[str, list[int]] | None:
        """The tensor [N, T, 3 * channels] with the queries, keys and values, side by side, of the attention at a place,
        and the places of the nodes that split it and that nobody else needs; None if there is none."""
        wanted = list(self.nodes[place].input[:3])
        moves: set[int] = set()
        sources = {source for name in wanted for source in self._sources(name, moves)}
        if len(sources) != 1 or not moves:
            return None
        (source,) = sources
        shape = self.shapes.get(source, [])
        if len(shape) != 3 or shape[2] != 3 * channels:
            return None
        gone = self._gone(source, moves, place)
        if gone is None or not all(self._splits(source, wanted, sorted(moves), sizes) for sizes in _SIZES):
            return None
        return source, sorted(gone)

    def _sources(self, name: str, moves: set[int]):
        """The tensors that nodes move to make a tensor. Adds the places of these nodes."""
        if not name or name in self.weights:
            return
        place = self.producers.get(name)
        node = None if place is None else self.nodes[place]
        if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in _MOVES:
            yield name
            return
        known = place in moves
        moves.add(place)
        if not known and node.op_type != "Shape":
            for before in node.input:
                yield from self._sources(before, moves)

    def _gone(self, source: str, moves: set[int], place: int) -> set[int] | None:
        """Which of these nodes make what nobody needs but others of them and the node at a place; None if others need a
        part of the source."""
        gone = set(moves)
        while True:
            used = {one for one in gone
                    if any(not self.readers.get(name, set()) <= gone | {place} for name in self.nodes[one].output)}  # fmt: skip
            if not used:
                return gone
            if any(self.nodes[one].op_type not in _OF_EXTENTS and self._moves_of(one, source) for one in used):
                return None
            gone -= used

    def _moves_of(self, place: int, source: str) -> bool:
        """Whether a node moves numbers of the source, and not of extents alone."""
        node = self.nodes[place]
        if node.op_type == "Shape":
            return False
        return any(
            name == source or (name in self.producers and name not in self.weights
                               and self.nodes[self.producers[name]].op_type in _MOVES
                               and self._moves_of(self.producers[name], source))
            for name in node.input
        )  # fmt: skip

    def _splits(self, source: str, wanted: list[str], moves: list[int], sizes: tuple[int, int]) -> bool:
        """Whether the nodes make three parts of the source's channels of it, where it has these sizes if it may."""
        shape = self.shapes[source]
        named = {name: size for name, size in zip(shape, sizes) if isinstance(name, str)}
        extents = [one if isinstance(one, int) else size for one, size in zip(shape, (*sizes, 0))]
        values = np.arange(np.prod(extents), dtype=np.float32).reshape(extents)
        feeds, nodes = {source: values}, []
        for place in moves:
            node = self.nodes[place]
            if node.op_type != "Shape":
                nodes.append(node)
                continue
            known = extents if node.input[0] == source else [
                named.get(one, one) for one in self.shapes.get(node.input[0], [None])
            ]  # fmt: skip
            if node.attribute or not all(isinstance(one, int) for one in known):
                return False
            feeds[node.output[0]] = np.array(known, np.int64)
        names = {name for node in nodes for name in node.input if name in self.weights}
        constants = [numpy_helper.from_array(array_of(self.weights[name], self.folder), name) for name in sorted(names)]
        inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
                  for name, one in feeds.items()]  # fmt: skip
        outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
        graph = helper.make_graph(nodes, "views", inputs, outputs, constants)
        try:
            found = ReferenceEvaluator(helper.make_model(graph, opset_imports=self.opsets)).run(wanted, feeds)
        except Exception:  # What extents of other sizes raise.
            return False
        parts = np.split(values, 3, axis=2)
        return all(np.array_equal(one, part) for one, part in zip(found, parts))
