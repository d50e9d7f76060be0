"""Nodes of standard operators in the form of a model's opset."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from .graph import Graph


def _with_axis(graph: Graph, op: str, source: str, axis: int, output: str) -> onnx.NodeProto:
    if graph.opset < 13:
        return helper.make_node(op, [source], [output], axes=[axis])
    axes = graph.add_constant(f"distile/axis_{axis}", np.array([axis], np.int64))
    return helper.make_node(op, [source, axes], [output])


def unsqueeze(graph: Graph, source: str, axis: int, output: str) -> onnx.NodeProto:
    return _with_axis(graph, "Unsqueeze", source, axis, output)


def squeeze(graph: Graph, source: str, axis: int, output: str) -> onnx.NodeProto:
    return _with_axis(graph, "Squeeze", source, axis, output)
