#!/usr/bin/env bash
# onnx 1.23.2 and onnxruntime 1.32.0: Attention gives zeros for a query that may see no key; the same attention written as
# MatMul, Add, Softmax, MatMul gives NaN.
#
# The guess: Attention's definition is a function of these operators, with -inf where the mask is false, so that a row
# without any key is softmax of nothing but -inf, NaN (or, with a large negative number in place of -inf, the mean of all
# values).
# What happens instead: the operator defines such rows to be 0, and the runtime and the reference evaluator agree.
# Why it matters: padded batches and dropped tokens have such rows. Fusing composed attention into Attention changes their
# numbers from NaN to 0, so that a comparison of both must leave them out; unfused, one NaN row spreads over all tokens in
# the next layer's values.
# Seen: Attention [0, 0, 0, 0], composed [nan, nan, nan, nan], for rows with keys both the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

random = np.random.default_rng(0)
tensors = {name: random.standard_normal((1, 1, rows, 4)).astype(np.float32) for name, rows in (("q", 2), ("k", 3), ("v", 3))}
mask = np.array([[True, True, False], [False, False, False]])
infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in tensors.items()]
y_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 4])


def evaluate(nodes, initializers):
    graph = helper.make_graph(
        nodes, "g", infos, [y_info], [numpy_helper.from_array(value, name) for name, value in initializers.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [runtime.run(None, tensors)[0][0, 0] for runtime in (session, ReferenceEvaluator(model))]


attention = evaluate([helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])], {"mask": mask})
composed = evaluate(
    [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Add", ["scores", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ],
    {"scale": np.float32(0.5), "bias": np.where(mask, 0, -np.inf).astype(np.float32)},
)
print("Attention:", attention[0][1], "composed:", composed[0][1])
for fused, steps in zip(attention, composed):
    assert np.allclose(fused[0], steps[0], atol=1e-5)
    assert (fused[1] == 0).all() and np.isnan(steps[1]).all()
END
