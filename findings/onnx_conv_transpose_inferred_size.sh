#!/usr/bin/env bash
# onnx 1.23.2 and onnxruntime 1.32.0: the size that shape inference gives a ConvTranspose with auto_pad and output_padding
# is not the size that is computed.
#
# The guess: SAME_UPPER means output = input * stride, and whatever output_padding does to it, shape inference, the
# reference evaluator and ONNX Runtime do the same.
# What happens instead: shape inference adds output_padding to input * stride; both that compute take it out of the padding
# again and return input * stride. ONNX Runtime warns of the difference in its log at most.
# Why it matters: masks, buffers and tilings are sized from inferred shapes. One row and column too many are read, and
# concatenating a skip connection, which fits by inference, fails when the model runs.
# Seen: input 5 x 5, stride 2, output_padding 1: inferred 11 x 11, computed 10 x 10 by both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

onnxruntime.set_default_logger_severity(3)
x = np.ones((1, 2, 5, 5), np.float32)
weight = numpy_helper.from_array(np.ones((2, 3, 3, 3), np.float32), "w")


def sizes(**attributes):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **attributes)
    x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x.shape), ("y", None)))
    model = helper.make_model(
        helper.make_graph([node], "g", [x_info], [y_info], [weight]),
        opset_imports=[helper.make_opsetid("", 22)],
        ir_version=10,
    )
    shape = shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    computed = [list(runtime.run(None, {"x": x})[0].shape[2:]) for runtime in (session, ReferenceEvaluator(model))]
    return [dimension.dim_value for dimension in shape.dim][2:], *computed


assert sizes(auto_pad="SAME_UPPER") == ([10, 10], [10, 10], [10, 10])
inferred, by_runtime, by_reference = sizes(auto_pad="SAME_UPPER", output_padding=[1, 1])
print("inferred", inferred, "ONNX Runtime", by_runtime, "reference", by_reference)
assert inferred == [11, 11] and by_runtime == [10, 10] and by_reference == [10, 10]
# With explicit padding all three agree.
assert sizes(pads=[1, 1, 1, 1], output_padding=[1, 1]) == ([10, 10], [10, 10], [10, 10])
END
