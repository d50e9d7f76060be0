"""The tokens of masked attention from the tensors of a graph."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .graph import Graph
from .unit import Heads, Tokens


def as_tokens(graph: Graph, tokens: Tokens, emit) -> str:
    """A tensor [N, T, C] of such tokens."""
    name = tokens.name if tokens.perm is None else _joined(graph, tokens, emit)
    name = _repeated(graph, first_of(graph, name, tokens.first, emit), tokens, emit)
    return name if tokens.width in (None, tokens.head_dim) else _widened(graph, name, tokens, emit)


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


def _widened(graph: Graph, name: str, tokens: Tokens, emit) -> str:
    """Each head with zeros behind its channels."""
    key = f"{name}/heads_of_{tokens.width}"
    if key not in graph.made:
        batch, count, channels = graph.shapes[name]
        apart, padded, made = (graph.fresh(f"{key}{end}") for end in ("/apart", "/padded", ""))
        _reshape(graph, name, apart, [0, 0, channels // tokens.head_dim, tokens.head_dim], emit)
        emit(graph.padding(apart, padded, [0] * 7 + [tokens.width - tokens.head_dim]))
        _reshape(graph, padded, made, [0, 0, -1], emit)
        graph.add_shape(made, graph.types[name], [batch, count, channels // tokens.head_dim * tokens.width])
        graph.made[key] = made
    return graph.made[key]


def from_tokens(graph: Graph, tokens: str, heads: Heads, output: str, emit) -> None:
    """Makes a result of attention from its tokens."""
    apart, taken = graph.fresh(f"{output}/heads"), graph.fresh(f"{output}/channels")
    _reshape(graph, tokens, apart, [0, 0, heads.number, heads.width], emit)
    if heads.channels < heads.width:
        places = graph.add_constant(f"distile/first_{heads.channels}", np.arange(heads.channels))
        emit(helper.make_node("Gather", [apart, places], [taken], axis=3))
    else:
        taken = apart
    if heads.apart:
        emit(helper.make_node("Transpose", [taken], [output], perm=[0, 2, 1, 3]))
    else:
        _reshape(graph, taken, output, [0, 0, -1], emit)


def _reshape(graph: Graph, source: str, output: str, shape: list[int], emit) -> None:
    extents = graph.add_constant("distile/reshaped_" + "_".join(map(str, shape)), np.array(shape, np.int64))
    emit(helper.make_node("Reshape", [source, extents], [output]))


def _gathered(graph: Graph, name: str, output: str, axis: int, places: np.ndarray, emit) -> str:
    if output not in graph.made:
        made = graph.made[output] = graph.fresh(output)
        emit(helper.make_node("Gather", [name, graph.add_constant(f"{output}/places", places)], [made], axis=axis))
        shape = list(graph.shapes.get(name, [None, None]))
        shape[axis] = len(places)
        graph.add_shape(made, graph.types.get(name, TensorProto.BOOL), shape)  # A new mask has no type yet.
    return graph.made[output]
