#!/usr/bin/env bash
# coremltools 9.0: magnitude pruning to a sparsity of one half prunes more than half of weights that have few values, all
# of them if they are equal, and nothing if one is NaN.
#
# The guess: OpMagnitudePrunerConfig(target_sparsity=0.5) keeps the larger half. Which of equal weights go is open, how
# many is not, as n_m_ratio shows, which keeps two of four equal ones. One NaN counts as one weight.
# What happens instead: all weights up to the magnitude at the half go. Equal weights all go; of weights on a grid of 4
# bits more than the half goes. A NaN makes that magnitude NaN, and all weights stay, stored as if they were sparse.
# Why it matters: weights that were quantized in training, binary and ternary ones have such ties. A layer vanishes, or is
# pruned much more than the schedule says, without a message.
# Seen: kept of 4096: random 2048, all equal 0, equal with n_m_ratio=(2, 4) 2048, one NaN 4096, 4 bits 1870.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet coremltools==9.0 numpy==2.4.6
"$folder/python/bin/python" - 2>"$folder/log" <<'END' || { cat "$folder/log"; exit 1; }
import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.optimize.coreml import OpMagnitudePrunerConfig, OptimizationConfig, prune_weights


def kept(weights, **how):
    """How many weights of a linear layer pruning keeps."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 64))], opset_version=ct.target.iOS16)
    def layer(x):
        return mb.linear(x=x, weight=weights, bias=np.zeros(64, np.float32))

    model = ct.convert(
        layer, convert_to="mlprogram", compute_precision=ct.precision.FLOAT32, skip_model_load=True,
        minimum_deployment_target=ct.target.iOS16,
    )
    pruned = prune_weights(model, OptimizationConfig(global_config=OpMagnitudePrunerConfig(**how)))
    operations = pruned._mil_program.functions["main"].operations
    (sparse,) = [operation for operation in operations if operation.op_type == "constexpr_sparse_to_dense"]
    return len(sparse.nonzero_data.val)


weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
equal = np.ones_like(weights)
grid = np.clip(np.round(2 * weights), -8, 7) / 2
one_nan = weights.copy()
one_nan[0, 0] = np.nan
counts = {
    "random": kept(weights, target_sparsity=0.5),
    "all equal": kept(equal, target_sparsity=0.5),
    "equal, 2:4": kept(equal, n_m_ratio=(2, 4), dim=1),
    "one NaN": kept(one_nan, target_sparsity=0.5),
    "4 bits": kept(grid, target_sparsity=0.5),
}
print("kept of 4096:", counts)
few = counts.pop("4 bits")
assert counts == {"random": 2048, "all equal": 0, "equal, 2:4": 2048, "one NaN": 4096} and few < 2048
END
