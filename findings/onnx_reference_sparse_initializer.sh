#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator cannot load a model with sparse initializers.
#
# The guess: onnx.reference is slow, but computes every model that the checker passes, so that it serves as the oracle for
# pruned weights stored as sparse initializers. It has a class for sparse tensors.
# What happens instead: its constructor ends in a ValueError about a field, "data_location", that a sparse tensor's message
# does not have. The checker passes the model, and ONNX Runtime computes it as the dense product.
# Why it matters: a pruned model that is stored small fails in tests against the reference, and in tools that fold
# constants by it, with a message that names neither the tensor nor that it is sparse.
# Seen: 'Protocol message SparseTensorProto has no "data_location" field.'; ONNX Runtime gives [[2, 0, 5]].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

# [[0, 0, 0], [0, 0, 5], [0, 0, 0], [2, 0, 0]]
values = numpy_helper.from_array(np.float32([5, 2]), "w")
weights = helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64([5, 9])), [4, 3])
x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, w]) for n, w in (("x", 4), ("y", 3)))
node = helper.make_node("MatMul", ["x", "w"], ["y"])
graph = helper.make_graph([node], "g", [x_info], [y_info], sparse_initializer=[weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
onnx.checker.check_model(model)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
result = session.run(None, {"x": np.ones((1, 4), np.float32)})[0]
print("ONNX Runtime:", result.tolist())
assert (result == [[2, 0, 5]]).all()
try:
    ReferenceEvaluator(model)
    raise SystemExit("the reference evaluator loads sparse initializers")
except ValueError as error:
    print(error)
    assert "data_location" in str(error)
END
