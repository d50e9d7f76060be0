"""Constants that a model stores as sparse tensors: ONNX Runtime makes them dense, and so does the converter."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from .weights import array_of, is_external


def with_dense_constants(model: onnx.ModelProto, folder: str | pathlib.Path = "") -> onnx.ModelProto:
    """A copy of a model in which sparse initializers are dense ones, and Constant nodes with a sparse value have a
    dense one; the model itself if it has neither. Raises ValueError for malformed sparse tensors."""
    if not model.graph.sparse_initializer and all(_sparse_value(node) is None for node in model.graph.node):
        return model
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    del dense.graph.sparse_initializer[:]
    dense.graph.initializer.extend(
        dense_tensor(tensor, tensor.values.name, folder) for tensor in model.graph.sparse_initializer
    )
    for node in dense.graph.node:
        value = _sparse_value(node)
        if value is not None:
            name = node.output[0]
            node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", dense_tensor(value, name, folder)))
    return dense


def _sparse_value(node: onnx.NodeProto) -> onnx.SparseTensorProto | None:
    found = [attribute for attribute in node.attribute if attribute.name == "sparse_value"]
    return found[0].sparse_tensor if node.op_type == "Constant" and found else None


def dense_tensor(tensor: onnx.SparseTensorProto, name: str, folder: str | pathlib.Path = "") -> onnx.TensorProto:
    """A sparse tensor with all its elements. Its indices are numbers of elements, [nonzeros], or coordinates,
    [nonzeros, rank]. Raises ValueError if they are not in ascending order, twice the same or outside the tensor."""
    loaded = onnx.SparseTensorProto()
    loaded.CopyFrom(tensor)
    for part in (loaded.values, loaded.indices):
        if is_external(part):
            external_data_helper.load_external_data_for_tensor(part, str(folder))
            part.data_location = onnx.TensorProto.DEFAULT
            del part.external_data[:]
    try:
        onnx.checker.check_sparse_tensor(loaded)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"the sparse constant '{name}' is malformed: {error}") from None
    values, indices = array_of(loaded.values, folder), array_of(loaded.indices, folder)
    elements = np.zeros(tuple(tensor.dims), values.dtype)
    if indices.ndim == 1:
        elements.reshape(-1)[indices] = values
    else:
        elements[tuple(indices.T)] = values
    return numpy_helper.from_array(elements, name)
