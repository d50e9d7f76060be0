"""Weights of one layer from the files of other tools, as the command `distile` reads them:

    python -m distile weights layer.npz -o layer.npy
    distile plan operator.json --weights layer.npy

Reads matrices [output channels, all others] that SciPy wrote (scipy.sparse.save_npz, in CSR, CSC or COO), the text
`.smtx` of the Deep Learning Matrix Collection, which has places of weights but no values, and NumPy's arrays.
"""

from __future__ import annotations

import argparse
import io
import pathlib

import numpy as np

FORMATS = (".npy", ".npz", ".smtx")
MOST_WEIGHTS = 1 << 31  # No layer has as many.


def read_weights(path: str | pathlib.Path) -> np.ndarray:
    """The weights of a file as a dense array of float32: a matrix, or what an .npy file has. A file without values has
    ones where weights are.

    Indices may be in any order. Raises ValueError, which names the file, for another format, a file that is broken or
    cut off, indices outside the matrix or twice the same, row pointers that decrease, and values that are not finite;
    OSError for a file that cannot be read."""
    path = pathlib.Path(path)
    content = path.read_bytes()
    try:
        if path.suffix not in FORMATS:
            raise ValueError(f"its name does not end with one of {', '.join(FORMATS)}")
        weights = _read_smtx(content.decode("ascii")) if path.suffix == ".smtx" else _read_numpy(content)
        with np.errstate(over="ignore"):
            weights = weights.astype(np.float32, copy=False)
        if not np.isfinite(weights).all():
            raise ValueError("a weight is no finite number of float32")
        return weights
    except Exception as error:  # Broken archives raise errors of many types.
        raise ValueError(f"the weights {str(path)!r} cannot be used: {error}") from None


def _read_numpy(content: bytes) -> np.ndarray:
    found = np.load(io.BytesIO(content), allow_pickle=False)
    if not isinstance(found, np.ndarray):
        return _matrix({name: found[name] for name in found.files})
    if found.dtype.kind not in "fiu" or found.ndim < 2:
        raise ValueError(f"it is an array of {found.dtype} of {found.ndim} dimensions, not numbers of 2 or more")
    return found


def _matrix(found: dict[str, np.ndarray]) -> np.ndarray:
    """A matrix as SciPy stores it."""
    missing = {"format", "shape", "data"} - set(found)
    if missing:
        raise ValueError(f"it has no {' and no '.join(sorted(missing))}: scipy.sparse.save_npz writes such files")
    kind = found["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    shape = tuple(int(extent) for extent in found["shape"].reshape(-1))
    if kind == "coo":
        return _dense(found["row"], found["col"], found["data"], shape)
    if kind == "csr":
        return _of_rows(found["indptr"], found["indices"], found["data"], shape)
    if kind == "csc":
        return _of_rows(found["indptr"], found["indices"], found["data"], shape[::-1]).T
    raise ValueError(f"its format is {kind!r}: save it as matrix.tocsr()")


def _of_rows(pointers: np.ndarray, columns: np.ndarray, values: np.ndarray | None, shape: tuple) -> np.ndarray:
    """A matrix in CSR."""
    for name, array in (("row pointers", pointers), ("indices", columns)):
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise ValueError(f"its {name} are no list of integers")
    if len(shape) != 2 or len(pointers) != shape[0] + 1:
        raise ValueError(f"it has {len(pointers)} row pointers for the shape {shape}")
    if pointers[0] != 0 or pointers[-1] != len(columns) or (pointers[1:] < pointers[:-1]).any():
        count = len(columns)
        raise ValueError(f"its row pointers do not go from 0 to its {count} indices, each at least the one before")
    return _dense(np.repeat(np.arange(shape[0]), np.diff(pointers)), columns, values, shape)


def _dense(rows: np.ndarray, columns: np.ndarray, values: np.ndarray | None, shape: tuple) -> np.ndarray:
    """A matrix of weights at places. Without values, they are 1."""
    values = np.ones(len(columns), np.float32) if values is None else values
    if len(shape) != 2 or min(shape) < 1 or values.dtype.kind not in "fiu":
        raise ValueError(f"its shape is {shape}, and its values are of {values.dtype}: it is no matrix of numbers")
    if shape[0] * shape[1] >= MOST_WEIGHTS:
        raise ValueError(f"its shape is {shape}: no layer has as many weights")
    if not rows.shape == columns.shape == values.shape == (len(values),):
        raise ValueError(f"it has {rows.size} rows and {columns.size} columns of {values.size} weights")
    for name, places, extent in (("row", rows, shape[0]), ("column", columns, shape[1])):
        if places.dtype.kind not in "iu":
            raise ValueError(f"its {name}s are no integers")
        if len(places) and not (0 <= places.min() and places.max() < extent):
            raise ValueError(f"a weight is in {name} {places.min() if places.min() < 0 else places.max()} of {extent}")
    elements = rows.astype(np.int64) * shape[1] + columns
    order = np.sort(elements)
    twice = order[1:][order[1:] == order[:-1]]
    if len(twice):
        raise ValueError(f"the weight in row {twice[0] // shape[1]}, column {twice[0] % shape[1]} is there twice")
    dense = np.zeros(shape[0] * shape[1], values.dtype)
    dense[elements] = values
    return dense.reshape(shape)


def _read_smtx(text: str) -> np.ndarray:
    """Three lines: rows, columns and nonzeros; row pointers; column indices."""
    lines = [line.replace(",", " ").split() for line in text.splitlines()]
    lines += [[]] * (3 - len(lines))  # A matrix without nonzeros may lack the last.
    if len(lines[0]) != 3 or any(lines[3:]):
        raise ValueError("it has not three lines, of which the first is its rows, columns and nonzeros")
    (rows, columns, nonzeros), pointers, indices = ([int(word) for word in line] for line in lines[:3])
    if len(indices) != nonzeros:
        raise ValueError(f"it has {len(indices)} indices instead of {nonzeros}")
    return _of_rows(np.array(pointers, np.int64), np.array(indices, np.int64), None, (rows, columns))


def main(arguments: list[str]) -> int:
    """`python -m distile weights FILE`."""
    parser = argparse.ArgumentParser(
        prog="python -m distile weights",
        description="Writes the weights of a layer as an .npy file, which distile plan, tune and profile read.",
    )
    parser.add_argument("file", type=pathlib.Path, help="of SciPy (.npz), of the DLMC (.smtx) or of NumPy (.npy)")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="default: FILE with the name's end .npy")
    options = parser.parse_args(arguments)
    output = options.output or options.file.with_suffix(".npy")
    try:
        weights = read_weights(options.file)
        if output.exists() and output.samefile(options.file):
            raise ValueError(f"{output} would be written over: give the result another name with -o")
        with output.open("wb") as file:
            np.save(file, weights)
    except (OSError, ValueError) as error:
        parser.exit(1, f"distile: {error}\n")
    print(f"{output}: {' x '.join(map(str, weights.shape))}, {(weights == 0).mean():.1%} zeros")
    return 0
