"""Images in NHWC between masked operators: transposes at the ends of a chain only."""

from __future__ import annotations

import onnx
from onnx import helper

from .affine import ARITHMETIC
from .graph import Graph
from .unit import TYPES
from .upsampling import nearest, nearest_scales

# Operators that treat all elements alike.
ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "DequantizeLinear", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "QuantizeLinear", "Relu", "Sigmoid", "Softplus",
    "Sqrt", "Sub", "Swish", "Tanh",
}  # fmt: skip


class Layouts:
    """The NHWC forms of a graph's tensors, which keep their names in NCHW."""

    def __init__(self, graph: Graph, emit):
        self.graph, self.emit = graph, emit
        self._nhwc: dict[str, str] = {}

    def has(self, name: str) -> bool:
        """Whether a tensor has an NHWC form already."""
        return name in self._nhwc

    def read(self, name: str) -> str:
        """A tensor's NHWC form."""
        if name not in self._nhwc:
            self.emit(helper.make_node("Transpose", [name], [self.write(name)], perm=[0, 2, 3, 1]))
        return self._nhwc[name]

    def write(self, name: str) -> str:
        """Where a tensor's NHWC form goes."""
        if name not in self._nhwc:
            self._nhwc[name] = self.graph.fresh(f"{name}/nhwc")
            batch, channels, *size = self.graph.shapes[name]
            self.graph.add_shape(self._nhwc[name], self.graph.types[name], [batch, *size, channels])
        return self._nhwc[name]

    def written(self, name: str) -> None:
        """After the NHWC form exists: its NCHW form, which is dropped if nothing reads it."""
        self.emit(helper.make_node("Transpose", [self._nhwc[name]], [name], perm=[0, 3, 1, 2]))

    def keep(self, node: onnx.NodeProto) -> bool:
        """Emits a node on NHWC forms, if its images have them and it does the same there."""
        if node.domain or len(node.output) != 1 or len(self.graph.shapes.get(node.output[0]) or ()) != 4:
            return False
        moved = self._pooled(node) or self._upsampled(node) or self._elementwise(node)
        if moved is None:
            return False
        moved.output[0] = self.write(node.output[0])
        self.emit(moved)
        self.written(node.output[0])
        return True

    def _pooled(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The pooling of whole images."""
        op = self._global_pooling(node)
        if op is None or node.input[0] not in self._nhwc or self.graph.types.get(node.input[0]) not in TYPES:
            return None
        name = self.graph.name_of(node)
        return helper.make_node(op, [self._nhwc[node.input[0]]], [""], name, domain="distile", layout="NHWC")

    def _global_pooling(self, node: onnx.NodeProto) -> str | None:
        if node.op_type != "ReduceMean":
            names = {"GlobalAveragePool": "MaskedGlobalAveragePool", "GlobalMaxPool": "MaskedGlobalMaxPool"}
            return names.get(node.op_type)
        values = self.graph.attributes(node)
        axes = self.graph.constant(node.input[1]) if len(node.input) > 1 else values.get("axes")
        whole = axes is not None and sorted(axis % 4 for axis in axes) == [2, 3]
        return "MaskedGlobalAveragePool" if whole and values.get("keepdims", 1) else None

    def _upsampled(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        scales = nearest_scales(self.graph, node) if node.input and node.input[0] in self._nhwc else None
        if not scales:
            return None
        return nearest(self.graph, self._nhwc[node.input[0]], scales, "", node.name)

    def _elementwise(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        concat = node.op_type == "Concat" and self.graph.attributes(node).get("axis") in (1, -3)
        if not (concat or node.op_type in ELEMENTWISE):
            return None
        images = [name for name in node.input if self._is_image(name)]
        # Images of one pixel are small, so they are transposed where they lack the form.
        large = [name for name in images if concat or self.graph.shapes[name][2:] != [1, 1]]
        if not large or any(name not in self._nhwc for name in large):
            return None
        if not concat and len({tuple(self.graph.size(name)) for name in large}) > 1:
            return None
        forms = {}
        for name in node.input:
            if name and name not in images:
                forms[name] = self._constant(name, node, large[0])
                if forms[name] is None:
                    return None
        forms.update((name, self.read(name)) for name in images)
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        del moved.input[:]
        moved.input.extend(forms.get(name, name) for name in node.input)
        if concat:
            del moved.attribute[:]
            moved.attribute.append(helper.make_attribute("axis", 3))
        return moved

    def _constant(self, name: str, node: onnx.NodeProto, images: str) -> str | None:
        """A constant that serves all elements, or one with an element for each channel; None if it is neither."""
        value = self.graph.constant(name)
        if value is not None and value.size == 1:
            return name
        channels = self.graph.shapes[images][1]
        vector = self.graph.per_channel(name, 4, 1, channels) if node.op_type in ARITHMETIC else None
        return None if vector is None else self.graph.add_constant(f"{name}/nhwc", vector)

    def _is_image(self, name: str) -> bool:
        return len(self.graph.shapes.get(name) or ()) == 4 and self.graph.constant(name) is None
