#!/usr/bin/env bash
# mkl 2026.2.0: a block-sparse (BSR) matrix times a matrix needs blocks in rows with indices from 0, or blocks in columns
# with indices from 1; times a vector it takes any.
#
# The guess: the layout of blocks and the base of indices are two arguments of mkl_sparse_s_create_bsr, and whatever it
# accepts can be multiplied, as CSR of either base can. If a combination is missing, creating it fails.
# What happens instead: all four are created, and all four times a vector are right. mkl_sparse_s_mm returns
# SPARSE_STATUS_NOT_SUPPORTED, 6, for blocks in rows from 1 and blocks in columns from 0, in both layouts of the dense
# matrix.
# Why it matters: block-pruned layers store blocks as the kernels like them, often in columns, with indices from 0 as
# everything else in C. A product tried out with a batch of one (mkl_sparse_s_mv) works, and with a batch it returns a
# status and leaves the result alone.
# Seen: rows from 0: vector right, matrix right; rows from 1: right, 6; columns from 0: right, 6; columns from 1: right,
# right.
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
NO_TRANSPOSE, ROW_MAJOR, COLUMN_MAJOR = 10, 101, 102
one, zero = ctypes.c_float(1), ctypes.c_float(0)


class Description(ctypes.Structure):
    """struct matrix_descr, of a general matrix."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "mode", "diagonal")]


GENERAL = Description(20, 0, 0)


def pointer(array, offset=0):
    return ctypes.c_void_p(array.ctypes.data + offset * array.itemsize)


blocks = np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2)
dense = np.block([[np.zeros((2, 2)), blocks[0]], [blocks[1], np.zeros((2, 2))]]).astype(np.float32)
x = np.arange(8, dtype=np.float32).reshape(4, 2)
vector = x[:, 1].copy()


def result(status, y, expected):
    return "right" if status == 0 and np.array_equal(y, expected) else str(status)


seen = {}
for layout, name in ((ROW_MAJOR, "rows"), (COLUMN_MAJOR, "columns")):
    stored = np.ascontiguousarray(blocks if layout == ROW_MAJOR else blocks.transpose(0, 2, 1))
    for base in (0, 1):
        handle, starts, places = ctypes.c_void_p(), np.int32([0, 1, 2]) + base, np.int32([1, 0]) + base
        starts, places = starts.astype(np.int32), places.astype(np.int32)
        assert 0 == mkl.mkl_sparse_s_create_bsr(
            ctypes.byref(handle), base, layout, 2, 2, 2,
            pointer(starts), pointer(starts, 1), pointer(places), pointer(stored),
        )  # fmt: skip
        y = np.zeros(4, np.float32)
        status = mkl.mkl_sparse_s_mv(NO_TRANSPOSE, one, handle, GENERAL, pointer(vector), zero, pointer(y))
        found = [result(status, y, dense @ vector)]
        for order, dense_layout, stride in (("C", ROW_MAJOR, 2), ("F", COLUMN_MAJOR, 4)):
            factor, y = np.array(x, order=order), np.zeros((4, 2), np.float32, order=order)
            status = mkl.mkl_sparse_s_mm(
                NO_TRANSPOSE, one, handle, GENERAL, dense_layout, pointer(factor), 2, stride, zero, pointer(y), stride
            )
            found.append(result(status, y, dense @ x))
        seen[f"{name} from {base}"] = found
        print(f"blocks in {name}, indices from {base}: vector {found[0]}, matrix {found[1]} and {found[2]}")
right, refused = ["right"] * 3, ["right", "6", "6"]
assert seen == {"rows from 0": right, "rows from 1": refused, "columns from 0": refused, "columns from 1": right}
END
