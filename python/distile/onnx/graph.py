"""A model's graph while it is rewritten: who makes and who reads each tensor, shapes and constants."""

from __future__ import annotations

import copy
import functools

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import constants

# The first opset whose operators broadcast as all later ones do. ONNX Runtime runs no older one.
OLDEST_OPSET = 7


def attributes(node: onnx.NodeProto) -> dict:
    """A node's attributes, with text as str."""
    return _values(node.attribute)


def _values(found) -> dict:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in found}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


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
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs]:
            for inner in body.node:
                yield from reads(inner)


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
    """A copy of a model with inferred shapes."""
    simpler = copy.deepcopy(model)
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


class Graph:
    """A copy of a model, with inferred shapes. Nodes stay in their order, and are known by their outputs."""

    def __init__(self, model: onnx.ModelProto):
        self.opset = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 0)
        if 0 < self.opset < OLDEST_OPSET:
            raise ValueError(
                f"the model's opset is {self.opset}, but must be {OLDEST_OPSET} or later: onnx.version_converter makes "
                "a later one of it"
            )
        self.model = _with_shapes(model)
        self.proto = self.model.graph
        self.nodes = list(self.proto.node)
        self._initializers = {tensor.name: tensor for tensor in self.proto.initializer}
        self._arrays: dict[str, np.ndarray] = {}
        self._new: list[onnx.TensorProto] = []
        self.inputs = {value.name for value in self.proto.input}
        self.outputs = {value.name for value in self.proto.output}
        self.shapes: dict[str, list] = {}
        self.types: dict[str, int] = {}
        for value in [*self.proto.input, *self.proto.value_info, *self.proto.output]:
            if value.type.HasField("tensor_type"):
                tensor = value.type.tensor_type
                self.types[value.name] = tensor.elem_type
                if tensor.HasField("shape"):
                    self.shapes[value.name] = [
                        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                        for dim in tensor.shape.dim
                    ]
        for tensor in self.proto.initializer:
            self.types[tensor.name], self.shapes[tensor.name] = tensor.data_type, list(tensor.dims)
        self.position = {id(node): place for place, node in enumerate(self.nodes)}
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)
        self._fixed = constants.fixed(self.nodes, set(self._initializers) - self.inputs, self.shapes)

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
        if name in self._initializers:
            return numpy_helper.to_array(self._initializers[name])
        node = self.producer[name]
        inputs = {source: self.constant(source) for source in node.input if source}
        if any(value is None for value in inputs.values()):
            return None
        return constants.value(node, inputs, list(node.output).index(name), self.model.opset_import)

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

    def add_constant(self, name: str, value: np.ndarray) -> str:
        """A new initializer; one of that name and value serves again."""
        if self._arrays.get(name) is None:
            self._arrays[name] = np.ascontiguousarray(value)
            self._new.append(numpy_helper.from_array(self._arrays[name], name))
        return name

    def add_shape(self, name: str, kind: int, shape: list) -> None:
        """Says the type and the shape of a new tensor."""
        self.types[name], self.shapes[name] = kind, shape
        self.proto.value_info.append(helper.make_tensor_value_info(name, kind, shape))

    def initializer(self, name: str) -> str:
        """A constant as an initializer."""
        if name in self._initializers:
            return name
        return self.add_constant(f"distile/{name}", self.constant(name))

    def finish(self, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
        """The model with these nodes, without those and the initializers that nothing reads."""
        needed, kept = set(self.outputs), []
        for node in reversed(nodes):
            if not node.output or any(name in needed for name in node.output):
                kept.append(node)
                needed.update(reads(node))
        del self.proto.node[:]
        self.proto.node.extend(reversed(kept))
        # The default of an input stays, or else the input becomes one that callers must give.
        tensors = [
            tensor
            for tensor in [*self.proto.initializer, *self._new]
            if tensor.name in needed or tensor.name in self.inputs
        ]
        del self.proto.initializer[:]
        self.proto.initializer.extend(tensors)
        made = {name for node in kept for name in node.output}
        values = [value for value in self.proto.value_info if value.name in made]
        del self.proto.value_info[:]
        self.proto.value_info.extend(values)
        return self.model
