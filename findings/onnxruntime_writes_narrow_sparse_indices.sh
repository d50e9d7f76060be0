#!/usr/bin/env bash
# onnxruntime 1.32.0: the optimized model that a session writes has sparse initializers that the standard forbids.
#
# The guess: SessionOptions.optimized_model_filepath writes an ONNX model. A sparse initializer becomes dense, or stays
# sparse as it was.
# What happens instead: it stays sparse, and its indices become int8, int16 or int32, whatever holds the tensor's size.
# SparseTensorProto has int64 only: onnx.checker refuses the model, and ONNX Runtime itself reads it.
# Why it matters: optimizing offline is the first step of many pipelines, and the next tool, which checks its input or
# reads eight bytes an index, gets pruned weights at wrong places or stops. Densify such weights before the session.
# Seen: 3 columns INT8, 400 INT16, 70000 INT32; "Sparse tensor indices () must have INT64 type."
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - "$folder/optimized.onnx" <<'END'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

for columns, kind in ((3, "INT8"), (400, "INT16"), (70000, "INT32")):
    values, places = np.float32([2, 5]), np.int64([0, columns - 1])
    weights = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(places), [1, columns]
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 1), ("y", columns)))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], sparse_initializer=[weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = sys.argv[1]
    providers = ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    (written,) = onnx.load(sys.argv[1]).graph.sparse_initializer
    try:
        onnx.checker.check_model(sys.argv[1])
        raise SystemExit("the checker passes the optimized model")
    except onnx.checker.ValidationError as error:
        message = str(error).splitlines()[0]
    print(columns, "columns:", TensorProto.DataType.Name(written.indices.data_type), "indices, checker:", message)
    assert TensorProto.DataType.Name(written.indices.data_type) == kind and "must have INT64 type" in message
    result = onnxruntime.InferenceSession(sys.argv[1], providers=providers).run(None, {"x": np.float32([[1]])})[0]
    assert np.array_equal(result[0, places], values)
END
