"""The layers of an ONNX model whose weights `python -m distile prune` sets to 0."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .graph import attributes
from .sparse import with_dense_constants

TYPES = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}


@dataclasses.dataclass
class Layer:
    """A layer with constant weights, in a model that keeps them."""

    name: str
    tensor: TensorProto
    inputs_first: bool  # Whether the weights are [input channels, output channels].

    @property
    def filter(self) -> np.ndarray:
        """The weights, [output channels, input channels, ...] in float32. Raises ValueError if one is no number."""
        weights = numpy_helper.to_array(self.tensor).astype(np.float32)
        if not np.isfinite(weights).all():
            raise ValueError(f"a weight of the node '{self.name}' is no finite number of float32")
        return weights.T if self.inputs_first else weights

    def leave_out(self, where: np.ndarray) -> None:
        """Sets weights to 0, where they are as in `filter`."""
        weights = numpy_helper.to_array(self.tensor).copy()
        weights[where.T if self.inputs_first else where] = 0
        self.tensor.CopyFrom(numpy_helper.from_array(weights, self.tensor.name))


def layers_of(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Layer]]:
    """The model with its sparse constants made dense, and its convolutions that are not depthwise and its linear layers
    with constant weights of a floating-point type, each of the weights once."""
    model = with_dense_constants(model)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    layers: dict[str, Layer] = {}
    for node in model.graph.node:
        tensor = tensors.get(node.input[1]) if len(node.input) > 1 and node.domain in ("", "ai.onnx") else None
        inputs_first = None if tensor is None else _inputs_first(node, tensor)
        if inputs_first is not None:
            layers.setdefault(node.input[1], Layer(node.name or node.output[0], tensor, inputs_first))
    return model, list(layers.values())


def _inputs_first(node: onnx.NodeProto, weights: TensorProto) -> bool | None:
    """Whether the input channels are the first dimension of a layer's weights; None for other nodes."""
    if weights.data_type not in TYPES:
        return None
    if node.op_type == "Conv" and len(weights.dims) == 4:
        return None if attributes(node).get("group", 1) >= max(2, weights.dims[0]) else False
    if node.op_type in ("Gemm", "MatMul") and len(weights.dims) == 2:
        return not (node.op_type == "Gemm" and attributes(node).get("transB", 0))
    return None
