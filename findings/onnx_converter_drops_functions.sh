#!/usr/bin/env bash
# onnx 1.23.2, version_converter: a model loses its local functions, and no runtime loads the result.
#
# The guess: convert_version keeps what it need not change; functions are copied, or there is an error.
# What happens instead: nodes that call a function and the import of its domain stay, the functions themselves are gone.
# There is no warning. ONNX Runtime then refuses the model, because nobody defines the operator.
# Why it matters: exporters (torch.onnx with export_modules_as_functions, onnxscript) put modules and custom operators into
# functions. Inline them first (onnx.inliner.inline_local_functions), then convert.
# Seen: 1 function before, 0 after; "my:Double(-1) is not a registered function/op". Inlined first, it runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, inliner, version_converter

double = helper.make_function(
    "my", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
)
x_info, y_info = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
graph = helper.make_graph([helper.make_node("Double", ["x"], ["y"], domain="my")], "g", [x_info], [y_info])
imports = [helper.make_opsetid("", 13), helper.make_opsetid("my", 1)]
model = helper.make_model(graph, functions=[double], opset_imports=imports, ir_version=8)
onnx.checker.check_model(model, full_check=True)


def run(converted):
    session = onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.float32([1, 2, 3])})[0].tolist()


assert run(model) == [2, 4, 6]
converted = version_converter.convert_version(model, 14)
print("functions before and after:", len(model.functions), len(converted.functions))
assert len(model.functions) == 1 and len(converted.functions) == 0
assert [node.op_type for node in converted.graph.node] == ["Double"]
try:
    run(converted)
    raise SystemExit("the converted model runs")
except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
    print(error)
    assert "not a registered function/op" in str(error)
inlined = version_converter.convert_version(inliner.inline_local_functions(model), 14)
assert run(inlined) == [2, 4, 6]
END
