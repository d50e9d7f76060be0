#!/usr/bin/env bash
# onnxruntime 1.32.0: a weight that a sparse initializer has twice is neither refused nor added up.
#
# The guess: indices of a sparse initializer must ascend, says the standard, and so a model with one of them twice fails to
# load, as it does for an index outside of the tensor; or the values are added up, as in COO matrices of SciPy and PyTorch.
# What happens instead: the session loads it without a warning, and the last value stays. onnx.checker refuses the model.
# Why it matters: a tool that writes a matrix in COO without coalescing it makes a model that runs with other weights
# than SciPy and PyTorch have, and nothing says so.
# Seen: values 1 and 2 at one place give 2, and SciPy's sum is 3; the checker: "not in sorted order".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 scipy==1.17.1
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnx
import onnxruntime
import scipy.sparse
from onnx import TensorProto, helper, numpy_helper

twice, values = np.int64([1, 1]), np.float32([1, 2])
weights = helper.make_sparse_tensor(numpy_helper.from_array(values, "w"), numpy_helper.from_array(twice), [1, 3])
x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, w]) for n, w in (("x", 1), ("y", 3)))
node = helper.make_node("MatMul", ["x", "w"], ["y"])
graph = helper.make_graph([node], "g", [x_info], [y_info], sparse_initializer=[weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
try:
    onnx.checker.check_model(model)
    raise SystemExit("the checker passes indices that are there twice")
except onnx.checker.ValidationError as error:
    print("checker:", str(error).splitlines()[0])
    assert "not in sorted order" in str(error)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
result = session.run(None, {"x": np.ones((1, 1), np.float32)})[0]
added = scipy.sparse.coo_matrix((values, ([0, 0], twice)), (1, 3)).toarray()
print("ONNX Runtime:", result.tolist(), "SciPy:", added.tolist())
assert (result == [[0, 2, 0]]).all() and (added == [[0, 3, 0]]).all()
END
