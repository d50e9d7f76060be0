#!/usr/bin/env bash
# mkl 2026.2.0: its sparse products refuse a size of 0, which its BLAS takes, and leave the result as it was.
#
# The guess: a product with no column, or of a matrix with no row, has nothing to compute and succeeds, as cblas_sgemm
# does with any size of 0, and as a sparse matrix without a nonzero does.
# What happens instead: mkl_sparse_s_mm with 0 columns, and mkl_sparse_s_create_csr with 0 rows or 0 columns, return
# SPARSE_STATUS_INVALID_VALUE, 3. A matrix without a nonzero is made, and its product sets the result to 0.
# Why it matters: with masks, a batch without an active pixel has no column, and a layer all of whose channels are pruned
# no row. Code that tests the dense path meets neither; code that does not test the status goes on with a handle that was
# never made.
# Seen: sgemm of 0 columns succeeds; 0 columns 3, 0 rows 3, 0 columns of the matrix 3, no nonzero 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet mkl==2026.2.0 numpy==2.4.6
"$folder/python/bin/python" - <<'END'
import ctypes
import glob
import sys

import numpy as np

mkl = ctypes.CDLL(glob.glob(f"{sys.prefix}/lib/libmkl_rt.so.*")[0])
NO_TRANSPOSE, ROW_MAJOR = 10, 101
BLAS_NO_TRANSPOSE = 111
one, zero = ctypes.c_float(1), ctypes.c_float(0)


class Description(ctypes.Structure):
    """struct matrix_descr, of a general matrix."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "mode", "diagonal")]


GENERAL = Description(20, 0, 0)


def pointer(array, offset=0):
    return ctypes.c_void_p(array.ctypes.data + offset * array.itemsize)


def matrix(rows, columns, nonzeros):
    """A CSR matrix with its nonzeros in the first row: its status, handle and arrays."""
    handle = ctypes.c_void_p()
    starts = np.int32([0] + [nonzeros] * max(rows, 1))
    places, values = np.arange(max(nonzeros, 1), dtype=np.int32), np.ones(max(nonzeros, 1), np.float32)
    status = mkl.mkl_sparse_s_create_csr(
        ctypes.byref(handle), 0, rows, columns, pointer(starts), pointer(starts, 1), pointer(places), pointer(values)
    )
    return status, handle, (starts, places, values)


def product(columns, nonzeros):
    """2 x 3 times 3 x columns, into nines."""
    status, handle, arrays = matrix(2, 3, nonzeros)
    assert status == 0
    x, y = np.ones((3, 4), np.float32), np.full((2, 4), 9, np.float32)
    return mkl.mkl_sparse_s_mm(
        NO_TRANSPOSE, one, handle, GENERAL, ROW_MAJOR, pointer(x), columns, 4, zero, pointer(y), 4
    ), y


a, b, c = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), np.full((2, 4), 9, np.float32)
mkl.cblas_sgemm(
    ROW_MAJOR, BLAS_NO_TRANSPOSE, BLAS_NO_TRANSPOSE, 2, 0, 3, one, pointer(a), 3, pointer(b), 4, zero, pointer(c), 4
)
assert (c == 9).all()
print("sgemm of 0 columns succeeds")
seen = {
    "4 columns": product(4, 2)[0], "0 columns": product(0, 2)[0], "0 rows": matrix(0, 3, 0)[0],
    "0 columns of the matrix": matrix(2, 0, 0)[0], "no nonzero": product(4, 0)[0],
}  # fmt: skip
print(seen)
assert list(seen.values()) == [0, 3, 3, 3, 0]
assert (product(4, 0)[1] == 0).all() and (product(4, 2)[1] == [[2] * 4, [0] * 4]).all()
END
