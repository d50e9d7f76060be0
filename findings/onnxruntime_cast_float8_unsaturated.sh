#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: Cast to float8 with saturate=0 makes the largest number of what is too large, and NaN of what
# should be infinite.
#
# The guess: without saturation, ONNX's Cast makes of a number that is too large NaN in float8_e4m3fn, which has no
# infinity, and infinity in float8_e5m2, as its specification's table says and as onnx's own evaluator does.
# What happens instead: in float8_e4m3fn, 464.1 to 479.9 and 496 or more become NaN, but 480 to 495.9 become 448. In
# float8_e5m2, 61440 to 65535 become NaN, and 65536 or more infinity. With saturate=1, the default, all is as specified.
# Why it matters: who takes saturate=0 to find overflows by their NaN or infinity misses some, silently; and PyTorch's
# .to(torch.float8_e5m2), which does not saturate, has other bits than the model exported from it.
# Seen: float8_e4m3fn 479 -> nan, 480 -> 448, 495 -> 448, 496 -> nan; float8_e5m2 61440 -> nan, 65536 -> inf.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def cast(kind, values, own):
    """To a type of 8 bits without saturation, and back."""
    there = helper.make_node("Cast", ["x"], ["narrow"], to=kind, saturate=0)
    back = helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT)
    infos = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy")
    graph = helper.make_graph([there, back], "g", *([info] for info in infos))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    if own:
        return ReferenceEvaluator(model).run(None, {"x": values})[0]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # Keeps both nodes.
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})[0]


for kind, values, due, seen in (
    (TensorProto.FLOAT8E4M3FN, [464, 465, 479, 480, 495, 496, 512, np.inf],
     [448] + 7 * [np.nan], [448, np.nan, np.nan, 448, 448, np.nan, np.nan, np.nan]),
    (TensorProto.FLOAT8E5M2, [61439, 61440, 65535, 65536, np.inf],
     [57344] + 4 * [np.inf], [57344, np.nan, np.nan, np.inf, np.inf]),
):  # fmt: skip
    values = np.float32(values)
    found = [cast(kind, values, own) for own in (True, False)]
    print(TensorProto.DataType.Name(kind), "of", values.tolist())
    print("  onnx:", found[0].tolist())
    print("  onnxruntime:", found[1].tolist())
    assert np.array_equal(found[0], np.float32(due), equal_nan=True)
    assert np.array_equal(found[1], np.float32(seen), equal_nan=True)
END
