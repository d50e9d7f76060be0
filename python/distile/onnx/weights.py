"""Models whose weights are larger than a protocol buffer may be, 2 GB: they lie in a file beside the model's."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, helper, numpy_helper

SMALL = 1 << 10  # Bytes up to which a tensor stays in the model.
LARGEST_MODEL = 1 << 30  # Bytes of a model that is one file.
PIECE = 1 << 24  # Bytes of weights that are in memory while they are copied.
PAGE = 4096  # Weights begin at pages, which ONNX Runtime maps.
_MAPPED = {
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
}


def bytes_of(tensor: TensorProto) -> int:
    """The size of a tensor's elements."""
    return int(np.prod(tensor.dims, dtype=np.int64)) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def is_external(tensor: TensorProto) -> bool:
    return external_data_helper.uses_external_data(tensor)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model, in which large initializers have a type and a shape but no elements."""
    bare = onnx.ModelProto()
    _copy_fields(model, bare, "graph")
    _copy_fields(model.graph, bare.graph, "initializer")
    bare.graph.initializer.extend(_without_elements(tensor) for tensor in model.graph.initializer)
    return bare


def _copy_fields(source, target, but: str) -> None:
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, (str, bytes, int, float)):
            setattr(target, field.name, value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            getattr(target, field.name).extend(value)


def _without_elements(tensor: TensorProto) -> TensorProto:
    if is_external(tensor) or bytes_of(tensor) <= SMALL:
        return tensor
    bare = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    bare.data_location = TensorProto.EXTERNAL
    bare.external_data.add(key="location", value="none")
    return bare


def check(model: onnx.ModelProto) -> None:
    """Checks all of a model but the elements of large weights. Raises onnx.checker.ValidationError."""
    bare = without_weights(model)
    inputs = {value.name for value in bare.graph.input}
    tensors = list(bare.graph.initializer)
    del bare.graph.initializer[:]
    for tensor in tensors:
        if not is_external(tensor):
            bare.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            bare.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.checker.check_model(bare)


def array_of(tensor: TensorProto, folder: str | pathlib.Path) -> np.ndarray:
    """The elements of a tensor. Those in a file are read as they are used."""
    if not is_external(tensor):
        return numpy_helper.to_array(tensor)
    where = external_data_helper.ExternalDataInfo(tensor)
    if tensor.data_type in _MAPPED and all(tensor.dims):
        kind, path = helper.tensor_dtype_to_np_dtype(tensor.data_type), pathlib.Path(folder, where.location)
        return np.memmap(path, kind, "r", where.offset or 0, tuple(tensor.dims))
    loaded = TensorProto()
    loaded.CopyFrom(tensor)
    return numpy_helper.to_array(loaded, str(folder))


def load(path: str | pathlib.Path, whole: bool = False) -> onnx.ModelProto:
    """A model whose weights stay in their files, of which only small tensors, such as shapes, are read; or a `whole`
    one. Raises ValueError for a file that holds none."""
    try:
        model = onnx.load(path, load_external_data=whole)
    except DecodeError as error:
        raise ValueError(f"{path} holds no ONNX model: {error}") from None
    for tensor in model.graph.initializer:
        if is_external(tensor) and bytes_of(tensor) <= SMALL:
            external_data_helper.load_external_data_for_tensor(tensor, str(pathlib.Path(path).parent))
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    return model


def save(
    model: onnx.ModelProto, path: str | pathlib.Path, folder: str | pathlib.Path = "", largest=LARGEST_MODEL
) -> None:
    """Writes a model, and if it is larger than `largest` bytes or has weights in files in `folder`, the weights into
    `path`.data, one after the other. Then the model has none but names those in this file."""
    path, tensors = pathlib.Path(path), model.graph.initializer
    if not any(map(is_external, tensors)) and sum(map(bytes_of, tensors)) <= largest:
        onnx.save(model, path)
        return
    data = path.with_name(f"{path.name}.data")
    sources = {pathlib.Path(folder, external_data_helper.ExternalDataInfo(tensor).location).resolve()
               for tensor in tensors if is_external(tensor)}  # fmt: skip
    if data.resolve() in sources:
        raise ValueError(f"the weights are read from {data}, which would be written: give the result another name")
    with data.open("wb") as file:
        for tensor in tensors:
            if is_external(tensor) or bytes_of(tensor) > SMALL:
                _move(tensor, folder, file, data.name)
    onnx.save(model, path)


def _move(tensor: TensorProto, folder, file, name: str) -> None:
    """Writes a tensor's elements to the end of a file, and leaves their place there in it."""
    offset = -(-file.tell() // PAGE) * PAGE
    file.seek(offset)
    if is_external(tensor):
        _copy(tensor, folder, file)
    elif tensor.HasField("raw_data"):
        file.write(tensor.raw_data)
    else:
        file.write(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)
    moved = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    moved.data_location = TensorProto.EXTERNAL
    entries = {"location": name, "offset": offset, "length": file.tell() - offset}
    for key, value in entries.items():
        moved.external_data.add(key=key, value=str(value))
    tensor.CopyFrom(moved)


def _copy(tensor: TensorProto, folder, file) -> None:
    where = external_data_helper.ExternalDataInfo(tensor)
    with pathlib.Path(folder, where.location).open("rb") as source:
        source.seek(where.offset or 0)
        left = where.length
        while left is None or left > 0:
            piece = source.read(PIECE if left is None else min(PIECE, left))
            if not piece:
                break
            file.write(piece)
            left = None if left is None else left - len(piece)
