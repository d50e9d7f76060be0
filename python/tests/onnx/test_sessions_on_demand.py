"""What sessions ask for that lack PolyKernels."""

import os
import pathlib
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from networks import Builder, feeds_of
from onnx import TensorProto
from test_conversion import residual_network

from distile import on_demand
from distile._facts import FLOAT_TYPES
from distile.toolchain import compiler_folder
from distile.description import Operator
from distile.onnx import Rule, convert, session_options, set_build, still_dense
from distile.onnx.conversion import Replaced
from distile.onnx.keys import key_of, operator_of

with_compiler = pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")


@pytest.fixture(autouse=True)
def never(monkeypatch):
    """Sessions ask for nothing after a test. A low priority would let tests wait long on a busy machine."""
    hasty = on_demand._Helper._PROGRAM.replace("os.nice(10)", "").replace("serve()", "serve(waits=False)")
    monkeypatch.setattr(on_demand._Helper, "_PROGRAM", hasty)
    yield
    set_build("never")


def network(channels: int):
    b = Builder()
    b.add("Relu", [b.conv("up", "x", 6, channels, 4, 2, op="ConvTranspose", pads=[1] * 4, output_padding=[1, 0])], "r")
    b.add("Relu", [b.conv("down", "r", 6, 6, groups=6)], "y")
    return convert(b.model({"x": [1, channels, 9, 8]}, {"y": [1, 6, 19, 16]}), [Rule("*", "mask")])


def one_layer(channels: int):
    b = Builder()
    b.conv("layer", "x", 6, channels)
    return convert(b.model({"x": [1, channels, 9, 8]}, {"layer.out": [1, 6, 9, 8]}), [Rule("*", "mask")])[0]


def session_of(model) -> onnxruntime.InferenceSession:
    options = session_options()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_asked(monkeypatch):
    """Sessions ask for the operators of the converter's report, and ask nobody unless somebody said so."""
    asked: list[Operator] = []
    monkeypatch.setattr(on_demand, "ask", lambda operator, typical, cache: asked.append(operator))
    model, report = network(11)
    session_of(model)
    assert not asked
    set_build("now")
    session_of(model)
    assert {one.name for one in asked} == {row.operator.name for row in report} and len(asked) == 2


@pytest.mark.parametrize("more", [{}, {"output_dtype": "int8", "dtype": "uint8"}])
def test_keys(more):
    _, report = convert(residual_network(), [Rule("*", "mask")])
    operators = [row.operator for row in report if isinstance(row, Replaced) and row.operator]
    attention = Operator.make("masked_attention", dtype="bfloat16", heads=3, head_dim=16, causal=True)
    assert {one.generator for one in operators} == {"masked_conv2d"}
    for operator in [*operators, attention, *(row.operator for row in network(11)[1])]:
        operator = operator.make(operator.generator, **{**dict(operator.params), **more}).on("cuda")
        found = operator_of([*key_of(operator), 0, 0])
        assert key_of(found) == key_of(operator) and found.name == operator.name, operator


@with_compiler
def test_now(capsys):
    set_build("now")
    model = one_layer(7)
    (result,) = session_of(model).run(None, feeds := feeds_of(model, 0.4))
    assert capsys.readouterr().err.count("building the PolyKernel") == 1 and not still_dense()
    np.testing.assert_array_equal(session_of(model).run(None, feeds)[0], result)


@with_compiler
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(name):
    """ONNX Runtime has no dense operator of these types, and no PolyKernel of them ships."""
    set_build("now")
    narrow, of_onnx = getattr(ml_dtypes, name), getattr(TensorProto, FLOAT_TYPES[name][1])
    random = np.random.default_rng(1)
    x, weights = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 9, 16), (16, 24)))
    mask = random.random((1, 9)) < 0.5
    b = Builder()
    b.add("Cast", ["x"], "x.narrow", to=of_onnx)
    b.constant("w", weights.astype(narrow))
    b.add("MaskedLinear", ["x.narrow", "w", "mask"], "y.narrow", domain="distile")
    b.add("Cast", ["y.narrow"], "y", to=TensorProto.FLOAT)
    model = b.model({"x": x.shape, "mask": mask.shape}, {"y": [1, 9, 24]}, opset=19)
    (result,) = session_of(model).run(None, {"x": x, "mask": mask})
    x, weights = (values.astype(narrow).astype(np.float32) for values in (x, weights))
    expected = np.where(mask[..., None], (x @ weights).astype(narrow).astype(np.float32), 0)
    np.testing.assert_array_equal(result, expected)


@with_compiler
def test_background():
    """A session runs without its PolyKernels until they are there, and then runs them."""
    set_build("background")
    model = one_layer(13)
    session, feeds = session_of(model), feeds_of(model, 0.4)
    dense = session.run(None, feeds)[0]
    end = time.monotonic() + 300
    while on_demand.pending():
        assert time.monotonic() < end
        time.sleep(0.02)
    (result,) = session.run(None, feeds)
    assert not np.array_equal(result, dense)  # By rounding.
    np.testing.assert_allclose(result, dense, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(session_of(model).run(None, feeds)[0], result)


PROGRAM = """
import sys, time, warnings
import onnxruntime
from distile import on_demand
from distile.onnx import session_options, set_build

warnings.simplefilter("ignore")
set_build("background")
sessions = [onnxruntime.InferenceSession(path, session_options()) for path in sys.argv[1:]]
while on_demand.pending():
    time.sleep(0.01)
"""


def test_exit(tmp_path):
    """A program with sessions says at its exit what had no PolyKernel, and why."""
    builder = tmp_path / "distile_builder"
    builder.write_text("#!/bin/sh\necho no kernel here >&2\nexit 1\n")
    builder.chmod(0o755)
    models = [tmp_path / f"{channels}.onnx" for channels in (9, 17)]
    for path in models:
        path.write_bytes(one_layer(int(path.stem)).SerializeToString())
    package = str(pathlib.Path(on_demand.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    more = dict(DISTILE_COMPILER=str(tmp_path), DISTILE_CACHE=str(tmp_path / "cache"), PYTHONPATH=path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, models)], env={**os.environ, **more}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr[done.stderr.index("distile: ") :]
    assert said.startswith("distile: 2 operators ran code for any shape to the end: no kernel here\n")
    assert said.count("\n  masked_conv2d(") == 2 and "in_channels=9" in said and "in_channels=17" in said
