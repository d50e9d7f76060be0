"""Pruned weights: in every form that models have them, and with PolyKernels that skip zeros."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import Builder, draw_integers, feeds_of, run
from onnx import TensorProto, helper, numpy_helper
from test_conversion import compare

from distile import on_demand
from distile.description import Operator
from distile.onnx import Replaced, Rule, convert, load, save, session_options, set_build
from distile.onnx import __main__ as command
from distile.onnx.building import build, missing, to_build
from distile.onnx.explain import explain
from distile.onnx.library import has_polykernel, shared_object
from distile.onnx.sparse import dense_tensor
from distile.toolchain import compiler_folder
from distile.weight_zeros import QUAD

RULES = [Rule("*", "mask")]
with_compiler = pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")


def sparse_tensor(weights: np.ndarray, name: str, coordinates: bool) -> onnx.SparseTensorProto:
    places = np.argwhere(weights)
    indices = places if coordinates else np.ravel_multi_index(places.T, weights.shape)
    values = numpy_helper.from_array(weights[tuple(places.T)], name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices.astype(np.int64)), weights.shape)


def two_of_four(random, weights: np.ndarray, axis: int) -> None:
    """Sets two of each four input channels to 0, which are the elements of the axis."""
    fours = np.moveaxis(weights, axis, -1)
    left_out = random.random((*fours.shape[:-1], fours.shape[-1] // 4, 4)).argsort(-1) < 2
    fours[left_out.reshape(fours.shape)] = 0


def network(zeros: float = 0.9, channels: int = 19, form: str = "dense", dtype=np.float32, pattern: bool = False):
    """A convolution, and two linear layers over its pixels, whose weights have this share of zeros, or the pattern 2:4. The
    last input channel of each has no other weight, but with the pattern."""
    b, sparse = Builder(), []
    outputs = 32 if pattern else 30

    def pruned_weights(name: str, *shape: int, axis: int) -> str:
        weights = b.random.standard_normal(shape).astype(dtype)
        weights[b.random.random(shape) < (0 if pattern else zeros)] = 0
        if pattern:
            two_of_four(b.random, weights, axis)
        elif zeros:
            np.moveaxis(weights, axis, 0)[-1] = 0
        if form == "dense":
            return b.constant(name, weights)
        tensor = sparse_tensor(weights, name, form.endswith("coordinates"))
        if form.startswith("node"):
            b.nodes.append(helper.make_node("Constant", [], [name], sparse_value=tensor))
        else:
            sparse.append(tensor)
        return name

    conv = pruned_weights("conv.w", 40, channels, 3, 3, axis=1)
    b.add("Relu", [b.add("Conv", ["x", conv], "conv.out", "conv", pads=[1] * 4)], "r")
    b.add("Transpose", ["r"], "t", perm=[0, 2, 3, 1])
    b.add("Reshape", ["t", b.constant("shape", np.array([-1, 40]))], "rows")
    bias = b.constant("gemm.b", b.random.standard_normal(24).astype(dtype))
    b.add("Gemm", ["rows", pruned_weights("gemm.w", 24, 40, axis=1), bias], "g", "gemm", transB=1)
    b.add("MatMul", ["g", pruned_weights("matmul.w", 24, outputs, axis=0)], "y", "matmul")
    model = b.model({"x": [1, channels, 17, 21]}, {"y": [17 * 21, outputs]})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.sparse_initializer.extend(sparse)
    return model


FORMS = ["dense", "initializer", "initializer with coordinates", "node", "node with coordinates"]


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    model = network(form=form)
    converted, report = compare(model, RULES)
    replaced = {row.name: row for row in report if isinstance(row, Replaced)}
    assert {"conv", "gemm", "matmul"} == set(replaced)
    for row in replaced.values():
        assert 0.85 < row.zeros < 0.97 and row.typical["weight_zeros"] == row.zeros
    assert not converted.graph.sparse_initializer
    feeds = feeds_of(converted, 0.3)
    np.testing.assert_array_equal(run(converted, feeds)[0], run(convert(network(), RULES)[0], feeds)[0])


def test_layers_with_few_zeros_are_as_ever():
    _, report = convert(network(zeros=0.3), RULES)
    assert [row.zeros for row in report if isinstance(row, Replaced)] == [0, 0, 0]
    assert all("weight_zeros" not in row.typical for row in report if isinstance(row, Replaced))


def test_depthwise_layers_have_no_such_code():
    b = Builder()
    weights = np.zeros((8, 1, 3, 3), np.float32)
    weights[:, :, 1, 1] = 1
    b.add("Conv", ["x", b.constant("w", weights)], "y", "conv", pads=[1] * 4, group=8)
    _, report = convert(b.model({"x": [1, 8, 9, 9]}, {"y": [1, 8, 9, 9]}), RULES)
    assert [row.zeros for row in report] == [0]
    plain = Operator.make("masked_conv2d", dtype="float16", in_channels=8, out_channels=8)
    assert plain.can_skip_zeros and not plain.on("cuda").built_for({"weight_zeros": 0.9}).skips_zeros


def quantized_network(zeros: float, inputs: int, outputs: int):
    """A convolution and a linear layer of uint8, of whose quads of input channels this share is 0."""
    b = Builder()

    def filter_of(name: str, *shape: int, axis: int) -> str:
        weights = b.random.integers(-100, 100, shape).astype(np.int8)
        rows = np.moveaxis(weights, axis, 0)
        for first in range(0, rows.shape[0], QUAD):
            rows[first : first + QUAD, b.random.random(rows.shape[1:]) < zeros] = 0
        return b.constant(name, weights)

    def numbers(name: str, scale: float, zero: int, kind) -> list[str]:
        return [b.constant(f"{name}.scale", np.float32(scale)), b.constant(f"{name}.zero", np.array(zero, kind))]

    x, y, z = numbers("x", 0.02, 3, np.uint8), numbers("y", 0.05, 120, np.uint8), numbers("z", 0.06, 110, np.uint8)
    conv, linear = numbers("conv", 0.001, 0, np.int8), numbers("linear", 0.002, 0, np.int8)
    filter = filter_of("conv.w", outputs, inputs, 3, 3, axis=1)
    b.add("QLinearConv", ["x", *x, filter, *conv, *y], "conv.out", "conv", pads=[1] * 4)
    b.add("Transpose", ["conv.out"], "t", perm=[0, 2, 3, 1])
    b.add("Reshape", ["t", b.constant("shape", np.array([-1, outputs]))], "rows")
    b.add("QLinearMatMul", ["rows", *y, filter_of("linear.w", outputs, 30, axis=0), *linear, *z], "z", "linear")
    model = b.model({"x": [1, inputs, 11, 13]}, {"z": [143, 30]})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.UINT8
    return model


@with_compiler
@pytest.mark.parametrize("inputs", [20, 22])
def test_quantized_layers_skip_quads(inputs, monkeypatch):
    model = quantized_network(0.85, inputs, inputs + 17)
    converted, report = convert(model, RULES)
    replaced = {row.name: row for row in report if isinstance(row, Replaced)}
    assert {"conv", "linear"} == set(replaced)
    for row in replaced.values():
        assert 0.75 < row.zeros < 0.95 and row.operator.is_quantized
    asked = {}
    with monkeypatch.context() as patched:
        patched.setattr(on_demand, "ask", lambda operator, typical, cache: asked.update({operator.name: typical}))
        try:
            set_build("now")
            session_of(converted)
        finally:
            set_build("never")
    for row in replaced.values():
        assert asked[row.operator.skipping_zeros().name] == {"weight_zeros": row.zeros}
    feeds = feeds_of(converted, 0.3)
    feeds["x"] = draw_integers(np.random.default_rng(3), np.uint8, *feeds["x"].shape)
    dense = session_of(converted).run(None, feeds)[0]
    assert len(build(report)) == 2 and not to_build(report)
    for row in replaced.values():
        assert b"cpu-nonzero-quads" in shared_object(row.operator.skipping_zeros()).read_bytes()
        assert has_polykernel(row.operator.skipping_zeros())
    np.testing.assert_array_equal(session_of(converted).run(None, feeds)[0], dense)


def test_zeros_anywhere_leave_few_quads():
    model = quantized_network(0, 20, 37)
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".w"):
            weights = numpy_helper.to_array(tensor).copy()
            weights[np.random.default_rng(1).random(weights.shape) < 0.8] = 0
            tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    _, report = convert(model, RULES)
    assert [row.zeros for row in report if isinstance(row, Replaced)] == [0, 0]


MALFORMED = {"unsorted": [5, 1], "twice the same": [5, 5], "outside": [5, 12], "negative": [-1, 5], "too few": [5]}


@pytest.mark.parametrize("indices", MALFORMED.values(), ids=MALFORMED)
def test_malformed(indices):
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, np.int64)), [4, 3])
    b = Builder()
    b.add("MatMul", ["x", "w"], "y", "linear")
    model = b.model({"x": [2, 4]}, {"y": [2, 3]})
    model.graph.sparse_initializer.append(sparse)
    with pytest.raises(ValueError, match="the sparse constant 'w' is malformed: "):
        convert(model, RULES)


def test_sparse_weights_in_files(tmp_path):
    """Their values and indices may lie in a file beside the model's."""
    model = network(form="initializer")
    with (tmp_path / "data").open("wb") as file:
        for sparse in model.graph.sparse_initializer:
            for part in (sparse.values, sparse.indices):
                onnx.external_data_helper.set_external_data(part, "data", file.tell(), len(part.raw_data))
                file.write(part.raw_data)
                part.ClearField("raw_data")
                part.data_location = onnx.TensorProto.EXTERNAL
    onnx.save(model, tmp_path / "model.onnx")
    converted, _ = convert(load(tmp_path / "model.onnx"), RULES, folder=tmp_path)
    save(converted, tmp_path / "masked.onnx", tmp_path)
    feeds = feeds_of(converted, 0.3)
    expected = run(convert(network(), RULES)[0], feeds)
    np.testing.assert_array_equal(run(onnx.load(tmp_path / "masked.onnx"), feeds)[0], expected[0])


def test_types_of_sparse_weights():
    for kind in (np.float16, np.float64, np.int8):
        weights = np.array([[0, 1, 0], [-2, 0, 3]], kind)
        for coordinates in (False, True):
            found = numpy_helper.to_array(dense_tensor(sparse_tensor(weights, "w", coordinates), "w"))
            assert found.dtype == kind and (found == weights).all()


def session_of(model) -> onnxruntime.InferenceSession:
    options = session_options()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def skips_zeros(model, channels: int) -> bool:
    """Whether a session of network() skips zeros: then the channel without weights may hold what is no number."""
    feeds = feeds_of(model, 0.3)
    feeds["x"][:, channels - 1] = np.nan
    return bool(np.isfinite(session_of(model).run(None, feeds)[0]).all())


@with_compiler
def test_built(tmp_path, capsys):
    channels = 21
    path, model = tmp_path / "model.onnx", network(channels=channels, form="initializer")
    onnx.save(model, path)
    _, report = convert(model, RULES)
    (row,) = [row for row in report if row.name == "conv"]
    lacking = missing(report)
    assert row.operator in lacking and {one.plain for one in to_build(report)} == set(lacking)
    assert command.main(["convert", str(path), "--rules", "*=mask", "--build"]) == 0
    found = re.search(r"conv +MaskedConv +mask .*with Relu; (\d+)% zeros\n", capsys.readouterr().out)
    assert found and int(found[1]) == round(100 * row.zeros)
    assert not missing(report) and not build(report)
    for operator in lacking:
        skipping = operator.skipping_zeros()
        assert b"cpu-nonzeros" in shared_object(skipping).read_bytes() and has_polykernel(skipping)
        assert not shared_object(operator).exists()
    converted, _ = compare(model, RULES, tolerance=1e-4)
    assert skips_zeros(converted, channels)


@with_compiler
def test_explain_counts_mask_and_zeros():
    b = Builder()
    weights = b.random.standard_normal((26, 34)).astype(np.float32)
    weights[b.random.random(weights.shape) < 0.9] = 0
    b.add("MatMul", ["x", b.constant("w", weights)], "y", "linear")
    model, mask = b.model({"x": [1, 40, 26]}, {"y": [1, 40, 34]}), np.arange(40)[None] < 10
    for built in (False, True):
        ((row,), _, _) = explain(model, RULES, lambda name, extents: mask, seconds=0.01, compile_missing=built)
        zeros = int(row.zeros.split("%")[0]) / 100
        left = 0.25 * (1 - zeros if built else 1)
        assert 0.85 < zeros < 0.95 and row.dense_work == 40 * 26 * 34
        assert row.work == pytest.approx(left * row.dense_work)
        assert row.predicted_us == pytest.approx(left * row.dense_us)


@with_compiler
def test_a_shape_that_ships(capsys, tmp_path):
    """Sessions with pruned weights take a PolyKernel that skips zeros in place of that which ships."""
    b = Builder()
    weights = b.random.standard_normal((384, 1152)).astype(np.float32)
    weights[b.random.random(weights.shape) < 0.9] = 0
    weights[5] = 0
    b.add("MatMul", ["x", b.constant("w", weights)], "y", "linear")
    model = b.model({"x": [1, 30, 384]}, {"y": [1, 30, 1152]})
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ["convert", str(tmp_path / "model.onnx"), "--rules", "*=mask"]
    converted, report = convert(model, RULES)
    (operator,) = [row.operator for row in report]
    skipping = operator.skipping_zeros()
    assert not missing(report) and list(to_build(report)) == [skipping]
    assert command.main(arguments) == 0
    assert "which its PolyKernel multiplies with: --build makes one" in capsys.readouterr().out
    assert command.main([*arguments, "--build"]) == 0
    assert re.search(r"\d+% zeros$", capsys.readouterr().out, re.MULTILINE)
    assert not to_build(report) and has_polykernel(skipping) and shared_object(skipping).name.endswith("_nonzeros.so")
    feeds = feeds_of(converted, 0.3)
    feeds["x"][:, :, 5] = np.nan
    session = session_of(converted)
    assert np.isfinite(session.run(None, feeds)[0]).all()
    feeds["x"][:, :, 5] = 0
    expected = np.where(feeds["mask"][..., None], feeds["x"] @ weights, 0)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-4)


def test_which_code_gpus_skip_zeros_with():
    """Linear layers in float32; convolutions multiply in TF32."""
    _, report = convert(network(channels=24), RULES)
    rows = {row.name: row for row in report if isinstance(row, Replaced)}
    wanted = to_build(report, "cuda")
    assert {operator.device for operator in wanted} == {"cuda"}
    skipping = {name: row.operator.on("cuda").skipping_zeros() in wanted for name, row in rows.items()}
    assert skipping == {"conv": False, "gemm": True, "matmul": True}
    lines = {line.split()[0]: line for line in command.table(report, "cuda").splitlines() if line}
    assert "zeros, which are multiplied: TF32 multiplies all weights faster" in lines["conv"]
    assert re.search(r"\d+% zeros; no PolyKernel: dense", lines["gemm"])


@with_compiler
@pytest.mark.skipif(
    not (compiler_folder() and (compiler_folder() / "distile_cuda_nonzeros.o").is_file()), reason="it is for CPUs"
)
def test_built_for_gpus(monkeypatch):
    monkeypatch.setenv("CUDACXX", "nvrtc")
    b = Builder()
    weights = b.random.standard_normal((40, 24)).astype(np.float32)
    weights[b.random.random(weights.shape) < 0.9] = 0
    b.add("MatMul", ["x", b.constant("w", weights)], "y", "linear")
    _, report = convert(b.model({"x": [1, 30, 40]}, {"y": [1, 30, 24]}), RULES)
    (operator,) = build(report, device="cuda")
    assert b"cuda-nonzeros" in shared_object(operator).read_bytes()
    assert has_polykernel(operator) and has_polykernel(operator.plain) and not to_build(report, "cuda")


@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_sessions_ask_for_code_that_skips_zeros(zeros, monkeypatch):
    asked = {}
    monkeypatch.setattr(on_demand, "ask", lambda operator, typical, cache: asked.update({operator.name: typical}))
    model, report = convert(network(zeros, channels=23), RULES)
    try:
        set_build("now")
        session_of(model)
    finally:
        set_build("never")
    (row,) = [row for row in report if row.name == "conv"]
    typical = asked[row.operator.built_for(row.typical).name]
    assert typical == {"weight_zeros": pytest.approx(0.905, abs=0.03)} if zeros else typical is None


def test_layers_of_one_shape_have_one_polykernel():
    """The PolyKernel for the pruned layer computes the other too."""
    b = Builder()
    b.conv("whole", "x", 27, 27)
    weights = b.random.standard_normal((27, 27, 3, 3)).astype(np.float32)
    weights[b.random.random(weights.shape) < 0.9] = 0
    b.add("Conv", ["whole.out", b.constant("w", weights)], "y", "pruned", pads=[1] * 4)
    _, report = convert(b.model({"x": [1, 27, 9, 9]}, {"y": [1, 27, 9, 9]}), RULES)
    (operator,) = {row.operator for row in report}
    ((wanted, typical),) = to_build(report).items()
    assert wanted == operator.skipping_zeros() and typical["weight_zeros"] > 0.8


@pytest.mark.parametrize("form", FORMS)
def test_two_of_four(form):
    """GPUs have code for the pattern in 16 bits, whichever way the model stores it."""
    model = network(channels=24, form=form, dtype=np.float16, pattern=True)
    _, report = convert(model, RULES)
    rows = {row.name: row for row in report if isinstance(row, Replaced)}
    assert {"conv", "gemm", "matmul"} == set(rows)
    assert all(row.typical["weight_pattern"] == "2:4" and row.zeros >= 0.5 for row in rows.values())
    assert {operator.name[-9:] for operator in to_build(report, "cuda")} == {"_two_four"}
    for operator, typical in to_build(report, "cuda").items():
        assert operator.to_json(typical)["typical"]["weight_pattern"] == "2:4"
    lines = {line.split()[0]: line for line in command.table(report, "cuda").splitlines() if line}
    for name in rows:
        assert re.search(r"\d+% zeros in the pattern 2:4; no PolyKernel: dense", lines[name])
    # CPUs skip these zeros as any others.
    assert {operator.zeros for operator in to_build(report)} == {"_nonzeros"}


@pytest.mark.parametrize("layer", ["conv", "gemm", "matmul"])
def test_one_weight_more_than_two_of_four(layer):
    model = network(channels=24, dtype=np.float16, pattern=True)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == f"{layer}.w"]
    weights = numpy_helper.to_array(tensor).copy()
    fours = np.moveaxis(weights, 0 if layer == "matmul" else 1, -1)
    fours[3] = 0
    fours[(7,) + (0,) * (fours.ndim - 2)][4:7] = 1
    tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    _, report = convert(model, RULES)
    rows = {row.name: row for row in report if isinstance(row, Replaced)}
    assert {name for name, row in rows.items() if "weight_pattern" not in row.typical} == {layer}
    built = {row.operator.on("cuda").built_for(row.typical) for row in rows.values()}
    assert len(built) == 3 and rows[layer].operator.on("cuda") in built
    lines = {line.split()[0]: line for line in command.table(report, "cuda").splitlines() if line}
    assert "zeros, which are multiplied: they lack the pattern 2:4" in lines[layer]


def test_no_pattern_in_other_layers():
    """In float32, and with channels that tensor cores do not take."""
    for more in (dict(channels=24), dict(channels=20, dtype=np.float16)):
        _, report = convert(network(pattern=True, **more), RULES)
        (conv,) = [row for row in report if row.name == "conv"]
        assert "weight_pattern" not in conv.typical and 0.4 < conv.zeros < 0.6


@with_compiler
@pytest.mark.skipif(
    not (compiler_folder() and (compiler_folder() / "distile_cuda_two_four.o").is_file()), reason="it is for CPUs"
)
def test_two_of_four_is_built(monkeypatch):
    """Layers of one shape with and without the pattern have a PolyKernel each."""
    monkeypatch.setenv("CUDACXX", "nvrtc")
    b = Builder()
    for name, pattern in (("pruned", True), ("whole", False)):
        weights = b.random.standard_normal((48, 48)).astype(np.float16)
        if pattern:
            two_of_four(b.random, weights, 0)
        b.add("MatMul", [{"pruned": "x", "whole": "z"}[name], b.constant(f"{name}.w", weights)],
              {"pruned": "z", "whole": "y"}[name], name)  # fmt: skip
    model = b.model({"x": [1, 30, 48]}, {"y": [1, 30, 48]})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    _, report = convert(model, RULES)
    (operator,) = {row.operator.on("cuda") for row in report}
    pattern = operator.built_for(report[0].typical)
    assert pattern.zeros == "_two_four" and set(to_build(report, "cuda")) == {operator, pattern}
    build(report[:1], device="cuda")
    assert b"cuda-two-four" in shared_object(pattern).read_bytes()
    assert has_polykernel(pattern) and not has_polykernel(operator)
    assert not missing(report[:1], "cuda") and operator in missing(report, "cuda")
    assert set(to_build(report, "cuda")) == {operator}
