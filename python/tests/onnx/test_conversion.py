"""Converted models against the same models in standard operators: dense, and then the masks."""

import numpy as np
import pytest
from networks import Builder, check, feeds_of, run

from distile.onnx import Left, Replaced, Rule, convert


def compare(model, rules, tolerance=1e-5, densities=(0.0, 0.3, 1.0), given=True, **more):
    """Converts a model, checks its results, and returns the converted model and the report. `given`: whether all masks
    are inputs."""
    converted, report = convert(check(model), rules, **more)
    reference, _ = convert(model, rules, reference=True, **more)
    assert not any(node.domain == "distile" for node in reference.graph.node)
    for density in densities:
        feeds = feeds_of(converted, density)
        for result, expected in zip(run(converted, feeds), run(reference, feeds)):
            bound = tolerance * max(1, np.abs(expected).max())
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=bound)
    if not given:
        return converted, report
    # Where all is active, nothing changes.
    (result, *_), (dense, *_) = run(converted, feeds_of(converted, 1.0)), run(model, _without_masks(model, converted))
    np.testing.assert_allclose(result, dense, rtol=1e-4, atol=1e-4 * max(1, np.abs(dense).max()))
    return converted, report


def _without_masks(model, converted):
    names = {value.name for value in model.graph.input}
    return {name: value for name, value in feeds_of(converted, 1.0).items() if name in names}


def ops(model):
    return [node.op_type for node in model.graph.node]


def residual_network():
    """A stem, a block with a shortcut, a block with a 1x1 convolution beside it, and a head."""
    b = Builder()
    b.add("Relu", [b.conv("stem", "x", 12, 3, stride=2)], "r0")
    b.conv("b1/conv1", "r0", 12, 12)
    for name in ("scale", "shift", "mean"):
        b.weights(name, 12)
    b.constant("variance", b.random.uniform(0.5, 2, 12).astype(np.float32))
    b.add("BatchNormalization", ["b1/conv1.out", "scale", "shift", "mean", "variance"], "n1")
    b.add("Relu", ["n1"], "r1")
    b.add("Add", [b.conv("b1/conv2", "r1", 12, 12), "r0"], "a1")
    b.add("Relu", ["a1"], "r2")
    b.add("Relu", [b.conv("b2/conv1", "r2", 12, 12, stride=2)], "r3")
    b.add("Add", [b.conv("b2/conv2", "r3", 12, 12), b.conv("b2/down", "r2", 12, 12, 1, 2)], "a2")
    b.add("Relu", ["a2"], "r4")
    b.add("Flatten", [b.add("GlobalAveragePool", ["r4"], "mean_pool")], "flat")
    b.add("Gemm", ["flat", b.weights("head.w", 5, 12), b.weights("head.b", 5)], "y", "head", transB=1)
    return b.model({"x": ["batch", 3, 22, 18]}, {"y": ["batch", 5]})


def test_residual_network():
    model = residual_network()
    converted, report = compare(model, [Rule("b*", "mask")])
    replaced = {row.name: row for row in report if isinstance(row, Replaced)}
    assert {row.name: row.reason for row in report if isinstance(row, Left)} == {"stem": "no rule", "head": "no rule"}
    taken = {name: [node.op_type for node in row.nodes[1:]] for name, row in replaced.items()}
    assert taken == {
        "b1/conv1": ["BatchNormalization", "Relu"],
        "b1/conv2": ["Add", "Relu"],
        "b2/conv1": ["Relu"],
        "b2/conv2": ["Add", "Relu"],
        "b2/down": [],
    }
    # A shortcut that is not masked is kept, one with the same mask is 0.
    assert len([name for name in replaced["b1/conv2"].masked.input if name]) == 6
    assert len([name for name in replaced["b2/conv2"].masked.input if name]) == 5
    # The blocks are one chain in NHWC, and one mask serves all their layers.
    assert ops(converted).count("Transpose") == 2 and ops(converted).count("MaskPool") == 1
    (mask,) = [value for value in converted.graph.input if value.name == "mask"]
    assert [dim.dim_param or dim.dim_value for dim in mask.type.tensor_type.shape.dim] == ["batch", 11, 9]
    assert ops(model) == ops(residual_network())


def test_larger_mask_and_left_nodes():
    rules = [Rule("b1/conv2", None), Rule("b*", "mask")]
    converted, report = compare(residual_network(), rules, mask_sizes={"mask": (44, 36)})
    assert ("b1/conv2", "by rule") in [(row.name, row.reason) for row in report if isinstance(row, Left)]
    assert ops(converted).count("MaskPool") == 2
    _, report = convert(residual_network(), [Rule("b*", "mask")], mask_sizes={"mask": (13, 9)})
    assert all(isinstance(row, Left) for row in report)
    assert any("the mask 'mask' is for [13, 9]" in row.reason for row in report)


def test_activation_after_a_foreign_residual():
    """A relu is not taken in if the residual may be negative where it is kept."""
    b = Builder()
    b.add("Add", [b.conv("conv", "x", 4, 4), "x"], "sum")
    b.add("Relu", ["sum"], "y")
    _, report = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}), [Rule("*", "mask")])
    (row,) = report
    assert [node.op_type for node in row.nodes] == ["Conv", "Add"]


def test_intermediate_results_stay():
    """What others read too is not taken in."""
    b = Builder()
    b.add("Relu", [b.conv("conv", "x", 4, 4)], "r")
    b.add("Mul", ["conv.out", "r"], "y")
    compare(b.model({"x": [1, 4, 6, 5]}, {"y": [1, 4, 6, 5]}), [Rule("*", "mask")])
    b = Builder()
    b.add("Relu", [b.conv("conv", "x", 4, 4)], "r")
    compare(b.model({"x": [1, 4, 6, 5]}, {"r": [1, 4, 6, 5], "conv.out": [1, 4, 6, 5]}), [Rule("*", "mask")])


def test_inverted_residual_and_upsampling():
    b = Builder()
    b.constant("zero", np.float32(0))
    b.constant("six", np.float32(6))
    clip = lambda x, output: b.add("Clip", [x, "zero", "six"], output)
    clip(b.conv("expand", "x", 24, 8, 1), "e")
    clip(b.conv("depthwise", "e", 24, 24, groups=24), "d")
    b.add("Add", [b.conv("project", "d", 8, 24, 1), "x"], "p")
    b.add("MaxPool", ["p"], "m", "pool", kernel_shape=[2, 2], strides=[2, 2])
    gate = b.add("HardSigmoid", [b.conv("next", "m", 6, 8)], "gate", alpha=1 / 6, beta=0.5)
    b.add("Mul", ["next.out", gate], "h")
    b.conv("up", "h", 5, 6, 4, 2, op="ConvTranspose", pads=[1] * 4)
    b.add("Concat", ["up.out", "p"], "c", axis=1)
    b.add("AveragePool", [b.conv("last", "c", 4, 13)], "y", "average", kernel_shape=[2, 2], count_include_pad=1)
    converted, report = compare(b.model({"x": [2, 8, 10, 12]}, {"y": [2, 4, 9, 11]}), [Rule("*", "mask")])
    assert all(isinstance(row, Replaced) for row in report)
    # The windows of the last pooling are not padded: a pixel of the mask is at the middle of each.
    assert str(report[-1].mapping) == "stride 1x1, offset 0.5x0.5, grid 9x11" and report[-1].name == "average"
    assert ops(converted).count("Transpose") == 2


def token_network(gelu):
    b = Builder()
    b.add("LayerNormalization", ["x", b.weights("s", 16), b.weights("t", 16)], "n", "norm", axis=-1)
    b.add("MatMul", ["n", b.weights("w1", 16, 24)], "l1", "fc1")
    b.add("Add", ["l1", b.weights("b1", 24)], "h")
    if gelu == "erf":
        for name, value in (("root", np.sqrt(2)), ("one", 1), ("half", 0.5)):
            b.constant(name, np.float32(value))
        b.add("Erf", [b.add("Div", ["h", "root"], "scaled")], "erf")
        b.add("Mul", ["h", b.add("Add", ["erf", "one"], "plus")], "product")
        b.add("Mul", ["product", "half"], "g")
    elif gelu == "silu":
        b.add("Mul", ["h", b.add("Sigmoid", ["h"], "sigmoid")], "g")
    else:
        b.add("Gelu", ["h"], "g")
    b.add("MatMul", ["g", b.weights("w2", 24, 16)], "l2", "fc2")
    b.add("Add", [b.weights("b2", 16), "l2"], "l2b")
    b.add("Add", ["x", "l2b"], "y")
    return b.model({"x": [2, 9, 16]}, {"y": [2, 9, 16]}, opset=20)


@pytest.mark.parametrize("gelu", ["erf", "silu", "node"])
def test_tokens(gelu):
    converted, report = compare(token_network(gelu), [Rule("*", "mask")])
    assert ops(converted) == ["MaskedLayerNorm", "MaskedLinear", "MaskedLinear"]
    assert converted.graph.node[2].input[5] == "x"


def test_attention():
    b = Builder()
    for name in "qkv":
        b.add("MatMul", ["x", b.weights(f"w{name}", 192, 192)], name, f"project_{name}")
    b.add("Attention", ["q", "k", "v"], "a", "attention", q_num_heads=3, kv_num_heads=3)
    b.add("MatMul", ["a", b.weights("w", 192, 192)], "y", "out")
    model = b.model({"x": [2, 13, 192]}, {"y": [2, 13, 192]}, opset=23)
    converted, report = compare(model, [Rule("project_[kv]", None), Rule("*", "mask")])
    assert ops(converted).count("MaskedAttention") == 1
    converted, _ = convert(model, [Rule("attention", "mask", "mask_keys")])
    feeds = feeds_of(converted, 0.5)
    full = dict(feeds, mask_keys=np.ones_like(feeds["mask_keys"]))
    assert np.abs(run(converted, feeds)[0] - run(converted, full)[0]).max() > 1e-3


def split_heads(b, style):
    """Queries, keys and values of 3 heads from 'x', [N, heads, T, head_dim], but keys are [N, heads, head_dim, T] if
    transposed."""
    b.constant("split", np.array([0, 0, 3, 64], np.int64))
    names = []
    if style == "one matrix":
        b.constant("parts", np.array([0, 0, 3, 3, 64], np.int64))
        b.add("Reshape", [b.add("MatMul", ["x", b.weights("w", 192, 576)], "qkv"), "parts"], "five")
        b.add("Transpose", ["five"], "turned", perm=[2, 0, 3, 1, 4])
    for place, name in enumerate("qkv"):
        transposed = name == "k" and style != "node"
        if style == "one matrix":
            b.add("Gather", ["turned", b.constant(f"at{place}", np.array(place))], name, axis=0)
            if transposed:
                name = b.add("Transpose", [name], "kt", perm=[0, 1, 3, 2])
        else:
            b.add("MatMul", ["x", b.weights(f"w{name}", 192, 192)], f"{name}.tokens")
            b.add("Reshape", [f"{name}.tokens", "split"], f"{name}.split")
            name = b.add("Transpose", [f"{name}.split"], name, perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])
        names.append(name)
    return names


@pytest.mark.parametrize("style", ["three matrices", "one matrix", "node"])
def test_attention_as_exporters_write_it(style):
    b = Builder()
    query, key, value = split_heads(b, style)
    if style == "node":
        b.add("Attention", [query, key, value], "heads", "attention")
    else:
        b.constant("factor", np.float32(0.25))
        if style == "one matrix":
            query = b.add("Mul", [query, "factor"], "scaled")
        scores = b.add("MatMul", [query, key], "scores", "attention")
        scores = b.add("Div", [scores, b.constant("divisor", np.float32(2))], "divided")
        b.add("MatMul", [b.add("Softmax", [scores], "weights", axis=-1), value], "heads")
    b.add("Transpose", ["heads"], "back", perm=[0, 2, 1, 3])
    b.add("Reshape", ["back", b.constant("join", np.array([0, 0, 192], np.int64))], "y")
    model = b.model({"x": [2, 13, 192]}, {"y": [2, 13, 192]}, opset=23)
    converted, report = compare(model, [Rule("attention", "mask")], tolerance=1e-4)
    row = next(row for row in report if isinstance(row, Replaced))
    assert row.op == "MaskedAttention" and row.typical == {"batch": 2, "tokens": 13, "key_tokens": 13}
    assert ops(converted).count("Softmax") == 0
    assert ops(converted).count("Transpose") == (5 if style == "one matrix" else 0)


def test_a_mask_of_the_graph():
    """A mask that the model computes."""
    b = Builder()
    b.constant("zero", np.float32(0))
    b.add("ReduceMax", ["x"], "largest", axes=[1], keepdims=0)
    b.add("Greater", ["largest", "zero"], "own")
    b.conv("conv", "x", 4, 4)
    model = b.model({"x": [2, 4, 6, 5]}, {"conv.out": [2, 4, 6, 5]})
    converted, _ = compare(model, [Rule("*", "own")], given=False)
    assert [value.name for value in converted.graph.input] == ["x"]


def test_batch_norm_before_its_convolution():
    b = Builder()
    for name in ("scale", "shift", "mean"):
        b.weights(name, 4)
    b.constant("variance", b.random.uniform(0.5, 2, 4).astype(np.float32))
    statistics = ["scale", "shift", "mean", "variance"]
    b.add("Relu", [b.add("BatchNormalization", ["x", *statistics], "n", "norm")], "r")
    b.add("BatchNormalization", [b.conv("conv", "r", 4, 4), *statistics], "y", "last")
    model = b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]})
    converted, report = compare(model, [Rule("*", "mask")], tolerance=1e-4)
    assert ops(converted) == ["Transpose", "MaskedBatchNorm", "MaskedConv", "Transpose"]
    assert [node.op_type for node in report[0].nodes] == ["BatchNormalization", "Relu"]
    # The batch norm of a convolution is no node of its own.
    _, report = compare(model, [Rule("norm", "mask"), Rule("last", "mask")], tolerance=1e-4)
    assert {row.name: getattr(row, "reason", None) for row in report} == {"norm": None, "conv": "no rule"}


def test_instance_norm():
    b = Builder()
    vectors = [b.weights("scale", 4), b.weights("bias", 4)]
    b.add("InstanceNormalization", [b.conv("conv", "x", 4, 4), *vectors], "n", "norm")
    b.add("Relu", ["n"], "y")
    converted, _ = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 6, 5]}), [Rule("*", "mask")], tolerance=1e-4)
    assert ops(converted).count("MaskedGroupNorm") == 1 and ops(converted).count("Transpose") == 2


UPSAMPLED = dict(coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@pytest.mark.parametrize(
    "attributes, scales, fused",
    [
        (UPSAMPLED, [2, 3], True),
        ({}, [3, 4], True),
        ({**UPSAMPLED, "sizes": True}, [2, 2], True),
        ({**UPSAMPLED, "mode": "linear"}, [2, 2], False),
        ({**UPSAMPLED, "nearest_mode": "ceil"}, [2, 2], False),
        (UPSAMPLED, [1.5, 2], False),
    ],
)
def test_upsampling_before_a_convolution(attributes, scales, fused):
    b = Builder()
    attributes = dict(attributes)
    last = [b.constant("scales", np.array([1, 1, *scales], np.float32))]
    size = [int(6 * scales[0]), int(5 * scales[1])]
    if attributes.pop("sizes", False):
        last = ["", b.constant("sizes", np.array([2, 4, *size], np.int64))]
    b.add("Resize", [b.conv("first", "x", 4, 4), "", *last], "large", "resize", **attributes)
    b.conv("second", "large", 5, 4)
    model = b.model({"x": [2, 4, 6, 5]}, {"second.out": [2, 5, *size]})
    converted, report = compare(model, [Rule("first", "near"), Rule("second", "mask")], given=False)
    assert ops(converted).count("MaskedUpsampleConv") == fused
    assert [node.op_type for node in report[1].nodes] == (["Resize", "Conv"] if fused else ["Conv"])


def test_upsampling_that_others_read():
    b = Builder()
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    b.add("Resize", [b.conv("first", "x", 4, 4), "", scales], "large", **UPSAMPLED)
    b.add("Add", [b.conv("second", "large", 4, 4), "large"], "y")
    converted, _ = compare(b.model({"x": [2, 4, 6, 5]}, {"y": [2, 4, 12, 10]}), [Rule("*", "mask")], given=False)
    assert ops(converted).count("MaskedUpsample") == 1 and ops(converted).count("Transpose") == 2


def test_vectors_between_masked_operators():
    b = Builder()
    scaled = b.add("Mul", [b.conv("first", "x", 4, 4), b.weights("scale", 4, 1, 1)], "scaled")
    moved = b.add("Sub", [b.weights("shift", 1, 4, 1, 1), scaled], "moved")
    converted, _ = compare(
        b.model({"x": [2, 4, 6, 5]}, {b.conv("second", moved, 4, 4): [2, 4, 6, 5]}), [Rule("*", "mask")]
    )
    assert ops(converted).count("Transpose") == 2


@pytest.mark.parametrize(
    "change, reason",
    [
        (dict(op="ConvTranspose", group=2), "groups"),
        (dict(weights=False), "weights are not constant"),
    ],
)
def test_unsupported(change, reason):
    b = Builder()
    b.conv("conv", "x", 4, 4, 3)
    node = b.nodes[0]
    node.op_type = change.get("op", node.op_type)
    for attribute in node.attribute:
        if attribute.name == "group" and "group" in change:
            attribute.i = change["group"]
    inputs = {"x": [1, 4, 6, 6]}
    if "weights" in change:
        b.initializers = b.initializers[1:]
        inputs["conv.w"] = [4, 4, 3, 3]
    model = b.model(inputs, {"conv.out": None})
    converted, (row,) = convert(model, [Rule("*", "mask")])
    assert isinstance(row, Left) and reason in row.reason
    assert ops(converted) == ops(model) and len(converted.graph.input) == len(model.graph.input)


@pytest.mark.parametrize("seed", range(24))
def test_random_networks(seed):
    """Chains of convolutions with random masks, norms, residuals, gates and activations between."""
    random = np.random.default_rng(seed)
    b = Builder(seed)
    b.constant("zero", np.float32(0))
    b.constant("six", np.float32(6))
    tensors, rules = ["x"], []
    for place in range(7):
        source = tensors[random.integers(len(tensors))]
        kernel = int(random.choice([1, 3]))
        current = b.conv(f"conv{place}", source, 6, 6, kernel, groups=int(random.choice([1, 2, 6])))
        rules.append(Rule(f"conv{place}", [None, "mask", "mask2"][random.integers(3)]))
        norm = random.choice(["none", "none", "BatchNormalization", "GroupNormalization"])
        if norm != "none":
            vectors = [b.weights(f"norm{place}.{name}", 6) for name in ("scale", "bias")]
            if norm == "BatchNormalization":
                variance = b.constant(f"norm{place}.variance", random.uniform(0.5, 2, 6).astype(np.float32))
                vectors += [b.weights(f"norm{place}.mean", 6), variance]
            more = {"num_groups": 3} if norm == "GroupNormalization" else {}
            current = b.add(norm, [current, *vectors], f"normal{place}", f"norm{place}", **more)
            rules.append(Rule(f"norm{place}", [None, "mask", "mask2"][random.integers(3)]))
        if random.random() < 0.6:
            other = tensors[random.integers(len(tensors))]
            operands = [current, other] if random.random() < 0.5 else [other, current]
            current = b.add("Add", operands, f"sum{place}")
        if random.random() < 0.3:
            pooled = b.add(random.choice(["GlobalAveragePool", "GlobalMaxPool"]), [current], f"pooled{place}")
            current = b.add("Mul", [b.add("Sigmoid", [pooled], f"gate{place}"), current], f"gated{place}")
        op = random.choice(["none", "Relu", "Clip", "HardSwish", "Sigmoid"])
        if op != "none":
            current = b.add(op, [current, *(["zero", "six"] if op == "Clip" else [])], f"act{place}")
        tensors.append(current)
    b.add("Concat", tensors[-2:], "y", axis=1)
    compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 12, 7, 6]}, opset=21), rules, tolerance=1e-4)
