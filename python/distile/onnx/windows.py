"""The windows of convolutions and pooling, with their padding in numbers."""

from __future__ import annotations

import onnx

from .graph import Graph
from .unit import require

SAME = ("SAME_UPPER", "SAME_LOWER")


def window_of(graph: Graph, node: onnx.NodeProto, kernel) -> dict:
    """The attributes of a node's window with their defaults: pads are top, left, bottom, right."""
    values = graph.attributes(node)
    window = {
        "kernel_shape": list(kernel),
        "strides": list(values.get("strides", [1, 1])),
        "dilations": list(values.get("dilations", [1, 1])),
    }
    window["pads"] = _pads(graph, node, values, window)
    require(min(window["pads"]) >= 0, "its padding is negative")
    return window


def reach_of(window: dict, axis: int) -> int:
    """The pixels between the first and the last that a window reads, both included."""
    return window["dilations"][axis] * (window["kernel_shape"][axis] - 1) + 1


def _pads(graph: Graph, node: onnx.NodeProto, values: dict, window: dict) -> list[int]:
    auto = values.get("auto_pad", "NOTSET")
    if node.op_type == "ConvTranspose" and (auto in SAME or "output_shape" in values):
        totals = [_total_transposed(graph, node, values, window, axis) for axis in (0, 1)]
    elif auto in SAME:
        totals = [_total(graph, node, window, axis) for axis in (0, 1)]
    elif auto == "VALID":
        return [0, 0, 0, 0]
    else:
        return list(values.get("pads", [0, 0, 0, 0]))
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return less + more if auto == "SAME_UPPER" else more + less


def _extent(graph: Graph, node: onnx.NodeProto, axis: int) -> int | None:
    shape = graph.shapes.get(node.input[0])
    extent = shape[2 + axis] if shape and len(shape) == 4 else None
    return extent if isinstance(extent, int) else None


def _total(graph: Graph, node: onnx.NodeProto, window: dict, axis: int) -> int:
    """The padding with which an axis has an output for each step into the input."""
    step, reach = window["strides"][axis], reach_of(window, axis)
    if step == 1:
        return reach - 1
    extent = _extent(graph, node, axis)
    require(extent is not None, "it has auto_pad and strides, and the extents of its input are not known")
    return max((-(-extent // step) - 1) * step + reach - extent, 0)


def _total_transposed(graph: Graph, node: onnx.NodeProto, values: dict, window: dict, axis: int) -> int:
    """The padding with which an axis of a transposed convolution has as many outputs as `output_shape` says, or as many
    for each input as a step has."""
    step = window["strides"][axis]
    total = reach_of(window, axis) + values.get("output_padding", [0, 0])[axis] - step
    if "output_shape" not in values:
        return total
    extent = _extent(graph, node, axis)
    require(extent is not None, "it has output_shape, and the extents of its input are not known")
    return total + extent * step - values["output_shape"][-2:][axis]


def with_ceil_mode(graph: Graph, node: onnx.NodeProto, window: dict) -> dict:
    """The window of pooling whose last windows may begin inside and end outside of the padded input: with padding up to
    their end."""
    size, pads = (graph.shapes.get(node.output[0]) or [])[2:4], list(window["pads"])
    for axis, extent in enumerate(size):
        inner = _extent(graph, node, axis)
        require(isinstance(extent, int) and inner is not None, "it has ceil_mode, and its extents are not known")
        last = (extent - 1) * window["strides"][axis]
        require(last < inner + pads[axis], "its last window begins behind its input, which opsets count differently")
        padded = inner + pads[axis] + pads[2 + axis]
        pads[2 + axis] += max(last + reach_of(window, axis) - padded, 0)
    require(len(size) == 2, "it has ceil_mode, and its extents are not known")
    return {**window, "pads": pads}
