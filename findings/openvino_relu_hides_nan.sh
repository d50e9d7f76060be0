#!/usr/bin/env bash
# openvino 2026.4.1, x86-64 CPUs: ReLU and Clamp make 0 of a NaN, and Exp infinity.
#
# The guess: ReLU of NaN is NaN, as PyTorch, NumPy's maximum, ONNX Runtime's Relu and Clip and onnx's evaluator have it.
# What happens instead: it is 0, alone and behind a product or a convolution, which both keep the NaN themselves. Clamp
# from 0 to 6 gives 0 as well, and Exp infinity. LeakyReLU, Sigmoid and Tanh keep a NaN.
# Why it matters: one uninitialised pixel or token that is NaN makes its whole row of a product NaN and then, by ReLU, 0.
# The output looks like that of a masked pixel, where PyTorch and ONNX Runtime show the fault, and comparing with them
# finds the difference in the wrong layer. Look for NaN in front of ReLU.
# Seen: Relu 0, Clamp 0, Exp inf; MatMul of a row with one NaN: 8 NaN, with ReLU 8 zeros. ONNX Runtime: NaN for all.
set -euo pipefail
[[ $(uname -m) == x86_64 ]] || { echo "other CPUs have other kernels"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 numpy==2.4.6
"$folder/python/bin/python" - "$folder/model.onnx" <<'END'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

nan, inf = np.nan, np.inf
core = openvino.Core()
core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
constants = {
    "w": np.eye(8, dtype=np.float32), "zero": np.float32(0), "six": np.float32(6),
    "filter": np.ones((1, 1, 1, 1), np.float32),
}  # fmt: skip


def run(nodes, x):
    """What OpenVINO and ONNX Runtime compute."""
    infos = (helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", x.shape), ("y", None)))
    used = [name for name in constants if any(name in node.input for node in nodes)]
    tensors = [numpy_helper.from_array(constants[name], name) for name in used]
    graph = helper.make_graph(nodes, "g", *([info] for info in infos), tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), sys.argv[1])
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    return core.compile_model(sys.argv[1], "CPU")(x)[0], session.run(None, {"x": x})[0]


row = np.ones((1, 8), np.float32)
row[0, 3] = nan
image = row.reshape(1, 1, 2, 4)
relu = helper.make_node("Relu", ["a"], ["y"])
product = helper.make_node("MatMul", ["x", "w"], ["a"])
convolution = helper.make_node("Conv", ["x", "filter"], ["a"])
one = np.where(np.isnan(row[0]), 0, 1)
for name, nodes, x, expected in (
    ("Relu", [helper.make_node("Relu", ["x"], ["y"])], row, one),
    ("Clip", [helper.make_node("Clip", ["x", "zero", "six"], ["y"])], row, one),
    ("Exp", [helper.make_node("Exp", ["x"], ["y"])], row, np.where(one, np.e, inf)),
    ("LeakyRelu", [helper.make_node("LeakyRelu", ["x"], ["y"])], row, row[0]),
    ("Sigmoid", [helper.make_node("Sigmoid", ["x"], ["y"])], row, 1 / (1 + np.exp(-row[0]))),
    ("Tanh", [helper.make_node("Tanh", ["x"], ["y"])], row, np.tanh(row[0])),
    ("MatMul", [helper.make_node("MatMul", ["x", "w"], ["y"])], row, np.full(8, nan)),
    ("MatMul, Relu", [product, relu], row, np.zeros(8)),
    ("Conv", [helper.make_node("Conv", ["x", "filter"], ["y"])], image, row[0]),
    ("Conv, Relu", [convolution, relu], image, one),
):
    found, other = (result.ravel() for result in run(nodes, x))
    print(f"{name}: OpenVINO {found[3]} and {np.isnan(found).sum()} NaN, ONNX Runtime {other[3]}")
    assert np.allclose(found, expected, rtol=1e-3, equal_nan=True) and np.isnan(other[3])
END
