"""Constants that a graph computes: what nodes make of initializers before the model runs."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

# Operators that exporters put between weights and their use. Quantized tensors stay such, so that layers are known as
# quantized, and what could take long is not computed here.
FOLDED = {
    "Abs", "Add", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Exp", "Expand", "Flatten", "Gather",
    "Identity", "MatMul", "Mul", "Neg", "Pad", "Pow", "Range", "Reciprocal", "ReduceL2", "ReduceMean", "ReduceSum",
    "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip

LARGEST = 1 << 27  # Elements of a result.


def fixed(nodes: list[onnx.NodeProto], initializers: set[str], shapes: dict[str, list]) -> set[str]:
    """The tensors that only depend on initializers which no caller may replace."""
    known = set(initializers)
    for node in nodes:
        folded = node.op_type in FOLDED and node.domain in ("", "ai.onnx")
        if folded and all(name in known for name in node.input if name):
            known.update(name for name in node.output if name and _size(shapes.get(name)) <= LARGEST)
    return known


def _size(shape: list | None) -> int:
    return math.prod(extent for extent in shape or [] if isinstance(extent, int))


def value(node: onnx.NodeProto, inputs: dict[str, np.ndarray], place: int, opsets) -> np.ndarray | None:
    """One of the results of a node; None if ONNX's reference lacks the operator in this form."""
    given = [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in inputs]
    wanted = [helper.make_tensor_value_info(node.output[place], onnx.TensorProto.UNDEFINED, None)]
    model = helper.make_model(helper.make_graph([node], "constant", given, wanted), opset_imports=opsets)
    try:
        (result,) = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # The reference raises errors of many types, and then the tensor is no known constant.
        return None
    return result if isinstance(result, np.ndarray) else np.asarray(result)
