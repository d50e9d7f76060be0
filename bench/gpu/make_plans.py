"""Makes what only the benchmark of GPUs needs: plans from those that ship, and operator files of data/operators.csv.

Usage: make_plans.py <rows_cuda.json> <data> <folder>

Writes into the folder, leaving what stays the same untouched:
    OPERATOR.boxes.json           the plans of convolutions for tensor cores, with tiles of 8 x 8
    OPERATOR_bfloat16.sm90.json   those of float16, in bfloat16
    operators/opN.json            the operators whose rows take a plan by the bound, and opN_float16.json
"""
import csv
import json
import pathlib
import sys

TYPICAL_BATCH = 8  # Between the batches of the rows, which are 1 and 32.


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def read_plan(path):
    """A plan without its times, which would be of other code."""
    plan = json.loads(path.read_text())
    plan.pop("profile", None)
    return plan


def in_boxes(plan):
    """The plan with 8 x 8 tiles: those of its schedules that do not split the reduction, as many tiles need no splits."""
    masked = [variant for variant in plan["variants"] if not variant.get("dense")]
    dense = [variant for variant in plan["variants"] if variant.get("dense")]
    whole = [variant for variant in masked if variant["code"]["tensor_core"].get("splits", 1) == 1]
    boxes = {}
    for variant in whole or masked:
        theta = {**variant["code"]["tensor_core"], "tile_h": 8, "tile_w": 8}
        boxes.setdefault(json.dumps(theta, sort_keys=True), {**variant, "code": {"tensor_core": theta}})
    return {**plan, "name": plan["name"] + "_boxes", "variants": [*boxes.values(), *dense]}


def in_bfloat16(plan):
    return json.loads(json.dumps(plan).replace("float16", "bfloat16"))


def operator(name, line, dtype, data):
    """The operator of a row, in another type and with the row's size as its typical one."""
    found = json.loads((data / "operators" / f"{line['operator']}.json").read_text())
    return {**found, "name": name, "params": {**found["params"], "dtype": dtype},
            "typical": {"batch": TYPICAL_BATCH, "height": int(line["height"]), "width": int(line["width"])}}


def main():
    rows, data, folder = map(pathlib.Path, sys.argv[1:])
    # Linear layers have no tiles of 8 x 8, and theirs in bfloat16 ship.
    for path in sorted((data / "plans").glob("conv*_sm90.json")):
        plan = read_plan(path)
        name = plan["operator"]["name"]
        if plan["operator"]["params"]["dtype"] == "uint8":
            continue  # Quantized operators have no boxes.
        write(folder / f"{name}.boxes.json", in_boxes(plan))
        if plan["operator"]["params"]["dtype"] == "float16":
            write(folder / f"{name.replace('float16', 'bfloat16')}.sm90.json", in_bfloat16(plan))
    with open(data / "operators.csv", encoding="utf-8") as file:
        lines = {line["id"]: line for line in csv.DictReader(line for line in file if not line.startswith("#"))}
    for name, wanted in json.loads(rows.read_text())["operators"].items():
        if wanted.get("polykernel") == f"{name}.bound":
            line = lines[str(wanted["id"])]
            write(folder / "operators" / f"{name}.json", operator(name, line, "float32", data))
            write(folder / "operators" / f"{name}_float16.json", operator(f"{name}_float16", line, "float16", data))


main()
