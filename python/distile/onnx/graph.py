"""A model's graph while it is rewritten: who makes and who reads each tensor, shapes and constants."""

from __future__ import annotations

import functools
import pathlib

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import constants
from .sparse import with_dense_constants
from .weights import array_of, without_weights

# The first opset whose operators broadcast as all later ones do. ONNX Runtime runs no older one.
OLDEST_OPSET = 7


def attributes(node: onnx.NodeProto) -> dict:
    """A node's attributes, with text as str."""
    return _values(node.attribute)


def _values(found) -> dict:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in found}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs that a node of control flow runs."""
    return [body for attribute in node.attribute
            for body in ([attribute.g] if attribute.HasField("g") else attribute.graphs)]  # fmt: skip


def nodes_in(body: onnx.GraphProto):
    """The nodes of a graph, those in the bodies of control flow included."""
    for node in body.node:
        yield node
        for inner in bodies_of(node):
            yield from nodes_in(inner)


@functools.cache
def _defaults(op: str, opset: int, domain: str) -> dict:
    """The attributes that an operator has where its node does not say them."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    defaults = (attribute.default_value for attribute in schema.attributes.values())
    return _values(default for default in defaults if default.type)


def reads(node: onnx.NodeProto):
    """The tensors that a node reads, those in the bodies of control flow included."""
    yield from node.input
    for body in bodies_of(node):
        for inner in nodes_in(body):
            yield from inner.input


# Operators whose shapes ONNX does not infer, most of them of ONNX Runtime, and those that give the same shape and type
# with some of the inputs.
SIMPLER = {
    "QLinearAdd": ("Add", slice(0, 4, 3)),
    "QLinearMul": ("Mul", slice(0, 4, 3)),
    "QLinearSigmoid": ("Identity", slice(0, 1)),
    "QLinearLeakyRelu": ("Identity", slice(0, 1)),
    "QLinearSoftmax": ("Identity", slice(0, 1)),
    "QLinearConcat": ("Concat", slice(2, None, 3)),
    "QLinearAveragePool": ("AveragePool", slice(0, 1)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", slice(0, 1)),
    "QGemm": ("Gemm", slice(0, 4, 3)),
    "GroupNormalization": ("Identity", slice(0, 1)),
}


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model without large weights, and with inferred shapes."""
    simpler = without_weights(model)
    for node in simpler.graph.node:
        if node.op_type in SIMPLER:
            op, places = SIMPLER[node.op_type]
            inputs = list(node.input)[places]
            node.op_type, node.domain = op, ""
            del node.input[:]
            node.input.extend(inputs)
            if op == "Identity":
                del node.attribute[:]
    inferred = onnx.shape_inference.infer_shapes(simpler, data_prop=True)
    for node, original in zip(inferred.graph.node, model.graph.node):
        node.CopyFrom(original)
    return _with_fixed_initializers(inferred)


def _with_fixed_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Before IR version 4, initializers are inputs too, but ONNX Runtime takes no other values for them. Since then,
    such an input has a default that a caller may replace."""
    if model.ir_version < 4:
        names = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in names]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = 4
    return model


def _shape(value: onnx.ValueInfoProto) -> list | None:
    """Extents, their names, or None where neither is known; None if the rank is not."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    ]


def extents_of(graph: onnx.GraphProto) -> dict[str, list]:
    """The shapes that a graph says of its tensors, as _shape() has them."""
    shapes = {value.name: _shape(value) for value in [*graph.input, *graph.value_info, *graph.output]}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def bound(graph: Graph, inputs: dict[str, list[int]], names: dict[str, int]) -> dict[str, list]:
    """The shapes of all tensors where inputs have these, and extents with names these values."""
    model = without_weights(graph.model)
    for value in model.graph.input:
        if inputs.get(value.name):
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, inputs[value.name]))
    for value in [*model.graph.value_info, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_value = names[dim.dim_param]
            elif not dim.HasField("dim_value"):
                dim.Clear()
    proto = _with_shapes(model).graph
    shapes = {value.name: _shape(value) for value in [*proto.input, *proto.value_info, *proto.output]}
    shapes.update((tensor.name, list(tensor.dims)) for tensor in proto.initializer)
    return {
        name: [extent if isinstance(extent, int) else None for extent in shape]
        for name, shape in shapes.items()
        if shape is not None
    }


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Graph:
    """A copy of a model, with inferred shapes. Nodes stay in their order, and are known by their outputs."""

    def __init__(self, model: onnx.ModelProto, folder: str | pathlib.Path = ""):
        """`folder`: that of the files which the model keeps weights in."""
        self.folder = folder
        model = with_dense_constants(model, folder)
        self.opset = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 0)
        if 0 < self.opset < OLDEST_OPSET:
            raise ValueError(
                f"the model's opset is {self.opset}, but must be {OLDEST_OPSET} or later: onnx.version_converter makes "
                "a later one of it"
            )
        self.model = _with_shapes(model)
        self.proto = self.model.graph
        self.nodes = list(self.proto.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._arrays: dict[str, np.ndarray] = {}
        self._new: dict[str, onnx.TensorProto] = {}
        self.inputs = {value.name for value in self.proto.input}
        self.outputs = {value.name for value in self.proto.output}
        self.shapes: dict[str, list] = {}
        self.types: dict[str, int] = {}
        for value in [*self.proto.input, *self.proto.value_info, *self.proto.output]:
            if value.type.HasField("tensor_type"):
                self.types[value.name] = value.type.tensor_type.elem_type
            shape = _shape(value)
            if shape is not None:
                self.shapes[value.name] = shape
        for tensor in self.initializers.values():
            self.types[tensor.name], self.shapes[tensor.name] = tensor.data_type, list(tensor.dims)
        self.made: dict[str, str] = {}  # The tensors that new nodes make once, by what they are.
        self.sizes: dict[str, list[int]] = {}  # The shapes of an example.
        self.position = {id(node): place for place, node in enumerate(self.nodes)}
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self._names = {*self.types, *self.initializers, *self.producer, *(node.name for node in self.nodes)}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)
        self._fixed = constants.fixed(self.nodes, set(self.initializers) - self.inputs, self.shapes)

    def readers(self, name: str) -> list[onnx.NodeProto]:
        return self._readers.get(name, [])

    def only_reader(self, name: str) -> onnx.NodeProto | None:
        """The node that alone reads a tensor, and once; None if there are others, or it is an output of the model."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def name_of(self, node: onnx.NodeProto) -> str:
        return node.name or node.output[0]

    def attributes(self, node: onnx.NodeProto) -> dict:
        """A node's attributes, with text as str, and the defaults of the model's opset."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        return {**_defaults(node.op_type, self.opset, domain), **attributes(node)}

    def constant(self, name: str) -> np.ndarray | None:
        """The value of an initializer that no caller may replace, of a Constant node, or of nodes that only read such
        constants."""
        if name not in self._arrays and name in self._fixed:
            self._arrays[name] = self._evaluated(name)
        return self._arrays.get(name)

    def _evaluated(self, name: str) -> np.ndarray | None:
        if name in self.initializers:
            return array_of(self.initializers[name], self.folder)
        node = self.producer[name]
        inputs = {source: self.constant(source) for source in node.input if source}
        if any(value is None for value in inputs.values()):
            return None
        return constants.value(node, inputs, list(node.output).index(name), self.model.opset_import)

    def size(self, name: str) -> list | None:
        """A tensor's shape in an example, or else as far as it is known: it is equal where shapes are, also those whose
        extents the model leaves open."""
        return self.sizes.get(name) or self.shapes.get(name)

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element."""
        value = self.constant(name) if name else None
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def per_channel(self, name: str, rank: int, axis: int, channels: int) -> np.ndarray | None:
        """A constant that a tensor of this rank meets with one element for each channel, or with one for all."""
        value = self.constant(name)
        if value is None or value.ndim > rank:
            return None
        shape = [1] * (rank - value.ndim) + list(value.shape)
        others = [extent for place, extent in enumerate(shape) if place != axis % rank]
        if any(extent != 1 for extent in others) or shape[axis] not in (1, channels):
            return None
        return np.broadcast_to(value.reshape(-1), (channels,))

    def fresh(self, name: str) -> str:
        """A name that no tensor and no node has, nor gets after this: this one, or with a number behind it."""
        found, count = name, 1
        while found in self._names:
            found, count = f"{name}_{count}", count + 1
        self._names.add(found)
        return found

    def add_constant(self, name: str, value: np.ndarray) -> str:
        """A new initializer, with this name or one like it; one of that name and value serves again."""
        if name in self._new and _equal(self._arrays[name], value):
            return name
        name = self.fresh(name)
        self._arrays[name] = np.asarray(value, order="C")
        self._new[name] = numpy_helper.from_array(self._arrays[name], name)
        return name

    def padding(self, source: str, output: str, amounts: list[int]) -> onnx.NodeProto:
        """A node that puts zeros before and behind the elements of a tensor along each axis, as the opset has it."""
        if self.opset < 11:
            return helper.make_node("Pad", [source], [output], pads=amounts)
        pads = self.add_constant("distile/pads_" + "_".join(map(str, amounts)), np.array(amounts, np.int64))
        return helper.make_node("Pad", [source, pads], [output])

    def add_shape(self, name: str, kind: int, shape: list) -> None:
        """Says the type and the shape of a new tensor."""
        self.types[name], self.shapes[name] = kind, shape
        self.proto.value_info.append(helper.make_tensor_value_info(name, kind, shape))

    def initializer(self, name: str) -> str:
        """A constant as an initializer."""
        if name in self.initializers:
            return name
        return self.add_constant(f"distile/{name}", self.constant(name))

    def finish(self, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
        """The model with these nodes, without those and the initializers that nothing reads."""
        needed, kept = set(self.outputs), []
        for node in reversed(nodes):
            if not node.output or any(name in needed for name in node.output):
                kept.append(node)
                needed.update(reads(node))
        self._name_apart(kept)
        del self.proto.node[:]
        self.proto.node.extend(reversed(kept))
        # The default of an input stays, or else the input becomes one that callers must give.
        tensors = [
            tensor
            for tensor in [*self.initializers.values(), *self._new.values()]
            if tensor.name in needed or tensor.name in self.inputs
        ]
        del self.proto.initializer[:]
        self.proto.initializer.extend(tensors)
        made = {name for node in kept for name in node.output}
        values = [value for value in self.proto.value_info if value.name in made]
        del self.proto.value_info[:]
        self.proto.value_info.extend(values)
        return self.model

    def _name_apart(self, nodes: list[onnx.NodeProto]) -> None:
        """Renames new nodes that are named as another node."""
        taken = {node.name for node in nodes if id(node) in self.position}
        for node in reversed(nodes):
            if id(node) in self.position or not node.name:
                continue
            name, count = node.name, 1
            while node.name in taken:
                node.name, count = f"{name}_{count}", count + 1
            taken.add(node.name)


class Nodes:
    """New nodes of a graph, each with one output and a name of its own."""

    def __init__(self, graph: Graph, emit):
        self._graph, self._emit = graph, emit
        self._constants: dict[tuple, str] = {}

    def add(self, op: str, *inputs: str, domain: str = "", **values) -> str:
        """Adds a node, and returns its output. `axes` are an attribute or an input, as the opset has them."""
        if "axes" in values and self._graph.opset >= 13:
            inputs = *inputs, self.constant(np.array(values.pop("axes"), np.int64))
        name = self._graph.fresh(f"distile/{op}")
        self._emit(helper.make_node(op, inputs, [name], name, domain=domain, **values))
        return name

    def constant(self, value: np.ndarray) -> str:
        """An initializer; equal ones are one."""
        value = np.asarray(value)
        key = value.dtype, value.shape, value.tobytes()
        if key not in self._constants:
            self._constants[key] = self._graph.add_constant("distile/constant", value)
        return self._constants[key]
