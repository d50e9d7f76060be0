#!/usr/bin/env bash
# onnxscript 0.7.2: an operator of an own domain can be called inside @script, and not from Python.
#
# The guess: `Opset("my", 1)` stands for a domain, and `my.Double(x)` writes a node of it, in both places; the functions
# of a custom_translation_table (torch.onnx.export, dynamo=True) are Python that makes nodes in just this way.
# What happens instead: inside @script the node is written. In Python `my.Double` is an AttributeError, because the opset
# looks for a schema in ONNX's registry, which has none for the domain.
# Why it matters: a translation table for a library of custom operators for ONNX Runtime cannot name them. It makes
# `onnxscript.values.Op(opset, name, schema)` with an onnx.defs.OpSchema of its own, which need not be registered.
# Seen: AttributeError "Attribute Double not found."; with a schema, the name and domain are those of the node.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet onnxscript==0.7.2 onnx==1.23.2 numpy==2.4.6
cat > "$folder/show.py" <<'END_OF_PROGRAM'
from onnx.defs import OpSchema
from onnxscript import FLOAT, opset18, script, values

my = values.Opset("my", 1)


@script(default_opset=opset18)
def doubled(x: FLOAT[3]) -> FLOAT[3]:
    return my.Double(x)


(node,) = doubled.to_model_proto().graph.node
print("inside @script:", node.domain, node.op_type)
assert (node.domain, node.op_type) == ("my", "Double")
try:
    my.Double
    raise SystemExit("Python can name the operator")
except AttributeError as error:
    print("in Python:", error)
schema = OpSchema(
    "Double", "my", 1, inputs=[OpSchema.FormalParameter("x", "T")], outputs=[OpSchema.FormalParameter("y", "T")],
    type_constraints=[("T", ["tensor(float)"], "")],
)
operator = values.Op(my, "Double", schema)
assert (operator.domain, operator.name) == ("my", "Double") and operator.op_schema is schema
END_OF_PROGRAM
"$folder/python/bin/python" "$folder/show.py"
