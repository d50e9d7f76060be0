#!/usr/bin/env bash
# scipy 1.17.1: the elementwise maximum and minimum of two sparse arrays lose a NaN of the second one, and argmax and
# argmin return a place where neither the NaN nor the largest number is.
#
# The guess: sparse arrays compute as NumPy does, and treat what they do not store as 0. So a.maximum(b) is NaN where
# either is, as a.maximum(0) and a.max() are, and argmax returns where the first NaN stands.
# What happens instead: a NaN of a stays, a NaN of b becomes the number of a, stored or not, so that a.maximum(b) and
# b.maximum(a) differ. With a NaN, argmax and argmin return the first place that is not stored.
# Why it matters: gradients or weights of pruned layers that overflowed look healthy after a.maximum(b), and a test that
# compares one order with NumPy passes if the NaN is on the other side. A search for the largest weight finds a pruned
# one.
# Seen: maximum of [nan, 1, nan, 0] and [2, nan, 0, nan]: [nan, 1, nan, 0], the other way round [2, nan, 0, nan]; argmax
# of [1, nan, 0, 0] is 2, and NumPy's 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet scipy==1.17.1 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import numpy as np
from scipy.sparse import csr_array

nan = np.nan
rows = [np.array([[nan, 1, nan, 0]]), np.array([[2, nan, 0, nan]])]
a, b = (csr_array(row) for row in rows)
for name in ("maximum", "minimum"):
    there, back = getattr(a, name)(b).toarray(), getattr(b, name)(a).toarray()
    print(f"{name}: a with b {there[0]}, b with a {back[0]}, NumPy {getattr(np, name)(*rows)[0]}")
    assert np.isnan(getattr(np, name)(*rows)).all()
    assert np.array_equal(there, [[nan, 1, nan, 0]], equal_nan=True)
    assert np.array_equal(back, [[2, nan, 0, nan]], equal_nan=True)
    assert np.isnan(getattr(a, name)(0).toarray()[0, [0, 2]]).all()
row = np.array([[1, nan, 0, 0]])
for name in ("argmax", "argmin"):
    found, expected = (int(getattr(array, name)()) for array in (csr_array(row), row))
    print(f"{name}: {found}, NumPy {expected}")
    assert (found, expected) == (2, 1)
assert np.isnan(csr_array(row).max())
END
