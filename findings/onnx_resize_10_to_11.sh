#!/usr/bin/env bash
# onnx 1.23.2, version_converter: a linear Resize of opset 10 has other numbers in opset 11.
#
# The guess: converting a model to a newer opset keeps what it computes. Opset 10 maps output pixels to input pixels by
# x / scale; opset 11 has that as coordinate_transformation_mode "asymmetric", so the converter sets this attribute.
# What happens instead: it adds the input for regions of interest, and no attribute. The default, "half_pixel", maps by
# (x + .5) / scale - .5. Nothing warns, the checker passes, and ONNX Runtime runs both.
# Why it matters: a feature map that is upsampled moves by half a pixel against the input, and with it whatever a mask
# selects there; detectors and segmenters from before 2020 lose accuracy after "just" an opset update.
# Seen: opset 10 [0, 1, 2, 3, 4, 5, 6, 6], after the conversion [0, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, version_converter

scales = numpy_helper.from_array(np.float32([1, 1, 1, 2]), "scales")
node = helper.make_node("Resize", ["x", "scales"], ["y"], mode="linear")
x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, 1, w]) for n, w in (("x", 4), ("y", 8)))
graph = helper.make_graph([node], "g", [x_info], [y_info], [scales])
old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=6)
new = version_converter.convert_version(old, 11)
x = np.float32([0, 2, 4, 6]).reshape(1, 1, 1, 4)
results = []
for model in (old, new):
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results.append(session.run(None, {"x": x})[0].ravel())
    print(f"opset {model.opset_import[0].version}:", results[-1].tolist())
(resize,) = [node for node in new.graph.node if node.op_type == "Resize"]
print("attributes after the conversion:", [attribute.name for attribute in resize.attribute])
assert np.array_equal(results[0], [0, 1, 2, 3, 4, 5, 6, 6])
assert np.allclose(results[1], [0, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6])
END
