"""Attention in graphs: nodes of it, and the products and the softmax that exporters write."""

from __future__ import annotations

import onnx

from .graph import Graph, attributes
from .unit import Heads, Unit, dtype_of, require

QUERY, KEY_TRANSPOSED = [0, 2, 1, 3], [0, 3, 1, 2]


def _unit(graph: Graph, nodes, inputs, heads: int, head_dim: int, causal: bool, scale: float, key_tokens) -> Unit:
    require(head_dim % 8 == 0, "the channels of a head are not a multiple of 8")
    require(isinstance(key_tokens, int), "the number of its keys is not known")
    return Unit(
        "MaskedAttention",
        nodes,
        inputs,
        {"num_heads": heads, "head_dim": head_dim, "is_causal": int(causal), "scale": scale},
        False,
        dtype_of(graph, nodes[-1].output[0]),
        "masked_attention",
        {"heads": heads, "head_dim": head_dim, "causal": causal},
        key_tokens,
    )


def attention_node(graph: Graph, node: onnx.NodeProto) -> Unit:
    """An Attention node of ONNX, or MultiHeadAttention of ONNX Runtime."""
    values = attributes(node)
    contrib = node.op_type == "MultiHeadAttention"
    require(contrib or node.domain != "com.microsoft", "this Attention has no masked form")
    require(len([name for name in node.input if name]) == 3, "it has a mask, a bias or a cache")
    require(len([name for name in node.output if name]) == 1, "it has more than one output")
    require(not values.get("softcap", 0.0) and not values.get("qk_matmul_output_mode", 0), "it has a softcap or scores")
    causal = bool(values.get("unidirectional" if contrib else "is_causal", 0))
    scale = values.get("scale", 0.0)
    shape, key_shape = (graph.shapes.get(name) or [] for name in node.input[:2])
    if len(shape) == 4:
        require(shape[1] == key_shape[1], "its keys have other heads than its queries")
        nodes = [node, *_joined(graph, node.output[0])]
        inputs = [_tokens(graph, name, QUERY) for name in node.input[:3]]
        return _unit(graph, nodes, inputs, shape[1], shape[3], causal, scale, key_shape[2])
    require(len(shape) == 3 and isinstance(shape[2], int), "its queries are not [N, T, C] with known channels")
    heads = values.get("num_heads" if contrib else "q_num_heads", 0)
    require(heads and values.get("kv_num_heads", heads) == heads, "its keys have other heads than its queries")
    inputs = list(node.input[:3])
    return _unit(graph, [node], inputs, heads, shape[2] // heads, causal, scale, key_shape[1] if key_shape else None)


def _joined(graph: Graph, name: str) -> list[onnx.NodeProto]:
    """The nodes that make tokens [N, T, C] of a result [N, heads, T, head_dim]."""
    transpose = graph.only_reader(name)
    good = transpose is not None and transpose.op_type == "Transpose" and attributes(transpose).get("perm") == QUERY
    reshape = graph.only_reader(transpose.output[0]) if good else None
    good = reshape is not None and reshape.op_type == "Reshape"
    shape, result = graph.shapes.get(name), graph.shapes.get(reshape.output[0]) if good else None
    good = good and result is not None and result[1:] == [shape[2], shape[1] * shape[3]]
    require(good, "its result does not become [N, T, C] next")
    return [transpose, reshape]


def _tokens(graph: Graph, name: str, perm: list[int]) -> str | Heads:
    """The tokens [N, T, C] from which [N, heads, T, head_dim] was made, or what makes such tokens of it."""
    node = graph.producer.get(name)
    heads = graph.shapes[name][1]
    if node is not None and node.op_type == "Transpose":
        order = attributes(node).get("perm")
        reshape = graph.producer.get(node.input[0])
        if reshape is not None and reshape.op_type == "Reshape" and [order[place] for place in perm] == [0, 1, 2, 3]:
            tokens, split = graph.shapes.get(reshape.input[0]), graph.shapes.get(reshape.output[0])
            if tokens and split and len(tokens) == 3 and split[2] == heads and split[:2] == tokens[:2]:
                return reshape.input[0]
    return Heads(name, perm)


def _scaled(graph: Graph, name: str) -> tuple[str, float]:
    """What a tensor is a constant multiple of, and the factor."""
    node = graph.producer.get(name)
    if node is not None and node.op_type in ("Mul", "Div"):
        for place in (0, 1) if node.op_type == "Mul" else (1,):
            factor = graph.scalar(node.input[place])
            if factor:
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
        after is not None and after.op_type == "Softmax" and attributes(after).get("axis", -1) in (-1, 3),
        "its product is no part of attention without a mask",
    )
    product = graph.only_reader(after.output[0])
    require(
        product is not None and product.op_type == "MatMul" and product.input[0] == after.output[0],
        "its product is no part of attention",
    )
    (query, first), (key, second) = (_scaled(graph, name) for name in node.input)
    nodes += [after, product, *_joined(graph, product.output[0])]
    shape = graph.shapes[query]
    require(isinstance(shape[1], int) and isinstance(shape[3], int), "its heads are not known")
    inputs = [
        _tokens(graph, query, QUERY),
        _tokens(graph, key, KEY_TRANSPOSED),
        _tokens(graph, product.input[1], QUERY),
    ]
    return _unit(graph, nodes, inputs, shape[1], shape[3], False, scale * first * second, graph.shapes[key][3])
