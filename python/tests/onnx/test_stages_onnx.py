"""Chains of masked layers as one node, `Stage`, against the chains."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import Exported, vision_transformer
from networks import Builder, feeds_of, run
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


# ---- Tokens


def bert(layers=2, width=192, heads=3, tokens=13, batch=2):
    """Layers of BERT, with their norms behind the sums."""
    b, x = Exported(), "x"
    for number in range(layers):
        name, apart = f"/layer.{number}", []
        for part in ("query", "key", "value"):
            y = b.linear(f"{name}/{part}", x, width, width)
            shape = b.value(name, np.array([batch, -1, heads, width // heads]))
            y = b.node(name, "Reshape", y, shape)
            apart.append(b.node(name, "Transpose", y, perm=[0, 2, 3, 1] if part == "key" else [0, 2, 1, 3]))
        scores = b.node(name, "Div", b.node(name, "MatMul", *apart[:2]), b.value(name, np.float32(8)))
        y = b.node(name, "MatMul", b.node(name, "Softmax", scores, axis=-1), apart[2])
        y = b.node(name, "Transpose", y, perm=[0, 2, 1, 3])
        y = b.node(name, "Reshape", y, b.value(name, np.array([batch, -1, width])))
        x = b.layer_norm(f"{name}/norm1", b.node(name, "Add", b.linear(f"{name}/dense", y, width, width), x), width)
        y = b.gelu(name, b.linear(f"{name}/up", x, width, 2 * width))
        x = b.layer_norm(f"{name}/norm2", b.node(name, "Add", b.linear(f"{name}/down", y, 2 * width, width), x), width)
    b.add("Identity", [x], "y")
    return b.model({"x": [batch, tokens, width]}, {"y": [batch, tokens, width]})


def compare_tokens(model, gathered, densities=(0, 0.3, 1)):
    for density in densities:
        given = feeds_of(model, density)
        for one, other in zip(run(model, given), run(gathered, given)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_a_vision_transformer():
    rules, rows = [Rule("/block/*", "mask"), Rule("/norm/*", "mask")], []
    model, _ = convert(vision_transformer(), rules)
    gathered, _ = convert(vision_transformer(), rules, stages=rows)
    (row,) = rows
    (node,) = stages_of(gathered)
    stage = read_stage(node.doc_string)
    kinds = [type(step).__name__ for step in stage.steps]
    assert kinds == ["Norm", "Convolution", "Attention", "Convolution", "Norm", "Convolution", "Convolution", "Norm"]
    # What splits queries, keys and values goes, too. One transpose is of the patches.
    assert operators(gathered).count("Transpose") == 1 and row.ends == "the model ends"
    assert not any(name.startswith("Masked") for name in operators(gathered))
    assert stage.tokens == (stage.inputs[0][0],) and stage.steps[2].scale is not None
    onnx.checker.check_model(gathered)
    compare_tokens(model, gathered)


def test_layers_of_bert():
    rules, rows, source = [Rule("*", "mask")], [], bert()
    model, _ = convert(copy.deepcopy(source), rules)
    gathered, _ = convert(copy.deepcopy(source), rules, stages=rows)
    (node,) = stages_of(gathered)
    stage = read_stage(node.doc_string)
    kinds = [type(step).__name__ for step in stage.steps]
    assert kinds == 2 * ["Convolution", "Attention", "Convolution", "Norm", "Convolution", "Convolution", "Norm"]
    assert stage.steps[0].channels == 3 * 192 and set(operators(gathered)) <= {"Stage", "Identity"}
    compare_tokens(model, gathered)


def token_nodes(change=lambda nodes: None):
    """A linear layer, a norm, attention with its parts from one layer, and a sum, as nodes of distile."""
    b = Builder(3)
    b.add("MaskedLayerNorm", ["x", "mask", b.weights("n.w", 24)], "n", "n", domain="distile", epsilon=1e-3)
    b.add("MaskedLinear", ["n", b.weights("q.w", 72, 24), "mask"], "qkv", "qkv", domain="distile", transB=1)
    b.add("Reshape", ["qkv", b.constant("split", np.array([0, 0, 3, 24]))], "apart", "apart")
    for place, name in enumerate("qkv"):
        b.add("Gather", ["apart", b.constant(f"at_{name}", np.array(place))], f"{name}.part", name, axis=2)
    b.add("MaskedAttention", ["q.part", "k.part", "v.part", "mask", "mask"], "a", "attention", domain="distile",
          num_heads=3, head_dim=8, scale=0.2)  # fmt: skip
    b.add("MaskedLinear", ["a", b.weights("p.w", 24, 24), "mask", b.weights("p.b", 24), "x", "x"], "p", "p",
          domain="distile", activation="relu")  # fmt: skip
    b.add("MaskedRMSNorm", ["p", "mask2"], "r", "r", domain="distile")
    b.add("MaskedAdd", ["r", "x", "mask2"], "s", "s", domain="distile", activation="silu")
    change({node.name: node for node in b.nodes})
    kinds = {"x": ["n", "t", 24], "mask": ["n", "t"], "mask2": ["n", "t"]}
    model = b.model(kinds, {"s": ["n", "t", 24], "p": ["n", "t", 24]})
    shapes = {name: ["n", "t", count] for name, count in (("n", 24), ("qkv", 72), ("a", 24), ("p", 24), ("r", 24))}
    return model, shapes


def token_feeds(n, tokens, density):
    random = np.random.default_rng(tokens)
    masks = {name: random.random((n, tokens)) < density for name in ("mask", "mask2")}
    return {"x": random.standard_normal((n, tokens, 24)).astype(np.float32)} | masks


def expected_of(given, weights, scale=0.2):
    """What token_nodes() computes, by NumPy."""
    x, mask, mask2 = given["x"], given["mask"][..., None], given["mask2"][..., None]
    n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * weights["n.w"] * mask
    parts = (n @ weights["q.w"].T * mask).reshape(*x.shape[:2], 3, 3, 8).transpose(2, 0, 3, 1, 4)
    scores = np.where(given["mask"][:, None, None], parts[0] @ parts[1].swapaxes(-1, -2) * scale, -np.inf)
    scores = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    total = scores.sum(-1, keepdims=True)
    a = (scores / np.where(total == 0, 1, total) @ parts[2]).swapaxes(1, 2).reshape(x.shape) * mask
    p = np.where(mask, np.maximum(a @ weights["p.w"] + weights["p.b"] + x, 0), x)
    r = p / np.sqrt((p * p).mean(-1, keepdims=True) + 1e-5) * mask2
    s = (r + x) * mask2
    return s / (1 + np.exp(-s)), p


@pytest.mark.parametrize("size", [(2, 9), (1, 1), (3, 70), (1, 300)])
@pytest.mark.parametrize("density", [0, 0.4, 1])
def test_steps_of_tokens(size, density):
    model, shapes = token_nodes()
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    (row,) = gather(model, shapes=shapes)
    assert row.nodes == ["n", "qkv", "apart", "q", "k", "v", "attention", "p", "r", "s"]
    (node,) = model.graph.node
    assert list(node.output) == ["p", "s"]
    given = token_feeds(*size, density)
    for one, other in zip(run(model, given), expected_of(given, weights)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def retyped(name, place, value):
    return lambda nodes: nodes[name].input.__setitem__(place, value)


def with_attribute(node, **values):
    def change(nodes):
        kept = [one for one in nodes[node].attribute if one.name not in values]
        del nodes[node].attribute[:]
        nodes[node].attribute.extend([*kept, *(helper.make_attribute(*one) for one in values.items())])

    return change


ALL = ["n", "qkv", "apart", "q", "k", "v", "attention", "p", "r", "s"]
APART = [["n", "qkv"], ["p", "r", "s"]]  # What is left where attention is no step.


@pytest.mark.parametrize(
    "change, stages",
    [
        (retyped("attention", 4, "mask2"), APART),  # Keys of another mask.
        (retyped("attention", 4, ""), [ALL]),  # All keys.
        (retyped("attention", 0, "k.part"), APART),  # Keys in the place of queries.
        (with_attribute("attention", is_causal=1), APART),
        (with_attribute("q", axis=1), APART),
        (with_attribute("s", other_activation="sigmoid"), [ALL[:-1]]),
        (retyped("s", 1, "r"), [ALL[:-1]]),
    ],
)
def test_which_nodes_are_in_a_stage(change, stages):
    model, shapes = token_nodes(change)
    assert [row.nodes for row in gather(model, shapes=shapes)] == stages


def test_shapes_that_nobody_knows():
    """Without them, nobody knows whether a linear layer is of tokens or a sum has one pixel for each image."""
    model, _ = token_nodes()
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.ClearField("shape")
    assert not gather(model)


def test_tokens_and_images_are_stages_of_their_own():
    builder = Builder()
    a = masked_conv(builder, "a", "x", "mask", 4, 4)
    b = masked_conv(builder, "b", a, "mask", 4, 4)
    for name, x in (("c", "t"), ("d", "c.out")):
        builder.add("MaskedLinear", [x, builder.weights(f"{name}.w", 8, 8), "mask_t"], f"{name}.out", name, domain="distile")
    model = builder.model({"x": ["n", "h", "w", 4], "mask": ["n", "h", "w"], "t": ["n", "k", 8], "mask_t": ["n", "k"]},
                          {b: None, "d.out": None})  # fmt: skip
    gathered = copy.deepcopy(model)
    first, second = gather(gathered)
    assert (first.nodes, second.nodes) == (["a", "b"], ["c", "d"]) and first.ends == "c takes tokens"
    given = {"x": feeds(2, 6, 7, 1)["x"], "mask": feeds(2, 6, 7, 0.4)["mask"],
             "t": np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32),
             "mask_t": np.random.default_rng(1).random((2, 5)) < 0.6}  # fmt: skip
    results = run(gathered, given)
    for one, other in zip(results, run(model, given)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


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
