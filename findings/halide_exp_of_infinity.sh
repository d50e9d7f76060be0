#!/usr/bin/env bash
# Halide 21.0.0 (PyPI's package): exp of a float32 that is infinite, NaN or larger than 1.5e9 is 0, and log of infinity
# is 88.7.
#
# The guess: exp "does the right thing for extremely small or extremely large inputs", says its documentation: infinity
# for large ones, 0 for small ones, NaN for NaN, and log of infinity is infinite. If not so, the target feature
# strict_float, or strict_float() of the expression, sees to it.
# What happens instead: exp(1000) is inf, but exp(1e10), exp(inf) and exp(nan) are 0; exp(-100), which is subnormal, too.
# log(inf) is 88.72, the logarithm of the next number after the largest, and log(nan) 89.13. Neither strict_float changes
# it. Vectors and scalars agree; float64 calls the C library and is right.
# Why it matters: a sigmoid 1 / (1 + exp(-x)) that closes gates where a mask has put -inf, or -1e10, opens them: it is 1
# there. In a softmax a score that is NaN counts as one that is masked: the exponential of either is 0.
# Seen: exp of [1000, 1e10, inf, nan, -inf]: [inf, 0, 0, 0, 0]; sigmoid of [-1000, -1e10, -inf, nan]: [0, 1, 1, 1].
set -euo pipefail
[[ $(uname -m) == x86_64 ]] || { echo "other CPUs convert large numbers to integers in another way"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet halide==21.0.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import halide as hl
import numpy as np

inf, nan = np.inf, np.nan
x = hl.Var("x")


def run(expression, numbers, kind=np.float32, features="", lanes=1):
    """An expression of each of the numbers."""
    numbers = np.array(numbers, kind)
    f = hl.Func("f")
    f[x] = expression(hl.Buffer(numbers)[x])
    if lanes > 1:
        f.vectorize(x, lanes, hl.TailStrategy.GuardWithIf)
    return np.array(f.realize([numbers.size], hl.Target("x86-64-linux" + features)))


def sigmoid(number):
    return 1 / (1 + hl.exp(-number))


large, gates = [1000, 1e10, inf, nan, -inf], [-1000, -1e10, -inf, nan]
print("exp of", large, "is", run(hl.exp, large), "sigmoid of", gates, "is", run(sigmoid, gates))
for features in ("", "-strict_float"):
    for lanes in (1, 4):
        for exp in (hl.exp, lambda number: hl.strict_float(hl.exp(number))):
            assert np.array_equal(run(exp, large, np.float32, features, lanes), [inf, 0, 0, 0, 0])
        assert np.array_equal(run(sigmoid, gates, np.float32, features, lanes), [0, 1, 1, 1])
        logarithms = run(hl.log, [inf, nan], np.float32, features, lanes)
        assert np.allclose(logarithms, [88.72, 89.13], atol=0.01)
print("log of [inf, nan] is", logarithms, "float64: exp is", run(hl.exp, large, np.float64))
assert run(hl.exp, [1.4e9, 1.5e9]).tolist() == [inf, 0]
assert run(hl.exp, [-100])[0] == 0 < run(hl.exp, [-100], np.float64)[0]
assert np.array_equal(run(hl.exp, large, np.float64), [inf, inf, inf, nan, 0], equal_nan=True)
END
