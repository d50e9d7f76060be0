"""Sets the weights of least magnitude to 0, to try what a pruned layer or model would gain. It does not train.

Reads weights of one layer (.npy, and what python -m distile weights reads: .npz of SciPy, .smtx), or ONNX models, of
which it prunes convolutions that are not depthwise, and linear layers. Writes FILE.pruned.npy or FILE.pruned.onnx.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import re
from collections.abc import Callable

import numpy as np

from .magnitudes import PATTERNS, SCOPES, Pruning
from .mistakes import told
from .weight_files import FORMATS, read_weights

EXAMPLES = """examples:
  python -m distile prune layer.npy --zeros .9                  nine tenths of its weights become 0
  python -m distile prune *.npy --zeros .9 --scope global       nine tenths of all together
  python -m distile prune layer.npy --zeros .8 --block 1x4      four input channels of an output channel together
  python -m distile prune model.onnx --pattern 2:4              what sparse tensor cores multiply
  distile plan operator.json --weights layer.pruned.npy         plans that are measured with these zeros
  python -m distile explain model.pruned.onnx --masks .3        what the model gains
"""


@dataclasses.dataclass
class Layer:
    """Weights that may become 0."""

    name: str
    filter: np.ndarray  # [output channels, input channels, ...] in float32.
    leave_out: Callable[[np.ndarray], None]


@dataclasses.dataclass
class File:
    path: pathlib.Path
    output: pathlib.Path
    layers: list[Layer]
    save: Callable[[], None]


def _weights_file(path: pathlib.Path, output: pathlib.Path, kernel: tuple[int, int]) -> File:
    """A file of one layer. `kernel`: the rows and columns of the kernels in a matrix."""
    weights = np.ascontiguousarray(read_weights(path))
    if weights.ndim > 2 or kernel == (1, 1):
        filter = weights
    elif weights.shape[1] % (kernel[0] * kernel[1]):
        raise ValueError(f"{path} has {weights.shape[1]} columns, which are no input channels of {kernel[0]} x {kernel[1]}")
    else:
        filter = weights.reshape(weights.shape[0], -1, *kernel)  # A view.

    def leave_out(where: np.ndarray) -> None:
        filter[where] = 0

    def save() -> None:
        with output.open("wb") as file:
            np.save(file, weights)

    return File(path, output, [Layer(path.stem, filter, leave_out)], save)


def _model_file(path: pathlib.Path, output: pathlib.Path) -> File:
    if not importlib.util.find_spec("onnx"):
        raise ValueError(f"{path}: models need the package onnx: pip install onnx")
    from .onnx import load, save
    from .onnx.pruning import layers_of

    model, layers = layers_of(load(path, whole=True))
    if not layers:
        raise ValueError(f"{path} has no convolution and no linear layer with constant weights of floating-point numbers")
    return File(path, output, [Layer(one.name, one.filter, one.leave_out) for one in layers], lambda: save(model, output))


def _file(path: pathlib.Path, folder: pathlib.Path | None, kernel: tuple[int, int]) -> File:
    is_model = path.suffix == ".onnx"
    output = (folder or path.parent) / f"{path.stem}.pruned{'.onnx' if is_model else '.npy'}"
    if not is_model and path.suffix not in FORMATS:
        raise ValueError(f"{path} does not end with one of {', '.join(FORMATS)}, .onnx")
    return _model_file(path, output) if is_model else _weights_file(path, output, kernel)


def prune_files(
    paths: list[pathlib.Path], pruning: Pruning, folder: pathlib.Path | None = None, kernel: tuple[int, int] = (1, 1)
) -> list[dict]:
    """Prunes files, and writes the results beside them or into a folder. `kernel`: the rows and columns of the kernels in
    matrices [output channels, input channels x rows x columns]. Returns a description of each file: `file`, `output`, and
    of each of its `layers` the name, the `shape` of its weights and its shares of zeros, `zeros_before` and `zeros`.
    Raises OSError and ValueError before any file is written."""
    files = [_file(path, folder, kernel) for path in paths]
    outputs = [file.output for file in files]
    twice = next((output for output in outputs if outputs.count(output) > 1), None)
    if twice:
        raise ValueError(f"two files would become {twice}: prune them into folders of their own with -o")
    layers = [layer for file in files for layer in file.layers]
    before = [_zeros(layer.filter) for layer in layers]
    left_out = pruning.left_out([layer.filter for layer in layers])
    after = [float(((layer.filter == 0) | where).mean()) for layer, where in zip(layers, left_out)]
    for layer, where in zip(layers, left_out):
        layer.leave_out(where)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    found = iter(zip(layers, before, after))
    described = []
    for file in files:
        rows = [
            {"layer": layer.name, "shape": list(layer.filter.shape), "zeros_before": was, "zeros": now}
            for layer, was, now in (next(found) for _ in file.layers)
        ]
        file.save()
        described.append({"file": str(file.path), "output": str(file.output), "layers": rows})
    return described


def _zeros(filter: np.ndarray) -> float:
    return float((filter == 0).mean())


def totals(files: list[dict]) -> dict:
    """The number of weights in all layers, and their shares of zeros."""
    rows = [row for file in files for row in file["layers"]]
    sizes = [int(np.prod(row["shape"])) for row in rows]
    weights, shares = sum(sizes), ("zeros_before", "zeros")
    return {"weights": weights, **{name: sum(row[name] * size for row, size in zip(rows, sizes)) / weights for name in shares}}


def table(files: list[dict]) -> str:
    """Zeros before and after by layer, and in total, as text."""
    total = totals(files)
    lines = [("layer", "weights", "zeros before", "zeros")]
    lines += [
        (row["layer"], " x ".join(map(str, row["shape"])), f"{row['zeros_before']:.1%}", f"{row['zeros']:.1%}")
        for file in files
        for row in file["layers"]
    ]
    lines.append(("total", str(total["weights"]), f"{total['zeros_before']:.1%}", f"{total['zeros']:.1%}"))
    widths = [max(map(len, column)) for column in zip(*lines)]
    aligned = (zip(line, widths, "<<>>") for line in lines)
    text = ["  ".join(f"{word:{side}{width}}" for word, width, side in line) for line in aligned]
    return "\n".join([*text, "", *(f"wrote {file['output']}" for file in files)])


def _pair(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not as 1x4")
    first, second = map(int, text.split("x"))
    return first, second


def main(arguments: list[str]) -> int:
    """`python -m distile prune FILE...`."""
    parser = argparse.ArgumentParser(
        prog="python -m distile prune",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help=f"{', '.join(FORMATS)} or .onnx")
    parser.add_argument("--zeros", type=float, help="the share of the weights that becomes 0, from 0 to below 1")
    parser.add_argument(
        "--scope", choices=SCOPES, default="layer", help="the share of each layer, or of all together (default: %(default)s)"
    )
    parser.add_argument(
        "--block",
        type=_pair,
        default=(1, 1),
        metavar="OxI",
        help="output channels x input channels that become 0 together, as 1x4, 4x1, 8x1, 16x1, 1x16 (default: 1x1)",
    )
    parser.add_argument(
        "--pattern", choices=list(PATTERNS), help="in place of a share: keep two of four consecutive input channels"
    )
    parser.add_argument(
        "--kernel",
        type=_pair,
        default=(1, 1),
        metavar="HxW",
        help="the kernels of matrices [output channels, input channels x H x W], for blocks and patterns (default: 1x1)",
    )
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="FOLDER", help="default: beside each FILE")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)
    with told(parser):
        if options.zeros is None and options.pattern is None:
            raise ValueError("say the share of zeros, as --zeros .9, or --pattern 2:4")
        pruning = Pruning(options.zeros, options.scope, options.block, options.pattern)
        files = prune_files(options.files, pruning, options.output, options.kernel)
    print(json.dumps({"files": files, "total": totals(files)}, indent=2) if options.json else table(files))
    return 0
