"""Models as they come: control flow, names that are taken, and weights in files."""

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import Builder, check, feeds_of, run
from onnx import TensorProto, helper, numpy_helper
from test_conversion import compare, ops, residual_network

import distile.onnx.weights as files
from distile.onnx import Left, Replaced, Rule, building, convert, load, session_options
from distile.onnx import __main__ as command
from distile.onnx.graph import nodes_in


def test_control_flow():
    """Bodies stay, and the report says why."""
    b = Builder()
    b.conv("c", "x", 4, 4)
    body = Builder()
    body.conv("inner", "c.out", 4, 4)
    outer = Builder()
    outer.add("Relu", ["c.out"], "other")
    branches = [
        helper.make_graph(part.nodes, name, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, [2, 4, 6, 5])],
                          part.initializers)
        for part, name, out in ((body, "then", "inner.out"), (outer, "else", "other"))
    ]  # fmt: skip
    b.nodes.append(helper.make_node("If", ["deep"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1]))
    b.conv("d", "y", 4, 4)
    model = b.model({"x": [2, 4, 6, 5], "deep": []}, {"d.out": [2, 4, 6, 5]})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    converted, report = convert(check(model), [Rule("*", "mask")])
    rows = {row.name: row for row in report}
    assert isinstance(rows["c"], Replaced)
    assert (rows["choice"].name, rows["choice"].op) == ("choice", "If")
    assert rows["choice"].reason.startswith("its bodies stay") and ": 1 nodes in them" in rows["choice"].reason
    assert rows["d"].reason == "each of its outputs sees all pixels"
    reference, _ = convert(model, [Rule("*", "mask")], reference=True)
    for deep in (False, True):
        feeds = {**feeds_of(converted, 0.4), "deep": np.array(deep)}
        np.testing.assert_allclose(*(run(one, feeds)[0] for one in (converted, reference)), rtol=1e-4, atol=1e-5)


def names_of(model):
    return [node.name for node in nodes_in(model.graph) if node.name]


def test_an_unnamed_node_whose_output_is_named_as_another():
    """Each gets its own weights and its own name."""
    b = Builder()
    for place, (source, output) in enumerate((("x", "conv"), ("conv", "y"))):
        node = ["", "conv"][place]
        b.add("Conv", [source, b.weights(f"w{place}", 4, 4, 3, 3), b.weights(f"b{place}", 4)], output, pads=[1] * 4)
        b.nodes[-1].name = node
    converted, report = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}), [Rule("*", "mask")])
    assert len(report) == 2 and len(set(names_of(converted))) == len(names_of(converted))


def test_names_that_are_taken():
    """Tensors and nodes of the model that are named as ours."""
    b = Builder()
    b.conv("c", "x", 4, 4)
    for taken in ("x/nhwc", "c/masked", "distile/MaskPool", "distile/c/2", "n/mean", "distile/constant"):
        b.add("Relu", ["x"], taken, taken)
    b.conv("d", "c.out", 4, 4, stride=2)
    b.add("InstanceNormalization", ["d.out", b.weights("s", 4), b.weights("t", 4)], "y", "n")
    others = {node.output[0]: [2, 4, 6, 5] for node in b.nodes if node.op_type == "Relu"}
    converted, report = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 3, 3], **others}), [Rule("*", "mask")])
    assert all(isinstance(row, Replaced) for row in report) and len(report) == 3
    assert len(names_of(converted)) == len(set(names_of(converted)))


def test_converting_again():
    """A second conversion names nothing as the first did."""
    model = residual_network()
    once, _ = convert(model, [Rule("b2/*", "late")])
    twice, report = convert(once, [Rule("b1/*", "early")])
    assert {row.name for row in report if isinstance(row, Replaced)} == {"b1/conv1", "b1/conv2"}
    feeds = feeds_of(twice, 0.5)
    both, _ = convert(model, [Rule("b1/*", "early"), Rule("b2/*", "late")])
    np.testing.assert_allclose(run(twice, feeds)[0], run(both, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.fixture
def in_files(tmp_path):
    """A model with its weights in a file, and the same without."""
    model = residual_network()
    stored = onnx.ModelProto()
    stored.CopyFrom(model)
    path = tmp_path / "model.onnx"
    onnx.save(stored, path, save_as_external_data=True, location="model.onnx.weights", size_threshold=0)
    return model, path


@pytest.mark.parametrize("masked", [False, True])
def test_weights_in_files(masked, in_files, monkeypatch, capsys):
    """As for models above 2 GB: the weights are read as they are needed, and written into one file, whether nodes stay
    because they would run dense or not."""
    model, path = in_files
    lacking = {} if masked else building.missing(convert(model, [Rule("b*", "mask")])[1])
    monkeypatch.setattr(building, "running_dense", lambda *_: lacking)
    # No small tensor is excepted, and whole weights are never in memory at once.
    monkeypatch.setattr(files, "PIECE", 100)
    assert command.main(["convert", str(path), "--rules", "b*=mask"]) == 0
    assert "5 nodes replaced, 2 left" in capsys.readouterr().out
    result = path.with_suffix(".masked.onnx")
    stored = onnx.load(result, load_external_data=False)
    large = [tensor for tensor in stored.graph.initializer if files.bytes_of(tensor) > files.SMALL]
    assert large and all(files.is_external(tensor) for tensor in large)
    (path.parent / "model.onnx.weights").unlink()  # The result needs none of the model's files.
    expected, _ = convert(model, [Rule("b*", "mask")], dense=lacking)
    assert ("MaskedConv" in ops(stored)) == masked
    feeds = feeds_of(expected, 0.4)
    session = onnxruntime.InferenceSession(str(result), session_options(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], run(expected, feeds)[0])


def test_constants_from_weights_in_files(tmp_path):
    b = Builder()
    b.weights("stored", 3, 3, 4, 8)
    b.add("Transpose", ["stored"], "weights", perm=[3, 2, 0, 1])
    b.add("Conv", ["x", "weights"], "c", "conv", pads=[1] * 4)
    b.add("Mul", ["c", b.weights("scales", 8, 1, 1)], "y", "scale")
    model = b.model({"x": [2, 4, 6, 5]}, {"y": [2, 8, 6, 5]})
    expected, _ = compare(model, [Rule("*", "mask")])
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    converted, report = convert(load(tmp_path / "model.onnx"), [Rule("*", "mask")], folder=tmp_path)
    assert ops(converted) == ops(expected) and [node.op_type for node in report[0].nodes] == ["Conv", "Mul"]
    feeds = feeds_of(expected, 0.4)
    np.testing.assert_array_equal(run(converted, feeds)[0], run(expected, feeds)[0])


def test_files_are_not_written_over(in_files, tmp_path):
    model, path = in_files
    converted, _ = convert(load(path), [Rule("b*", "mask")], folder=tmp_path)
    (tmp_path / "out.onnx.data").symlink_to(tmp_path / "model.onnx.weights")
    with pytest.raises(ValueError, match="would be written"):
        files.save(converted, tmp_path / "out.onnx", tmp_path)
    assert (tmp_path / "model.onnx.weights").stat().st_size > 0


def test_a_large_model_in_memory(tmp_path, monkeypatch):
    """Neither inference nor the check takes weights, which together are larger than a protocol buffer may be."""
    model = residual_network()
    largest = []
    for module, name in ((onnx.shape_inference, "infer_shapes"), (onnx.checker, "check_model")):
        call = getattr(module, name)

        def limited(given, *arguments, call=call, **more):
            largest.append(max((len(tensor.raw_data) for tensor in given.graph.initializer), default=0))
            return call(given, *arguments, **more)

        monkeypatch.setattr(module, name, limited)
    converted, _ = convert(model, [Rule("b*", "mask")])
    assert len(largest) >= 3 and max(largest) <= files.SMALL
    files.save(converted, tmp_path / "out.onnx", largest=1000)
    whole = onnx.load(tmp_path / "out.onnx")
    expected, _ = convert(model, [Rule("b*", "mask")])
    assert [numpy_helper.to_array(one).tolist() for one in whole.graph.initializer] == [
        numpy_helper.to_array(one).tolist() for one in expected.graph.initializer
    ]
    assert ops(whole) == ops(expected)
