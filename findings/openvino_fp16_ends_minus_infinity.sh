#!/usr/bin/env bash
# openvino 2026.4.1: save_model makes -65504 of a constant's -inf, unless three quarters of its numbers are too large.
#
# The guess: save_model compresses constants to float16, as it says, and a number that is too large becomes infinite or is
# clamped; -inf has a float16 of its own and stays.
# What happens instead: -inf becomes -65504, as -1e9 does, if fewer than three quarters of the constant's numbers are out
# of float16's range. With more, the whole constant stays float32, with its infinities. Nothing is reported.
# Why it matters: a mask that is added to the scores of attention is such a constant. A row without any key gives the mean
# of the values instead of NaN, a masked score of more than 65504 wins, and which of both happens depends on how much the
# mask covers. save_model(..., compress_to_fp16=False) keeps the mask.
# Seen: 2 of 4 masked: -65504, 3 of 4: -inf; softmax of a row without keys is 0.25 instead of NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
"$folder/python/bin/python" - "$folder" <<'END'
import sys

import numpy as np
import openvino
from openvino import opset13 as ops

core = openvino.Core()
core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def saved(graph, *arguments):
    """What the model computes after saving and reading it, on the CPU."""
    openvino.save_model(graph, f"{sys.argv[1]}/model.xml")
    return core.compile_model(f"{sys.argv[1]}/model.xml", "CPU")(arguments)[0]


for mask, compressed in (([-np.inf] * 2 + [0] * 2, True), ([-np.inf] * 3 + [0], False)):
    mask = np.float32([mask])
    x = ops.parameter([1, mask.size], np.float32)
    result = saved(openvino.Model([ops.add(x, ops.constant(mask))], [x]), np.zeros_like(mask))
    print("mask", mask[0], "is added as", result[0])
    assert np.array_equal(result, np.where(mask == 0, 0, -65504) if compressed else mask)

mask = np.float32([[-np.inf] * 4, [0, 0, 0, -np.inf]])  # The first row sees no key.
x = ops.parameter([2, 4], np.float32)
model = openvino.Model([ops.softmax(ops.add(x, ops.constant(mask)), 1)], [x])
before = core.compile_model(model, "CPU")([np.zeros((2, 4), np.float32)])[0]
after = saved(model, np.zeros((2, 4), np.float32))
print("softmax of a row without keys:", before[0], "saved:", after[0])
assert np.isnan(before[0]).all() and np.allclose(after[0], 0.25)
assert np.allclose(before[1], [1 / 3] * 3 + [0]) and np.allclose(after[1], before[1])
END
