"""Nearest upsampling in graphs: Resize nodes as exporters write them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import helper

from .graph import Graph

# How Resize finds the pixel that it repeats. With integer scales, all of these are pixel y // scale.
REPEATING = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("half_pixel_symmetric", "round_prefer_floor"),
    ("half_pixel_symmetric", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}


@dataclasses.dataclass
class Upsampled:
    """What a tensor is the nearest upsampling of."""

    node: onnx.NodeProto
    input: str
    scales: list[int]


def upsampled(graph: Graph, tensor: str) -> Upsampled | None:
    """The nearest upsampling that makes a tensor for one node only; None if there is none."""
    node = graph.producer.get(tensor)
    scales = nearest_scales(graph, node) if node is not None and graph.only_reader(tensor) is not None else None
    return Upsampled(node, node.input[0], scales) if scales else None


def nearest_scales(graph: Graph, node: onnx.NodeProto) -> list[int] | None:
    """The factors of a node that repeats the rows and the columns of images; None if it does something else."""
    if node.op_type not in ("Resize", "Upsample"):
        return None
    values = graph.attributes(node)
    # Before opset 11, both have one way only.
    how = values.get("coordinate_transformation_mode", "asymmetric"), values.get("nearest_mode", "floor")
    policy = values.get("keep_aspect_ratio_policy", "stretch")
    if values.get("mode", "nearest") != "nearest" or how not in REPEATING or policy != "stretch" or "axes" in values:
        return None
    place = 2 if graph.opset >= 11 else 1
    given = graph.constant(node.input[place]) if len(node.input) > place and node.input[place] else None
    if given is not None and given.size:
        whole = len(given) == 4 and list(given[:2]) == [1, 1] and all(scale % 1 == 0 and scale >= 1 for scale in given)
        return [int(scale) for scale in given[2:]] if whole else None
    before, after = graph.shapes.get(node.input[0]) or [], graph.shapes.get(node.output[0]) or []
    if len(before) != 4 or len(after) != 4 or before[:2] != after[:2]:
        return None
    extents = [*before[2:], *after[2:]]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents):
        return None
    scales = [after[axis] // before[axis] for axis in (2, 3)]
    return scales if all(after[axis] == before[axis] * scales[axis - 2] for axis in (2, 3)) else None


def nearest(graph: Graph, images: str, scales: list[int], output: str, name: str) -> onnx.NodeProto:
    """A node that repeats the rows and the columns of images in NHWC, in the form of the model's opset."""
    extents = [1.0, *map(float, scales), 1.0]
    if graph.opset < 9:
        return helper.make_node("Upsample", [images], [output], name, mode="nearest", scales=extents)
    factors = graph.add_constant(f"distile/upsample_{scales[0]}x{scales[1]}", np.array(extents, np.float32))
    if graph.opset < 11:
        op = "Resize" if graph.opset == 10 else "Upsample"
        return helper.make_node(op, [images, factors], [output], name, mode="nearest")
    # Before opset 13, the region of interest must be there.
    region = "" if graph.opset >= 13 else graph.add_constant("distile/no_region", np.zeros(0, np.float32))
    how = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return helper.make_node("Resize", [images, region, factors], [output], name, **how)
