#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: max-pooling and ReduceMax lose a NaN, depending on where it stands.
#
# The guess: a maximum with a NaN is NaN, as NumPy and PyTorch have it, and as ONNX Runtime's own Max and Relu do.
# What happens instead: GlobalMaxPool, MaxPool and ReduceMax return the largest of the other numbers where the NaN is not
# the last that they compare, so that the same window, turned around, gives another answer.
# Why it matters: a network that overflowed in a masked region, or whose uninitialised pixels hold NaN, looks healthy
# behind the first pooling. "No NaN in the output" proves nothing; check tensors in front of poolings.
# Seen: MaxPool of the window [nan, 1, 2, 3] gives 3, and of [3, 2, 1, nan] nan; GlobalMaxPool of 1, nan, 3, 4, ... 8 gives
# 8, and ReduceMax of 64 numbers with a NaN among them 63. For the last two, onnx's reference evaluator gives nan.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

nan = float("nan")


def run(op, x, **attributes):
    """What ONNX Runtime and the reference evaluator compute of one operator."""
    x = np.asarray(x, np.float32)
    x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x.shape), ("y", None)))
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "g", [x_info], [y_info])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = [float(np.ravel(r.run(None, {"x": x})[0])[0]) for r in (session, ReferenceEvaluator(model))]
    print(f"{op}: ONNX Runtime {values[0]}, reference {values[1]}")
    return values


first, _ = run("MaxPool", [[[[nan, 1, 2, 3]]]], kernel_shape=[1, 4])
last, _ = run("MaxPool", [[[[3, 2, 1, nan]]]], kernel_shape=[1, 4])
assert first == 3 and np.isnan(last)
pooled, reference = run("GlobalMaxPool", [[[[1, nan, 3, 4], [5, 6, 7, 8], [0, 0, 1, 2], [0, 0, 3, 4]]]])
assert pooled == 8 and np.isnan(reference)
reduced, reference = run("ReduceMax", [nan if i == 40 else i for i in range(64)], keepdims=0)
assert reduced == 63 and np.isnan(reference)
rectified, reference = run("Relu", [nan])
assert np.isnan(rectified) and np.isnan(reference)
END
