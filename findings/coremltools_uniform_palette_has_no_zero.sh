#!/usr/bin/env bash
# coremltools 9.0: a uniform palette of pruned weights has no entry for zero, so no pruned weight stays zero.
#
# The guess: palettize_weights(mode="uniform") spreads the entries evenly, and one of them is 0, as in every affine
# quantization for networks, because zeros are what weights have most of.
# What happens instead: the entries divide the distance of the smallest and the largest weight, whatever lies between.
# Every pruned weight becomes the entry next to zero, and all of them the same.
# Why it matters: nine tenths of a pruned layer become one constant, half a step or less away from zero. The error is not
# noise, but this constant times the sum of the input, and the weights can no longer be stored sparse. prune_weights
# first, then palettize_weights with joint_compression=True, stores the zeros apart.
# Seen: 90 % zeros, 4 bits: no zero among 16 entries, each 0 becomes 0.089; joint: 90 % zeros.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet coremltools==9.0 numpy==2.4.6
"$folder/python/bin/python" - 2>"$folder/log" <<'END' || { cat "$folder/log"; exit 1; }
import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.optimize.coreml import (
    OpPalettizerConfig, OpThresholdPrunerConfig, OptimizationConfig, palettize_weights, prune_weights,
)  # fmt: skip

random = np.random.default_rng(0)
weights = random.standard_normal((64, 64)).astype(np.float32)
weights[random.random(weights.shape) < 0.9] = 0


@mb.program(input_specs=[mb.TensorSpec(shape=(1, 64))], opset_version=ct.target.iOS18)
def layer(x):
    return mb.linear(x=x, weight=weights, bias=np.zeros(64, np.float32))


def values(model, kind):
    """The inputs of the program's one operator that decodes weights."""
    operations = model._mil_program.functions["main"].operations
    (operation,) = [operation for operation in operations if operation.op_type == kind]
    return {name: value.val for name, value in operation.inputs.items()}


model = ct.convert(
    layer, convert_to="mlprogram", compute_precision=ct.precision.FLOAT32, skip_model_load=True,
    minimum_deployment_target=ct.target.iOS18,
)
palette = OptimizationConfig(global_config=OpPalettizerConfig(mode="uniform", nbits=4))
plain = values(palettize_weights(model, palette), "constexpr_lut_to_dense")
entries = plain["lut"].ravel()
dense = entries[plain["indices"]]
zero = np.unique(dense[weights == 0])
print("entries:", entries, "a weight of 0 becomes:", zero, "zeros:", (dense == 0).mean())
assert entries.size == 16 and (entries != 0).all() and zero.size == 1
assert abs(zero[0]) == abs(entries).min() <= (entries[1] - entries[0]) / 2
pruned = prune_weights(model, OptimizationConfig(global_config=OpThresholdPrunerConfig(threshold=1e-12)))
joint = values(palettize_weights(pruned, palette, joint_compression=True), "constexpr_lut_to_sparse")
print("joint: zeros:", (joint["indices_mask"] == 0).mean())
assert np.array_equal(joint["indices_mask"] == 0, weights == 0)
END
