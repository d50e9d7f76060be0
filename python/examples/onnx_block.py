"""A residual block in ONNX Runtime, dense and where a mask says so."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import distile.onnx
from distile.onnx import Rule

CHANNELS = 128
SHAPE = [1, CHANNELS, 40, 40]
random = np.random.default_rng(0)


def convolution(name, source):
    weights = random.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 34
    return (
        helper.make_node("Conv", [source, f"{name}.weight"], [f"{name}.out"], name, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [f"{name}.out"], [f"{name}.relu"]),
        numpy_helper.from_array(weights, f"{name}.weight"),
    )


# A model as an exporter writes it.
*first, first_weights = convolution("block/first", "x")
*second, second_weights = convolution("block/second", "block/first.relu")
add = helper.make_node("Add", ["x", "block/second.relu"], ["y"])
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "y")]
graph = helper.make_graph([*first, *second, add], "block", values[:1], values[1:], [first_weights, second_weights])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

# The second convolution reads a pixel around the mask, so the first has a larger one.
masked_model, report = distile.onnx.convert(model, [Rule("block/first", "near"), Rule("block/*", "mask")])

x = random.standard_normal(SHAPE).astype(np.float32)
mask, near = np.zeros((2, 1, 40, 40), bool)
mask[:, 10:22, 8:24] = True
near[:, 9:23, 7:25] = True
dense = onnxruntime.InferenceSession(model.SerializeToString())
masked = onnxruntime.InferenceSession(masked_model.SerializeToString(), distile.onnx.session_options())
expected = dense.run(None, {"x": x})[0]
result = masked.run(None, {"x": x, "mask": mask, "near": near})[0]
error = np.abs(result - expected)[:, :, mask[0]].max()
print(f"{len(report)} layers replaced, active: {mask.mean():.0%}, largest error there: {error:.1e}")
