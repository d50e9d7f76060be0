"""Nodes in the forms of all opsets and exporters, against the same model in standard operators."""

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import Builder, feeds_of, run
from onnx import TensorProto, helper, numpy_helper
from test_conversion import compare, ops

from distile.onnx import Left, Rule, convert
from distile.onnx.building import build
from distile.toolchain import compiler_folder

MASK = [Rule("*", "mask")]
with_compiler = pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")


def reasons(report):
    return {row.name: row.reason for row in report if isinstance(row, Left)}


def inferred(b, shape, opset=22):
    """A model of one input and one output, whose shape ONNX infers."""
    return onnx.shape_inference.infer_shapes(b.model({"x": shape}, {"y": None}, opset=opset))


# Opsets


def softmax_network(opset, **attributes):
    b = Builder()
    for name in "qkv":
        b.add("MatMul", ["x", b.weights(f"w{name}", 192, 192)], f"{name}.tokens", f"project_{name}")
        b.add("Reshape", [f"{name}.tokens", b.constant(f"split_{name}", np.array([0, 0, 3, 64]))], f"{name}.split")
        b.add("Transpose", [f"{name}.split"], name, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3])
    scores = b.add("Div", [b.add("MatMul", ["q", "k"], "scores", "attention"), b.constant("eight", np.float32(8))], "s")
    b.add("MatMul", [b.add("Softmax", [scores], "weights", **attributes), "v"], "heads", "product")
    b.add("Reshape", [b.add("Transpose", ["heads"], "back", perm=[0, 2, 1, 3]), b.constant("j", np.array([0, 0, 192]))],
          "y")  # fmt: skip
    return b.model({"x": [2, 13, 192]}, {"y": [2, 13, 192]}, opset=opset)


@pytest.mark.parametrize("opset, attributes, taken", [(12, {}, False), (12, {"axis": 3}, True), (13, {}, True)])
def test_softmax_without_axis(opset, attributes, taken):
    """Before opset 13, it is over all dimensions but the first."""
    converted, report = compare(softmax_network(opset, **attributes), [Rule("attention", "mask")], tolerance=1e-4)
    assert ("MaskedAttention" in ops(converted)) == taken
    assert (reasons(report).get("attention") == "its product is no part of attention without a mask") != taken


@pytest.mark.parametrize("least, most, taken", [(0.0, 6.0, True), (0.0, None, True), (None, 6.0, False)])
def test_clip_with_attributes(least, most, taken):
    b = Builder()
    limits = {name: value for name, value in (("min", least), ("max", most)) if value is not None}
    b.add("Clip", [b.conv("conv", "x", 4, 4)], "y", **limits)
    _, (row,) = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}, opset=10), MASK)
    assert [node.op_type for node in row.nodes] == (["Conv", "Clip"] if taken else ["Conv"])


def test_norm_of_more_than_channels():
    """Before opset 9, a batch norm may have statistics for each pixel."""
    b = Builder()
    b.conv("conv", "x", 4, 4)
    vectors = [b.weights(name, 4, 6, 5) for name in ("scale", "bias", "mean")]
    vectors.append(b.constant("variance", np.full((4, 6, 5), 2, np.float32)))
    b.add("BatchNormalization", ["conv.out", *vectors], "y", "norm", spatial=0)
    converted, report = convert(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}, opset=8), MASK)
    assert reasons(report) == {"norm": "its statistics are not constant"}
    assert ops(converted).count("BatchNormalization") == 1


def pyramid(opset):
    """Nearest upsampling before a convolution and before an addition, pooled masks, relu6, global pooling."""
    b = Builder()
    clip = dict(min=0.0, max=6.0) if opset < 11 else {}
    limits = [] if opset < 11 else [b.constant("zero", np.float32(0)), b.constant("six", np.float32(6))]
    x = b.add("Clip", [b.conv("first", "x", 4, 4), *limits], "clipped", **clip)
    small = b.conv("second", x, 4, 4, stride=2)
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    region = [] if opset < 11 else [b.constant("roi", np.zeros(0, np.float32)) if opset < 13 else ""]
    how = {} if opset < 11 else dict(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    op = "Upsample" if opset < 10 else "Resize"
    large = b.add(op, [small, *region, scales], "large", "up", mode="nearest", **how)
    b.conv("third", b.add("Add", [large, x], "sum"), 4, 4)
    b.conv("fourth", b.add(op, [small, *region, scales], "larger", "up2", mode="nearest", **how), 4, 4)
    b.add("Concat", ["third.out", "fourth.out"], "y", axis=1)
    return b.model({"x": [2, 4, 7 + 5, 10]}, {"y": [2, 8, 12, 10]}, opset=opset)


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13, 18, 24])
def test_opsets(opset):
    converted, report = compare(pyramid(opset), MASK)
    assert not reasons(report) and ops(converted).count("Transpose") == 2
    assert "MaskedUpsampleConv" in ops(converted)


def test_masks_that_blocks_do_not_divide():
    """A reference pools masks in every opset."""
    for opset in (9, 12, 24):
        b = Builder()
        b.conv("second", b.conv("first", "x", 4, 4), 4, 4, stride=2)
        compare(b.model({"x": [2, 4, 7, 9]}, {"second.out": [2, 4, 4, 5]}, opset=opset), MASK)


@pytest.mark.parametrize("opset", [7, 8])
def test_opsets_before_references(opset):
    """Upsample has its scales as an attribute."""
    reference, _ = convert(pyramid(9), MASK, reference=True)
    model = pyramid(9)
    model.opset_import[0].version = opset
    for node in model.graph.node:
        if node.op_type == "Upsample":
            del node.input[1]
            node.attribute.append(helper.make_attribute("scales", [1.0, 1.0, 2.0, 2.0]))
    onnx.checker.check_model(model)
    converted, _ = convert(model, [Rule("up", None), *MASK])
    assert ops(converted).count("Upsample") == 1 and ops(converted).count("Transpose") == 2
    converted, _ = convert(model, MASK)
    feeds = feeds_of(converted, 0.4)
    np.testing.assert_allclose(run(converted, feeds)[0], run(reference, feeds)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=f"opset is {opset}, but a reference needs 9 or later"):
        convert(model, MASK, reference=True)


def test_the_oldest_opset():
    model = pyramid(9)
    model.opset_import[0].version = 6
    with pytest.raises(ValueError, match="opset is 6, but must be 7 or later: onnx.version_converter"):
        convert(model, MASK)


# Constants


def _as_weights(b, how, value, opset=17):
    """Weights behind nodes."""
    axes = lambda axis: (([], {"axes": [axis]}) if opset < 13 else ([b.constant(f"axis{axis}", np.array([axis]))], {}))
    if how == "Cast":
        return b.add("Cast", [b.constant("w64", value.astype(np.float64))], "w", to=TensorProto.FLOAT)
    if how == "Transpose":
        return b.add("Transpose", [b.constant("wt", value.transpose(3, 2, 0, 1).copy())], "w", perm=[2, 3, 1, 0])
    if how == "Reshape":
        shape = b.constant("shape", np.array(value.shape))
        return b.add("Reshape", [b.constant("flat", value.reshape(-1)), shape], "w")
    if how == "ConstantOfShape":
        filled = numpy_helper.from_array(np.array([0.125], np.float32))
        return b.add("ConstantOfShape", [b.constant("shape", np.array(value.shape))], "w", value=filled)
    if how == "Unsqueeze":
        more, attributes = axes(0)
        return b.add("Unsqueeze", [b.constant("inner", value[0]), *more], "w", **attributes)
    if how == "Slice":
        large = b.constant("large", np.concatenate([value, value]))
        if opset < 10:
            return b.add("Slice", [large], "w", starts=[0], ends=[len(value)], axes=[0])
        ends = [b.constant(name, np.array([place])) for name, place in (("from", 0), ("to", len(value)), ("along", 0))]
        return b.add("Slice", [large, *ends], "w")
    if how == "Concat":
        parts = [b.constant(f"part{place}", part) for place, part in enumerate((value[:1], value[1:]))]
        return b.add("Concat", parts, "w", axis=0)
    if how == "weight norm":
        norm = b.add("ReduceL2", [b.constant("direction", value)], "length", axes=[1, 2, 3], keepdims=1)
        return b.add("Mul", [b.add("Div", ["direction", norm], "unit"), b.weights("size", len(value), 1, 1, 1)], "w")
    assert how == "Identity"
    return b.add("Identity", [b.constant("shared", value)], "w")


@pytest.mark.parametrize(
    "how",
    ["Cast", "Transpose", "Reshape", "ConstantOfShape", "Unsqueeze", "Slice", "Concat", "Identity", "weight norm"],
)
@pytest.mark.parametrize("opset", [9, 17])
def test_weights_behind_nodes(how, opset):
    b = Builder()
    outer = 1 if how == "Unsqueeze" else 5
    value = b.random.standard_normal((outer, 4, 3, 3)).astype(np.float32) / 6
    b.add("Conv", ["x", _as_weights(b, how, value, opset)], "y", "conv", pads=[1] * 4)
    converted, report = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, outer, 6, 5]}, opset=opset), MASK)
    assert ops(converted) == ["Transpose", "MaskedConv", "Transpose"]


def with_initializers_as_inputs(model, names, ir_version):
    for tensor in model.graph.initializer:
        if tensor.name in names:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            model.graph.input.append(value)
    model.ir_version = ir_version
    return model


def test_initializers_before_ir_version_4():
    """All are inputs, but constants for ONNX Runtime."""
    b = Builder()
    b.conv("conv", "x", 4, 4)
    model = b.model({"x": [2, 4, 6, 5]}, {"conv.out": [2, 4, 6, 5]}, opset=9)
    model = with_initializers_as_inputs(model, {"conv.w", "conv.b"}, 3)
    converted, report = convert(onnx.ModelProto.FromString(model.SerializeToString()), MASK)
    assert not reasons(report) and [value.name for value in converted.graph.input] == ["x", "mask"]
    feeds = feeds_of(converted, 1.0)
    (expected,) = run(model, {"x": feeds["x"]})
    np.testing.assert_allclose(run(converted, feeds)[0], expected, rtol=1e-5, atol=1e-5)
    reference, _ = convert(model, MASK, reference=True)
    feeds = feeds_of(converted, 0.4)
    np.testing.assert_allclose(run(converted, feeds)[0], run(reference, feeds)[0], rtol=1e-5, atol=1e-5)


def test_initializers_that_callers_may_replace():
    """Such initializers are no constants. They keep their values where no caller sets them, also if nothing reads
    them."""
    b = Builder()
    b.conv("fixed", "x", 4, 4)
    b.conv("free", "fixed.out", 4, 4)
    b.constant("unread", np.float32(3))
    model = with_initializers_as_inputs(
        b.model({"x": [2, 4, 6, 5]}, {"free.out": [2, 4, 6, 5]}), {"free.w", "unread"}, 8
    )
    converted, report = convert(model, MASK)
    assert reasons(report) == {"free": "its weights are not constant"}
    feeds = {"x": feeds_of(converted, 1.0)["x"], "mask": np.ones((2, 6, 5), bool)}
    given = {"free.w": np.random.default_rng(5).standard_normal((4, 4, 3, 3)).astype(np.float32)}
    for more in ({}, given):
        (expected,) = run(model, {"x": feeds["x"], **more})
        np.testing.assert_allclose(run(converted, {**feeds, **more})[0], expected, rtol=1e-4, atol=1e-4)


def test_large_constants_stay(monkeypatch):
    monkeypatch.setattr("distile.onnx.constants.LARGEST", 100)
    b = Builder()
    b.add("Conv", ["x", b.add("Identity", [b.weights("shared", 4, 4, 3, 3)], "w")], "y", "conv", pads=[1] * 4)
    _, report = convert(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}), MASK)
    assert reasons(report) == {"conv": "its weights are not constant"}


# Windows and matrices


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("kernel, stride, dilation", [(3, 1, 1), (3, 2, 1), (4, 2, 1), (2, 1, 2)])
def test_auto_pad(op, auto_pad, kernel, stride, dilation):
    if dilation > 1 and auto_pad != "VALID":
        pytest.skip("ONNX Runtime has no such dilations")
    b = Builder()
    window = dict(kernel_shape=[kernel] * 2, strides=[stride] * 2, auto_pad=auto_pad)
    if op == "AveragePool":
        window["count_include_pad"] = 1
    else:
        window["dilations"] = [dilation] * 2
    inputs = ["x"] if "Pool" in op else ["x", b.weights("w", 4, 4, kernel, kernel)]
    b.add(op, inputs, "y", "node", **window)
    converted, report = compare(inferred(b, [2, 4, 9, 8]), MASK)
    assert not reasons(report) and f"Masked{op}" in ops(converted)


def test_auto_pad_of_unknown_extents():
    b = Builder()
    b.add("Conv", ["x", b.weights("w", 4, 4, 3, 3)], "y", "conv", auto_pad="SAME_UPPER", strides=[2, 2])
    _, report = convert(b.model({"x": [2, 4, "h", "w"]}, {"y": None}), MASK)
    assert reasons(report) == {"conv": "it has auto_pad and strides, and the extents of its input are not known"}


@pytest.mark.parametrize("shape, more", [([10, 12], {}), ([9, 11], {}), ([12, 12], {"output_padding": [1, 1]})])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER"])
def test_output_shape(shape, more, auto_pad):
    b = Builder()
    attributes = dict(output_shape=shape, auto_pad=auto_pad, strides=[2, 2], **more)
    b.add("ConvTranspose", ["x", b.weights("w", 4, 3, 4, 3)], "y", "up", **attributes)
    converted, report = compare(inferred(b, [2, 4, 5, 6]), MASK)
    assert not reasons(report) and "MaskedConvTranspose" in ops(converted)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("kernel, stride, pad", [(3, 2, 0), (3, 2, 1), (2, 3, 1), (3, 3, 0), (2, 2, 0)])
def test_ceil_mode(op, kernel, stride, pad):
    b = Builder()
    b.add(op, ["x"], "y", "pool", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, ceil_mode=1)
    converted, report = compare(inferred(b, [2, 4, 7, 8]), MASK)
    assert not reasons(report) and f"Masked{op}" in ops(converted)


@pytest.mark.parametrize("opset", [10, 19])
@pytest.mark.parametrize("kernel, stride, pads", [(3, 2, (1, 1, 1, 1)), (2, 2, (0, 0, 0, 0)), (3, 3, (0, 1, 1, 0))])
def test_ceil_mode_that_counts_padding(kernel, stride, pads, opset):
    """Its own padding counts, and what lies behind that does not."""
    b = Builder()
    more = dict(kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, ceil_mode=1, count_include_pad=1)
    b.add("AveragePool", ["x"], "y", "pool", **more)
    converted, report = compare(inferred(b, [2, 4, 7, 8], opset), MASK)
    assert not reasons(report) and "MaskedAveragePool" in ops(converted)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1,), (1, 1), (), None])
@pytest.mark.parametrize("factors", [{}, dict(alpha=0.5, beta=2.0)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(shape, factors, transposed):
    b = Builder()
    inputs = ["x", b.weights("w", *((3, 6) if transposed else (6, 3)))]
    if shape is not None:
        inputs.append(b.constant("bias", b.random.standard_normal(shape).astype(np.float32)))
    b.add("Gemm", inputs, "y", "gemm", transB=transposed, **factors)
    b.add("Relu", ["y"], "z")
    converted, report = compare(b.model({"x": [7, 6]}, {"z": [7, 3]}), MASK)
    assert ops(converted) == ["MaskedLinear"]


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_of_a_transposed_input(transposed):
    b = Builder()
    weights = [b.weights("w", *((3, 6) if transposed else (6, 3))), b.weights("b", 3)]
    turned = b.add("Transpose", ["x"], "t", perm=[1, 0])
    b.add("Gemm", [turned, *weights], "y", "gemm", transA=1, transB=transposed, alpha=0.5)
    converted, report = compare(b.model({"x": [7, 6]}, {"y": [7, 3]}), MASK)
    assert not reasons(report) and ops(converted).count("MaskedLinear") == 1


def test_gemm_with_other_biases():
    b = Builder()
    b.add("Gemm", ["x", b.weights("w", 6, 3), b.weights("c", 7, 1)], "y", "gemm")
    b.add("Gemm", ["x", "w", b.add("Add", ["x", "x"], "sum")], "unused", "other")
    _, report = convert(b.model({"x": [7, 6]}, {"y": [7, 3]}), MASK)
    assert reasons(report) == {
        "gemm": "its bias is not a vector of its channels",
        "other": "its bias is not constant",
    }


# Attention


def attention_model(
    queries, keys, op="Attention", heads=3, key_heads=3, rank=3, dim=64, value_dim=None, apart=False, **attributes
):
    """Attention alone, whose inputs are its own. `dim`: the channels of a head; with `apart`, its result of four
    dimensions is scaled before it becomes tokens."""
    b = Builder()
    value_dim = value_dim or dim
    if rank == 4:
        shapes = {"q": [2, heads, queries, dim], "k": [2, key_heads, keys, dim], "v": [2, key_heads, keys, value_dim]}
        result = b.add("Attention", list("qkv"), "heads", "attention", **attributes)
        if apart:
            result = b.add("Mul", [result, b.weights("scales", heads, 1, 1)], "scaled")
        b.add("Transpose", [result], "back", perm=[0, 2, 1, 3])
        b.add("Reshape", ["back", b.constant("joined", np.array([0, 0, heads * value_dim]))], "y")
    else:
        widths = heads * dim, key_heads * dim, key_heads * value_dim
        shapes = {name: [2, count, width] for name, count, width in zip("qkv", (queries, keys, keys), widths)}
        if op == "MultiHeadAttention":
            b.add(op, list("qkv"), "y", "attention", domain="com.microsoft", num_heads=heads, **attributes)
        else:
            b.add(op, list("qkv"), "y", "attention", q_num_heads=heads, kv_num_heads=key_heads, **attributes)
    model = b.model(shapes, {"y": [2, queries, heads * value_dim]}, opset=23)
    if op == "MultiHeadAttention":
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@with_compiler
@pytest.mark.parametrize(
    "case",
    [
        dict(queries=4, keys=6, is_causal=1),
        dict(queries=4, keys=6, rank=4, is_causal=1),
        dict(queries=5, keys=5, is_causal=1),
        dict(queries=5, keys=5, op="MultiHeadAttention", unidirectional=1),
        dict(queries=4, keys=6, heads=3, key_heads=1),
        dict(queries=4, keys=6, heads=3, key_heads=1, rank=4),
        dict(queries=4, keys=6, heads=3, key_heads=1, is_causal=1),
        dict(queries=4, keys=6, value_dim=32),
        dict(queries=4, keys=6, dim=32, value_dim=64, rank=4),
        dict(queries=4, keys=6, dim=32, value_dim=60, key_heads=1, is_causal=1),
        dict(queries=4, keys=6, op="MultiHeadAttention", value_dim=24),
        dict(queries=4, keys=6, dim=60),
        dict(queries=4, keys=6, rank=4, apart=True),
        dict(queries=4, keys=6, rank=4, apart=True, value_dim=20),
    ],
)
def test_attention(case):
    """Causal queries see the keys up to their own place, and heads share keys, as ONNX defines it; heads of another
    number of channels than operators have are computed; and results with a dimension for the heads keep it."""
    model = attention_model(**case)
    converted, report = convert(model, MASK, images=["q"])
    assert not reasons(report) and "MaskedAttention" in ops(converted)
    build(report)
    compare(model, MASK, tolerance=1e-4, images=["q"])


@with_compiler
def test_key_masks_of_causal_attention():
    model = attention_model(queries=4, keys=6, is_causal=1)
    converted, report = convert(model, [Rule("*", "mask", "mask_keys")], images=["q"])
    build(report)
    feeds = feeds_of(converted, 1.0)
    assert feeds["mask_keys"].shape == (2, 6)
    expected = run(model, {name: feeds[name] for name in "qkv"})
    np.testing.assert_allclose(run(converted, feeds)[0], expected[0], rtol=1e-4, atol=1e-5)
    feeds["mask_keys"][:, 4:] = False  # No query sees these.
    np.testing.assert_allclose(run(converted, feeds)[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case, reason",
    [
        (dict(queries=6, keys=4, is_causal=1), "it is causal with more queries than keys"),
        # ONNX Runtime's last query sees all keys then.
        (dict(queries=4, keys=6, op="MultiHeadAttention", unidirectional=1), "it is unidirectional with unequal"),
        (dict(queries=4, keys=6, softcap=2.0), "it has a softcap or scores"),
    ],
)
def test_attention_that_stays(case, reason):
    converted, report = convert(attention_model(**case), MASK)
    assert reasons(report)["attention"].startswith(reason)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    onnxruntime.InferenceSession(converted.SerializeToString(), options, providers=["CPUExecutionProvider"])


@with_compiler
@pytest.mark.parametrize("joins", [True, False])
def test_wider_values_of_products(joins):
    b = Builder()
    parts = b.add("Reshape", ["q", b.constant("apart", np.array([0, 0, 3, 8]))], "parts")
    b.add("MatMul", [b.add("Transpose", [parts], "queries", perm=[0, 2, 1, 3]), "k"], "scores", "attention")
    b.add("MatMul", [b.add("Softmax", ["scores"], "weights", axis=-1), "v"], "heads", "product")
    if joins:
        b.add("Transpose", ["heads"], "back", perm=[0, 2, 1, 3])
        b.add("Reshape", ["back", b.constant("joined", np.array([0, 0, 192]))], "y")
    else:
        b.add("Relu", ["heads"], "y")
    shapes = {"q": [2, 4, 24], "k": [2, 3, 8, 6], "v": [2, 3, 6, 64]}
    model = b.model(shapes, {"y": [2, 4, 192] if joins else [2, 3, 4, 64]})
    _, report = convert(model, MASK, images=["q"])
    assert not reasons(report)
    build(report)
    compare(model, MASK, tolerance=1e-4, images=["q"])
