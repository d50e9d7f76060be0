#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator cannot compute a ConvTranspose with groups.
#
# The guess: onnx.reference is slow, but computes every valid node of its opset, so that it serves as the oracle for other
# implementations.
# What happens instead: a ConvTranspose of several groups ends in a ValueError of NumPy's, because the result is made for
# one output channel a group. The checker passes the model, and ONNX Runtime and the sum over groups by hand agree.
# Why it matters: upsampling layers of efficient decoders are grouped. Their tests against the reference fail with
# "could not broadcast", which looks like a fault of the model.
# Seen: 4 -> 4 channels in 2 groups: "could not broadcast input array from shape (2,7,7) into shape (1,7,7)".
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

random = np.random.default_rng(0)
weight = random.standard_normal((4, 2, 3, 3)).astype(np.float32)
x = random.standard_normal((1, 4, 5, 5)).astype(np.float32)


def model_of(weight, channels, group):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=group)
    infos = (("x", channels, 5), ("y", weight.shape[1] * group, 7))
    x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, s, s]) for n, c, s in infos)
    graph = helper.make_graph([node], "g", [x_info], [y_info], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


grouped = model_of(weight, 4, 2)
session = onnxruntime.InferenceSession(grouped.SerializeToString(), providers=["CPUExecutionProvider"])
by_runtime = session.run(None, {"x": x})[0]
by_groups = [
    ReferenceEvaluator(model_of(weight[2 * g : 2 * g + 2], 2, 1)).run(None, {"x": x[:, 2 * g : 2 * g + 2]})[0]
    for g in range(2)
]
assert np.allclose(by_runtime, np.concatenate(by_groups, 1), atol=1e-4)
try:
    ReferenceEvaluator(grouped).run(None, {"x": x})
    raise SystemExit("the reference evaluator computes groups")
except ValueError as error:
    print(error)
    assert "could not broadcast" in str(error)
END
