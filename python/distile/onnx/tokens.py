"""The tokens of masked attention from the tensors of a graph."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .graph import Graph
from .unit import Tokens


def as_tokens(graph: Graph, tokens: Tokens, emit) -> str:
    """A tensor [N, T, C] of such tokens."""
    name = tokens.name if tokens.perm is None else _joined(graph, tokens, emit)
    return _repeated(graph, first_of(graph, name, tokens.first, emit), tokens, emit)


def _joined(graph: Graph, tokens: Tokens, emit) -> str:
    key = f"{tokens.name}/tokens {tokens.perm}"
    if key not in graph.made:
        name, turned = graph.fresh(f"{tokens.name}/tokens"), graph.fresh(f"{tokens.name}/heads")
        batch, rows, count, head_dim = (graph.shapes[tokens.name][place] for place in tokens.perm)
        emit(helper.make_node("Transpose", [tokens.name], [turned], perm=tokens.perm))
        extents = graph.add_constant("distile/joined", np.array([0, 0, -1], np.int64))
        emit(helper.make_node("Reshape", [turned, extents], [name]))
        graph.add_shape(name, graph.types[tokens.name], [batch, rows, count * head_dim])
        graph.made[key] = name
    return graph.made[key]


def first_of(graph: Graph, name: str, count: int | None, emit) -> str:
    """The first `count` tokens, or keys of a mask; None: all."""
    return name if count is None else _gathered(graph, name, f"{name}/first_{count}", 1, np.arange(count), emit)


def _repeated(graph: Graph, name: str, tokens: Tokens, emit) -> str:
    """Each head as often as queries share it."""
    if tokens.repeats == 1:
        return name
    channels = np.arange(graph.shapes[name][2]).reshape(-1, tokens.head_dim).repeat(tokens.repeats, 0).reshape(-1)
    return _gathered(graph, name, f"{name}/repeated_{tokens.repeats}", 2, channels, emit)


def _gathered(graph: Graph, name: str, output: str, axis: int, places: np.ndarray, emit) -> str:
    if output not in graph.made:
        made = graph.made[output] = graph.fresh(output)
        emit(helper.make_node("Gather", [name, graph.add_constant(f"{output}/places", places)], [made], axis=axis))
        shape = list(graph.shapes.get(name, [None, None]))
        shape[axis] = len(places)
        graph.add_shape(made, graph.types.get(name, TensorProto.BOOL), shape)  # A new mask has no type yet.
    return graph.made[output]
