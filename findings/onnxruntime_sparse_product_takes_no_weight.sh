#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: SparseToDenseMatMul, its product of a sparse and a dense matrix, takes no weight of the model.
#
# The guess: a pruned weight in the model's sparse_initializer is the sparse factor of com.microsoft's
# SparseToDenseMatMul, so that a session multiplies its nonzeros only. It takes the two forms of COO that the standard and
# SparseTensor have, one index for each value or two.
# What happens instead: the session makes sparse initializers, and Constants with a sparse_value, dense, and refuses the
# node, because the type of its factor is tensor(float). Only an input of the model can be sparse, and the node takes two
# indices for each value there; one, as sparse initializers mostly have, fails when the node runs.
# Why it matters: sparse weights in ONNX save room in the file and no time. Whoever wants the sparse product passes the
# weights at each call, as an OrtValue, through the session's interface for OrtValues.
# Seen: "Type 'tensor(float)' of input parameter (a)" for both; as an input, [502, 7], and "Expecting COO 2-D indices
# shape".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

values, places = np.float32([2, 5, 7]), np.int64([0, 2, 3])
pairs = np.int64([[0, 0], [0, 2], [1, 0]])
dense = np.float32([[1], [10], [100]])
product = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft")
b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 1]) for name, rows in (("b", 3), ("y", 2)))


def session(nodes, inputs, sparse_initializers=()):
    graph = helper.make_graph(nodes, "g", inputs, [y], sparse_initializer=list(sparse_initializers))
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def sparse(name):
    return helper.make_sparse_tensor(numpy_helper.from_array(values, name), numpy_helper.from_array(places), [2, 3])


def error(function, *arguments):
    try:
        function(*arguments)
    except Exception as raised:
        return str(raised)
    raise SystemExit("no error")


constant = helper.make_node("Constant", [], ["a"], sparse_value=sparse(""))
for name, message in (
    ("initializer", error(session, [product], [b], [sparse("a")])),
    ("Constant", error(session, [constant, product], [b])),
):
    print(f"{name}: {message}")
    assert "Type 'tensor(float)' of input parameter (a)" in message
a = helper.make_sparse_tensor_value_info("a", TensorProto.FLOAT, [2, 3])
with_input = session([product], [a, b])
factor = onnxruntime.OrtValue.ortvalue_from_numpy(dense)
device = onnxruntime.OrtDevice.make("cpu", 0)


def run(indices):
    weights = onnxruntime.SparseTensor.sparse_coo_from_numpy(np.int64([2, 3]), values, indices.ravel(), device)
    inputs = {"a": onnxruntime.OrtValue.ort_value_from_sparse_tensor(weights), "b": factor}
    return with_input.run_with_ort_values(["y"], inputs)[0].numpy().ravel()


print("an input with two indices for each value:", run(pairs))
assert np.array_equal(run(pairs), [502, 7])
message = error(run, places)
print("one index for each value:", message)
assert "Expecting COO 2-D indices shape" in message
END
