"""Chains of masked convolutions as one node, `Stage`, against the chains."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import Builder, run
from onnx import TensorProto, helper, numpy_helper
from test_conversion import residual_network

from distile.onnx import Rule, convert, save
from distile.onnx import __main__ as command
from distile.onnx.stages import gather
from distile.stage_description import read_stage

SIZES = [(2, 9, 13), (1, 6, 35), (3, 16, 3)]


def masked_conv(builder, name, x, mask, out, inner, kernel=3, stride=1, residual="", kept="", **more):
    """A node as convert writes it."""
    inputs = [x, builder.weights(f"{name}.w", out, inner, kernel, kernel), mask, builder.weights(f"{name}.b", out)]
    inputs += [residual, kept]
    while not inputs[-1]:
        inputs.pop()
    attributes = dict(pads=[kernel // 2] * 4, strides=[stride] * 2, group=1, layout="NHWC", kernel_shape=[kernel] * 2)
    return builder.add("MaskedConv", inputs, f"{name}.out", name, domain="distile", **{**attributes, **more})


def feeds(n, height, width, density, channels=4):
    random = np.random.default_rng(n * 1000 + height)
    found = {name: random.standard_normal((n, height, width, channels)).astype(np.float32) for name in ("x", "z")}
    return found | {name: random.random((n, height, width)) < density for name in ("mask", "mask2")}


def inputs():
    return {"x": ["n", "h", "w", 4], "z": ["n", "h", "w", 4], "mask": ["n", "h", "w"], "mask2": ["n", "h", "w"]}


def compare(model, gathered):
    for size in SIZES:
        for density in (0, 0.4, 1):
            given = feeds(*size, density)
            for one, other in zip(run(model, given), run(gathered, given)):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def stages_of(model):
    return [node for node in model.graph.node if node.op_type == "Stage"]


def test_depthwise_convolutions():
    builder = Builder()
    a = masked_conv(builder, "a", "x", "mask", 24, 4, 1, activation="relu6")
    b = masked_conv(builder, "b", a, "mask", 24, 1, group=24, activation="relu6")
    c = masked_conv(builder, "c", b, "mask", 4, 24, 1, residual="x", kept="x")
    # Layers with other groups are faster.
    d = masked_conv(builder, "d", c, "mask", 4, 2, group=2)
    model = builder.model(inputs(), {d: None, c: None})
    gathered = copy.deepcopy(model)
    (row,) = gather(gathered)
    assert row.nodes == ["a", "b", "c"]
    compare(model, gathered)


def test_each_input_of_a_convolution():
    builder = Builder()
    a = masked_conv(builder, "a", "x", "mask", 4, 4, 1, activation="relu")
    b = masked_conv(builder, "b", a, "mask2", 4, 4, residual="z", activation="leaky_relu(0.2)")
    c = masked_conv(builder, "c", b, "mask", 4, 4, kept="z")
    d = masked_conv(builder, "d", c, "mask2", 4, 4, residual=c, kept=b, activation="silu")
    e = masked_conv(builder, "e", d, "mask", 6, 4, dilations=[2, 2], pads=[2, 2, 2, 2])
    model = builder.model(inputs(), {e: None, c: None})
    gathered = copy.deepcopy(model)
    (row,) = gather(gathered)
    assert row.nodes == ["a", "b", "c", "d", "e"] and row.ends == "the model ends"
    (node,) = stages_of(gathered)
    assert list(node.output) == [c, e] and len(gathered.graph.node) == 1
    assert [one.name for one in gathered.graph.initializer] == ["distile/stage_0/parameters"]
    stage = read_stage(node.doc_string)
    assert [step.mask for step in stage.steps] == ["mask", "mask2", "mask", "mask2", "mask"]
    compare(model, gathered)


def test_strides_and_a_mask_for_all_images():
    builder = Builder()
    a = masked_conv(builder, "a", "x", "mask", 8, 4, 3, activation="relu")
    b = masked_conv(builder, "b", a, "half", 6, 8, 3, 2)
    c = masked_conv(builder, "c", a, "half", 6, 8, 1, 2, residual=b, activation="relu")
    kinds = {"x": ["n", 8, 12, 4], "mask": [1, 8, 12], "mask_half": [1, 4, 6]}
    builder.nodes[1].input[2] = builder.nodes[2].input[2] = "mask_half"
    model = builder.model(kinds, {c: None})
    gathered = copy.deepcopy(model)
    assert len(gather(gathered)) == 1
    random = np.random.default_rng(0)
    given = {"x": random.standard_normal((3, 8, 12, 4)).astype(np.float32), "mask": random.random((1, 8, 12)) < 0.5,
             "mask_half": random.random((1, 4, 6)) < 0.5}  # fmt: skip
    np.testing.assert_allclose(run(model, given)[0], run(gathered, given)[0], rtol=1e-4, atol=1e-5)


def drawn(seed):
    """A network of convolutions and of other nodes that read them."""
    builder = Builder(seed)
    random, images = builder.random, ["x", "z"]
    for number in range(12):
        x, y, z = (images[-1] if random.random() < 0.6 else images[random.integers(len(images))] for _ in range(3))
        mask = ("mask", "mask2")[random.integers(2)]
        kind = random.integers(6)
        if kind < 4:
            name = masked_conv(
                builder, f"c{number}", x, mask, 4, 4, (1, 3)[random.integers(2)],
                residual=("", y)[random.integers(2)], kept=("", z)[random.integers(2)],
                activation=("none", "relu", "sigmoid")[random.integers(3)],
            )  # fmt: skip
        else:
            name = builder.add("Relu" if kind == 4 else "Add", [x] if kind == 4 else [x, y], f"o{number}")
        images.append(name)
    outputs = dict.fromkeys([images[-1], images[2 + random.integers(len(images) - 2)]], inputs()["x"])
    return builder.model(inputs(), outputs)


def test_networks_at_random():
    found = 0
    for seed in range(60):
        model = drawn(seed)
        gathered = copy.deepcopy(model)
        found += len(gather(gathered))
        onnx.checker.check_model(gathered)
        for size in SIZES[:2]:
            given = feeds(*size, 0.4)
            for one, other in zip(run(model, given), run(gathered, given)):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}")
    assert found > 40


def test_what_is_in_no_stage():
    builder = Builder()
    a = masked_conv(builder, "a", "x", "mask", 4, 4, group=1)
    b = builder.add("Relu", [a], "b")
    c = masked_conv(builder, "c", b, "mask", 4, 4)
    d = masked_conv(builder, "d", c, "mask", 4, 4)
    model = builder.model(inputs(), {d: None})
    gathered = copy.deepcopy(model)
    (row,) = gather(gathered)
    assert row.nodes == ["c", "d"]
    compare(model, gathered)
    for change in ("group", "layout", "weights"):
        other = copy.deepcopy(model)
        node = other.graph.node[2]
        if change == "weights":
            other.graph.input.append(helper.make_tensor_value_info("c.w", TensorProto.FLOAT, [4, 4, 3, 3]))
        else:
            attribute = next(one for one in node.attribute if one.name == change)
            attribute.CopyFrom(helper.make_attribute(change, 2 if change == "group" else "NCHW"))
        assert not gather(other)


def test_masks_beyond_the_places():
    builder, x = Builder(), "x"
    names = [f"mask_{number}" for number in range(11)]
    for name in names:
        x = masked_conv(builder, f"c_{name}", x, name, 4, 4, residual=x, kept=x)
    model = builder.model({"x": ["n", 6, 7, 4]} | {name: ["n", 6, 7] for name in names}, {x: None})
    gathered = copy.deepcopy(model)
    first, second = gather(gathered)
    assert [len(row.nodes) for row in (first, second)] == [8, 3] and "more images or masks" in first.ends
    random = np.random.default_rng(0)
    given = {name: random.random((2, 6, 7)) < 0.3 for name in names}
    given["x"] = random.standard_normal((2, 6, 7, 4)).astype(np.float32)
    np.testing.assert_allclose(run(model, given)[0], run(gathered, given)[0], rtol=1e-4, atol=1e-5)


def test_converted_models(tmp_path, capsys):
    rows = []
    model, _ = convert(residual_network(), [Rule("*", "mask")])
    gathered, _ = convert(residual_network(), [Rule("*", "mask")], stages=rows)
    assert rows and len(stages_of(gathered)) == len(rows)
    shapes = {value.name: [one.dim_value or 2 for one in value.type.tensor_type.shape.dim]
              for value in model.graph.input}  # fmt: skip
    random = np.random.default_rng(1)
    given = {name: random.random(shape) < 0.4 if name == "mask" else random.standard_normal(shape).astype(np.float32)
             for name, shape in shapes.items()}  # fmt: skip
    for one, other in zip(run(model, given), run(gathered, given)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    onnx.save(residual_network(), tmp_path / "model.onnx")
    assert command.main(["convert", str(tmp_path / "model.onnx"), "--stages"]) == 0
    assert f"stage of {len(rows[0].nodes)} nodes, {rows[0].nodes[0]} to" in capsys.readouterr().out
    written = onnx.load(tmp_path / "model.masked.onnx")
    for one, other in zip(run(written, given), run(gathered, given)):
        np.testing.assert_array_equal(one, other)


def test_weights_in_files(tmp_path):
    model, _ = convert(residual_network(), [Rule("*", "mask")])
    plain = copy.deepcopy(model)
    save(model, tmp_path / "model.onnx", largest=1)
    loaded = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert gather(loaded, tmp_path) and gather(plain)
    arrays = [next(one for one in each.graph.initializer if one.name.endswith("stage_0/parameters"))
              for each in (loaded, plain)]  # fmt: skip
    np.testing.assert_array_equal(*map(numpy_helper.to_array, arrays))


def changed(change):
    builder = Builder()
    a = masked_conv(builder, "a", "x", "mask", 4, 4)
    b = masked_conv(builder, "b", a, "mask", 4, 4, residual="z")
    model = builder.model(inputs(), {b: None})
    gather(model)
    change(model, {one.name: one for one in model.graph.node[0].attribute})
    return model


def resized(model, attributes):
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:-1], tensor.name))


@pytest.mark.parametrize(
    "change, says",
    [
        (resized, "the parameters of a stage are not those of its steps"),
        (lambda model, a: a["channels"].ints.__setitem__(0, 5), "the parameters of a stage are not those"),
        (lambda model, a: a["channels"].ints.__setitem__(0, 0), "the parameters of a stage are not those"),
        (lambda model, a: a["input_channels"].ints.pop(), "the channels of its inputs"),
        (lambda model, a: a["steps"].ints.pop(), "not those of its steps"),
        (lambda model, a: a["steps"].ints.__setitem__(0, 1), "step 0 of a stage"),
        (lambda model, a: a["steps"].ints.__setitem__(1, 9), "names the image 9"),
        (lambda model, a: a["results"].ints.__setitem__(0, 0), "none of its steps makes"),
        (lambda model, a: a["results"].ints.__setitem__(0, -1), "none of its steps makes"),
        (lambda model, a: model.graph.node[0].attribute.extend([helper.make_attribute("layout", "NHWC")]), "layout"),
    ],
)
def test_wrong_nodes(change, says):
    with pytest.raises(Exception, match=says):
        run(changed(change), feeds(1, 6, 7, 0.5))


@pytest.mark.parametrize("wrong, says", [("x", "with 4 channels"), ("z", "of another shape"), ("mask", "mask")])
def test_wrong_inputs(wrong, says):
    model = changed(lambda model, attributes: None)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    given = feeds(1, 6, 7, 0.5)
    given[wrong] = given[wrong][..., :3] if wrong == "x" else np.ascontiguousarray(given[wrong][:, :4])
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match=says):
        run(model, given)


def test_empty_batches():
    model = changed(lambda model, attributes: None)
    assert run(model, feeds(0, 6, 7, 0.5))[0].shape == (0, 6, 7, 4)
