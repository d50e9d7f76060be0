"""Attention in graphs: nodes of it, and the products and the softmax that exporters write."""

from __future__ import annotations

import dataclasses

import onnx

from .graph import Graph
from .unit import Heads, Tokens, Unit, dtype_of, require

QUERY, KEY_TRANSPOSED = [0, 2, 1, 3], [0, 3, 1, 2]


@dataclasses.dataclass
class _Operands:
    """Queries, keys and values, as tokens [N, T, C], and whether the result is [N, heads, T, channels]."""

    tokens: list[Tokens]
    heads: int
    head_dim: int
    value_dim: int
    key_heads: int
    query_tokens: int | str | None
    key_tokens: int | str | None
    apart: bool = False


MULTIPLE = 8  # A masked operator has heads of a multiple of it.


def _unit(graph: Graph, nodes, operands: _Operands, causal: bool, scale: float) -> Unit:
    heads, head_dim, value_dim = operands.heads, operands.head_dim, operands.value_dim
    require(isinstance(operands.key_tokens, int), "the number of its keys is not known")
    require(heads % operands.key_heads == 0, "its heads are not a multiple of its keys' heads")
    attended = _attended(operands) if causal else None
    # Zeros behind the channels change no product, and those behind values are cut off.
    width = -(-max(head_dim, value_dim) // MULTIPLE) * MULTIPLE
    scale = scale if width == head_dim else scale or head_dim**-0.5
    inputs = [dataclasses.replace(operands.tokens[0], width=width)]
    for tokens in operands.tokens[1:]:
        inputs.append(dataclasses.replace(tokens, first=attended, repeats=heads // operands.key_heads, width=width))
    plain = width == value_dim and not operands.apart
    return Unit(
        "MaskedAttention",
        nodes,
        inputs,
        {"num_heads": heads, "head_dim": width, "is_causal": int(causal), "scale": scale},
        False,
        dtype_of(graph, nodes[-1].output[0]),
        "masked_attention",
        {"heads": heads, "head_dim": width, "causal": causal},
        operands.key_tokens,
        attended,
        result=None if plain else Heads(heads, width, value_dim, operands.apart),
    )


def _attended(operands: _Operands) -> int | None:
    """The keys that causal queries see at all, the first ones: a query sees those up to its own place. The masked
    operator aligns the last query with the last key, so both must be as many."""
    queries, keys = operands.query_tokens, operands.key_tokens
    if queries == keys:
        return None
    require(isinstance(queries, int), "it is causal, and the number of its queries is not known")
    require(queries < keys, "it is causal with more queries than keys")
    return queries


def _node_operands(graph: Graph, node: onnx.NodeProto, query_heads: int, key_heads: int) -> _Operands:
    """The operands of a node with tokens [N, T, C], or with a dimension for the heads: [N, heads, T, head_dim]."""
    shapes = [graph.shapes.get(name) or [] for name in node.input[:3]]
    rank = len(shapes[0])
    require(rank in (3, 4) and all(len(shape) == rank for shape in shapes), "the shapes of its inputs are not known")
    if rank == 4:
        query_heads, key_heads = shapes[0][1], shapes[1][1]
        require(shapes[2][1] == key_heads, "its values have other heads than its keys")
    require(isinstance(query_heads, int) and query_heads and key_heads, "its heads are not known")
    widths = [shape[-1] for shape in shapes]
    require(all(isinstance(width, int) for width in widths), "the channels of its inputs are not known")
    numbers = [1, 1, 1] if rank == 4 else [query_heads, key_heads, key_heads]
    head_dim, key_dim, value_dim = (width // number for width, number in zip(widths, numbers))
    require(head_dim == key_dim, "its keys are wider or narrower than its queries")
    plain = rank == 3
    tokens = [Tokens(name, dim) if plain else _tokens(graph, name, QUERY)
              for name, dim in zip(node.input, (head_dim, key_dim, value_dim))]  # fmt: skip
    return _Operands(tokens, query_heads, head_dim, value_dim, key_heads, shapes[0][-2], shapes[1][-2])


def attention_node(graph: Graph, node: onnx.NodeProto) -> Unit:
    """An Attention node of ONNX, or MultiHeadAttention of ONNX Runtime."""
    values = graph.attributes(node)
    contrib = node.op_type == "MultiHeadAttention"
    require(contrib or node.domain != "com.microsoft", "this Attention has no masked form")
    require(len([name for name in node.input if name]) == 3, "it has a mask, a bias or a cache")
    require(len([name for name in node.output if name]) == 1, "it has more than one output")
    require(not values.get("softcap", 0.0) and not values.get("qk_matmul_output_mode", 0), "it has a softcap or scores")
    windows = [values.get(f"{side}_window_size", -1) for side in ("left", "right")]
    require(windows == [-1, -1], "it attends to a window of its keys")
    heads = values.get("num_heads" if contrib else "q_num_heads", 0)
    operands = _node_operands(graph, node, heads, heads if contrib else values.get("kv_num_heads", heads))
    joined = [] if len(graph.shapes[node.input[0]]) == 3 else _joined(graph, node.output[0], operands)
    causal = bool(values.get("unidirectional" if contrib else "is_causal", 0))
    alike = operands.query_tokens == operands.key_tokens
    require(alike or not (contrib and causal), "it is unidirectional with unequal numbers of queries and keys")
    return _unit(graph, [node, *joined], operands, causal, values.get("scale", 0.0))


def _joined(graph: Graph, name: str, operands: _Operands) -> list[onnx.NodeProto]:
    """The nodes that make tokens [N, T, C] of a result [N, heads, T, head_dim], if nothing else reads that."""
    transpose = graph.only_reader(name)
    good = transpose is not None and transpose.op_type == "Transpose"
    good = good and graph.attributes(transpose).get("perm") == QUERY
    reshape = graph.only_reader(transpose.output[0]) if good else None
    good = reshape is not None and reshape.op_type == "Reshape"
    shape, result = graph.shapes.get(name), graph.shapes.get(reshape.output[0]) if good else None
    good = good and shape is not None and result is not None and result[1:] == [shape[2], shape[1] * shape[3]]
    operands.apart = not good
    return [transpose, reshape] if good else []


def _tokens(graph: Graph, name: str, perm: list[int]) -> Tokens:
    """The tokens [N, T, C] from which [N, heads, T, head_dim] was made, or what makes such tokens of it."""
    node = graph.producer.get(name)
    heads, head_dim = graph.shapes[name][1], graph.shapes[name][perm[3]]
    if node is not None and node.op_type == "Transpose":
        order = graph.attributes(node).get("perm")
        reshape = graph.producer.get(node.input[0])
        if reshape is not None and reshape.op_type == "Reshape" and [order[place] for place in perm] == [0, 1, 2, 3]:
            tokens, split = graph.shapes.get(reshape.input[0]), graph.shapes.get(reshape.output[0])
            if tokens and split and len(tokens) == 3 and split[2] == heads and split[:2] == tokens[:2]:
                return Tokens(reshape.input[0], head_dim)
    return Tokens(name, head_dim, perm)


def _is_layer(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is the result of a layer, of which what scales it is a part."""
    node = graph.producer.get(tensor)
    return node is not None and node.op_type in ("MatMul", "Gemm") and graph.constant(node.input[1]) is not None


def _scaled(graph: Graph, name: str) -> tuple[str, float]:
    """What a tensor is a constant multiple of, and the factor."""
    node = graph.producer.get(name)
    if node is not None and node.op_type in ("Mul", "Div"):
        for place in (0, 1) if node.op_type == "Mul" else (1,):
            factor = graph.scalar(node.input[place])
            if factor and not _is_layer(graph, node.input[1 - place]):
                return node.input[1 - place], factor if node.op_type == "Mul" else 1 / factor
    return name, 1.0


def attention_of_products(graph: Graph, node: onnx.NodeProto) -> Unit:
    """softmax(scale * queries x keys) x values, from its first product on."""
    require(all(len(graph.shapes.get(name) or []) == 4 for name in node.input), "its weights are not constant")
    nodes, tensor, scale = [node], node.output[0], 1.0
    after = graph.only_reader(tensor)
    if after is not None and after.op_type in ("Mul", "Div"):
        source, scale = _scaled(graph, after.output[0])
        require(source == tensor, "its product is no part of attention")
        nodes.append(after)
        after = graph.only_reader(after.output[0])
    require(
        after is not None and after.op_type == "Softmax" and graph.attributes(after)["axis"] in (-1, 3),
        "its product is no part of attention without a mask",
    )
    product = graph.only_reader(after.output[0])
    require(
        product is not None and product.op_type == "MatMul" and product.input[0] == after.output[0],
        "its product is no part of attention",
    )
    (query, first), (key, second) = (_scaled(graph, name) for name in node.input)
    shapes = [graph.shapes[query], graph.shapes[key], graph.shapes.get(product.input[1]) or []]
    heads, head_dim = shapes[0][1], shapes[0][3]
    require(isinstance(heads, int) and isinstance(head_dim, int), "its heads are not known")
    alike = all(len(shape) == 4 and shape[1] == heads for shape in shapes)
    require(alike, "its keys have other heads than its queries")
    value_dim = shapes[2][3]
    require(isinstance(value_dim, int), "the channels of its values are not known")
    tokens = [
        _tokens(graph, query, QUERY),
        _tokens(graph, key, KEY_TRANSPOSED),
        _tokens(graph, product.input[1], QUERY),
    ]
    operands = _Operands(tokens, heads, head_dim, value_dim, heads, shapes[0][2], shapes[1][3])
    nodes += [after, product, *_joined(graph, product.output[0], operands)]
    return _unit(graph, nodes, operands, False, scale * first * second)
