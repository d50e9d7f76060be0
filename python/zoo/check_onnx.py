"""Checks one ONNX model: converted with a full mask against itself, and with random blobs against its reference."""

from __future__ import annotations

import collections
import json
import sys
import time
import traceback

import numpy as np
import onnxruntime

import distile.onnx
import onnx_models
from distile.onnx import Left, Replaced, Rule
from masks import blobs


def run(model, inputs) -> list[np.ndarray]:
    options = distile.onnx.session_options()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value for name, value in inputs.items() if name in known})


def error(result, expected) -> float:
    """The largest difference, over the largest value."""
    pairs = zip(result, expected, strict=True)
    return max(float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30)) for one, other in pairs)


def check(name: str) -> dict:
    """What became of a model. `fault` says where it failed, if it did."""
    one = onnx_models.NAMED[name]
    result: dict = {"architecture": name, "size": list(one.size or ())}
    begin, stage = time.perf_counter(), "load"
    try:
        model, inputs = one.load(), one.inputs()
        stage = "dense"
        dense = run(model, inputs)
        stage, more = "convert", {"mask_sizes": {"mask": one.size}} if one.size and one.fixed else {}
        converted, report = distile.onnx.convert(model, [Rule("*", "mask")], **more)
        left = collections.Counter(row.reason for row in report if isinstance(row, Left))
        result |= {"replaced": sum(isinstance(row, Replaced) for row in report), "left": dict(left.most_common())}
        stage, mask = "full mask", blobs(one.size or (1, 1), batch=1)
        result["full"] = error(run(converted, {**inputs, "mask": np.ones_like(mask)}), dense)
        stage = "blobs"
        given = run(converted, {**inputs, "mask": mask})
        stage = "reference"
        reference, _ = distile.onnx.convert(model, [Rule("*", "mask")], reference=True, **more)
        expected = run(reference, {**inputs, "mask": mask})
        result |= {"blobs": error(given, expected), "changed": error(expected, dense)}
    except Exception as failure:
        result["fault"] = f"{stage}: {type(failure).__name__}: {str(failure).strip()[:300]}"
        traceback.print_exc()
    result["seconds"] = round(time.perf_counter() - begin, 1)
    return result


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
