"""What bare_root.sh runs where only Python and the wheel are: distile.build, the command `distile`, and a model of ONNX."""

import json
import pathlib
import subprocess
import sys
import time
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import distile
from distile import polykernels, toolchain
from distile.nn import MaskedConv2d
from distile.onnx import session_options

DATA = pathlib.Path(distile.__file__).parent / "data"
warnings.simplefilter("ignore")


def report(what: str, begin: float) -> None:
    print(f"{what}: {time.perf_counter() - begin:.1f} s", flush=True)


def run(*words) -> str:
    begin = time.perf_counter()
    printed = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout
    report(f"{pathlib.Path(words[0]).name} {words[1]}", begin)
    return printed


@torch.no_grad()
def build_and_compare(layer: MaskedConv2d, **options) -> None:
    """A layer with its PolyKernel is the dense layer where the mask is active, and 0 elsewhere."""
    x = torch.randn(2, layer.in_channels, 33, 38)
    dense = layer(x)
    mask = torch.rand(2, *dense.shape[2:]) < 0.3
    begin = time.perf_counter()
    (operator,) = distile.build(layer, x, mask=mask, **options)
    report(f"distile.build{options or ''}", begin)
    with polykernels.recording() as missing:
        masked = layer(x, mask)
    assert not missing, f"{operator} ran dense"
    torch.testing.assert_close(masked, torch.where(mask[:, None], dense, 0.0), rtol=1e-4, atol=1e-4)
    print(f"{polykernels.shared_object(operator).stat().st_size / 1e6:.1f} MB: {operator}")


def convert_model(folder: pathlib.Path) -> None:
    """`convert --build` compiles what a model lacks, and the converted model masks its result."""
    weights = np.random.default_rng(1).standard_normal((20, 12, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)
    value = lambda name, channels: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 9, 9])
    graph = helper.make_graph([node], "g", [value("x", 12)], [value("y", 20)], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    command = [sys.executable, "-m", "distile.onnx", "convert", folder / "model.onnx", "--rules", "*=mask", "--build"]
    assert "PolyKernel 1 of 1" in run(*command)
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 12, 9, 9)).astype(np.float32)}
    (dense,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    mask = np.eye(9, dtype=bool)[None]
    session = onnxruntime.InferenceSession(folder / "model.masked.onnx", session_options())
    given = next(one for one in session.get_inputs() if one.name != "x")
    (masked,) = session.run(None, {**feeds, given.name: mask.astype(np.uint8 if "uint8" in given.type else bool)})
    np.testing.assert_allclose(masked, np.where(mask[:, None], dense, 0), rtol=1e-4, atol=1e-4)


def use_command(folder: pathlib.Path) -> None:
    """Plans are read, compiled, measured, made and searched for."""
    command = pathlib.Path(sys.executable).parent / "distile"
    plan = DATA / "plans" / "conv1x1_96_576_avx2.json"
    assert "1x1 convolution" in run(command, "info", plan)
    run(command, "compile", plan, "-o", folder / "plan.so", "-q")
    times = ("--threads", 1, "--seconds", 0.01, "-q")
    run(command, "profile", plan, "--object", folder / "plan.so", "-o", folder / "times.json", *times)
    assert json.loads((folder / "times.json").read_text())["distile_times"]
    run(command, "plan", DATA / "operators" / "conv1x1_96_576.json", "--bound-only", "-o", folder / "plans")


def main() -> None:
    torch.manual_seed(0)
    assert toolchain.compiler_folder() == toolchain.FOLDER and "ziglang" in toolchain.environment(toolchain.FOLDER)["CC"]
    build_and_compare(MaskedConv2d(24, 40, 3, padding=1, activation="relu"))
    build_and_compare(MaskedConv2d(24, 56, 3, padding=1, activation="silu"))
    build_and_compare(MaskedConv2d(24, 72, 1), measure=True)
    folder = pathlib.Path("/tmp/bare")
    folder.mkdir()
    convert_model(folder)
    use_command(folder)
    print("all right")


main()
