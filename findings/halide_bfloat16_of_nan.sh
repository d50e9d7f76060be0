#!/usr/bin/env bash
# Halide 21.0.0 (PyPI's package), CPUs without bfloat16: cast to bfloat16 makes -0.0 or infinity of some NaNs.
#
# The guess: a cast from float32 to bfloat16 rounds to the nearest number, ties to even, and a NaN stays a NaN, whatever
# its bits, as with PyTorch, ml_dtypes and the instructions of CPUs.
# What happens instead: the rounding is integer arithmetic on the bits of every number. The NaN 0x7fffffff carries over
# into -0.0, 0xffffffff into 0.0, and 0x7f800001 is rounded down to infinity. 0x7fc00000, which x86 CPUs make, stays a
# NaN.
# Why it matters: 0x7fffffff is the NaN that NVIDIA's GPUs make. Tensors that come from a GPU with a NaN and pass through
# such a cast on the CPU have a zero there, the one number that a mask or a sum does not notice.
# Seen: 7fc00000 -> 7fc0, 7fffffff -> 8000, ffffffff -> 0000, 7f800001 -> 7f80; ml_dtypes: NaN for all four.
set -euo pipefail
[[ $(uname -m) == x86_64 ]] || { echo "the target below is x86-64"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet halide==21.0.0 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/python/bin/python" - 2>"$folder/log" <<'END' || { cat "$folder/log"; exit 1; }
import halide as hl
import ml_dtypes
import numpy as np

bits = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32)
numbers = bits.view(np.float32)
assert np.isnan(numbers).all() and np.isnan(numbers.astype(ml_dtypes.bfloat16)).all()
x = hl.Var("x")
for lanes in (1, 4):
    f = hl.Func("f")
    f[x] = hl.reinterpret(hl.UInt(16), hl.cast(hl.BFloat(16), hl.Buffer(numbers)[x]))
    if lanes > 1:
        f.vectorize(x, lanes)
    narrow = np.array(f.realize([numbers.size], hl.Target("x86-64-linux")))
    print(", ".join(f"{before:08x} -> {after:04x}" for before, after in zip(bits, narrow)))
    assert narrow.tolist() == [0x7FC0, 0x8000, 0x0000, 0x7F80]
END
