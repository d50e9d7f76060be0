"""Images in NHWC between masked operators: transposes at the ends of a chain only."""

from __future__ import annotations

import onnx
from onnx import helper

from .graph import Graph, attributes


# Operators that treat all elements alike.
ELEMENTWISE = {
    "Abs", "Add", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Swish", "Tanh",
}  # fmt: skip


class Layouts:
    """The NHWC forms of a graph's tensors, which keep their names in NCHW."""

    def __init__(self, graph: Graph, emit):
        self.graph, self.emit = graph, emit
        self._nhwc: dict[str, str] = {}

    def read(self, name: str) -> str:
        """A tensor's NHWC form."""
        if name not in self._nhwc:
            self.emit(helper.make_node("Transpose", [name], [self.write(name)], perm=[0, 2, 3, 1]))
        return self._nhwc[name]

    def write(self, name: str) -> str:
        """Where a tensor's NHWC form goes."""
        if name not in self._nhwc:
            self._nhwc[name] = f"{name}/nhwc"
            batch, channels, *size = self.graph.shapes[name]
            self.graph.add_shape(self._nhwc[name], self.graph.types[name], [batch, *size, channels])
        return self._nhwc[name]

    def written(self, name: str) -> None:
        """After the NHWC form exists: its NCHW form, which is dropped if nothing reads it."""
        self.emit(helper.make_node("Transpose", [self._nhwc[name]], [name], perm=[0, 3, 1, 2]))

    def keep(self, node: onnx.NodeProto) -> bool:
        """Emits a node on NHWC forms, if all its images have them and it does the same there."""
        concat = node.op_type == "Concat" and attributes(node).get("axis") in (1, -3)
        if node.domain or len(node.output) != 1 or not (concat or node.op_type in ELEMENTWISE):
            return False
        images = [name for name in node.input if self._is_image(name)]
        others = [name for name in node.input if name and name not in images]
        if not images or any(name not in self._nhwc for name in images):
            return False
        shapes = {tuple(self.graph.shapes[name]) for name in images}
        if any(self._elements(name) != 1 for name in others) or (not concat and len(shapes) > 1):
            return False
        output = node.output[0]
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        del moved.input[:]
        moved.input.extend(self._nhwc.get(name, name) if name in images else name for name in node.input)
        moved.output[0] = self.write(output)
        if concat:
            del moved.attribute[:]
            moved.attribute.append(helper.make_attribute("axis", 3))
        self.emit(moved)
        self.written(output)
        return True

    def _is_image(self, name: str) -> bool:
        return len(self.graph.shapes.get(name) or ()) == 4 and self.graph.constant(name) is None

    def _elements(self, name: str) -> int | None:
        value = self.graph.constant(name)
        return None if value is None else value.size
