"""Additions and multiplications by constants around layers, and the activations that exporters make of them."""

import numpy as np
import pytest
from networks import Builder
from test_conversion import compare, ops

from distile.onnx import Left, Replaced, Rule

MASK = [Rule("*", "mask")]


def taken(report):
    return {row.name: [node.op_type for node in row.nodes] for row in report if isinstance(row, Replaced)}


def step(b, place, op, x, shape, first=False):
    """A node with a constant, which is not near 0."""
    value = b.constant(f"constant{place}", b.random.uniform(0.5, 2, shape).astype(np.float32))
    return b.add(op, [value, x] if first else [x, value], f"step{place}")


def batch_norm(b, name, x, channels):
    vectors = [b.weights(f"{name}.{part}", channels) for part in ("scale", "bias", "mean")]
    vectors.append(b.constant(f"{name}.variance", b.random.uniform(0.5, 2, channels).astype(np.float32)))
    return b.add("BatchNormalization", [x, *vectors], f"{name}.out", name)


LAYERS = {
    "plain": dict(out=6, inner=6),
    "grouped": dict(out=6, inner=6, groups=2),
    "depthwise": dict(out=6, inner=6, groups=6),
    "transposed": dict(out=6, inner=6, kernel=2, stride=2, op="ConvTranspose", pads=[0] * 4),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1)])
def test_steps_behind_a_convolution(layer, shape):
    b = Builder()
    x = b.conv("conv", "x", **LAYERS[layer])
    for place, (op, first) in enumerate([("Mul", False), ("Add", True), ("Sub", True), ("Div", False), ("Sub", False)]):
        x = step(b, place, op, x, shape, first)
    b.add("Relu", [batch_norm(b, "norm", x, 6)], "y")
    extents = [2, 6, 14, 12] if layer == "transposed" else [2, 6, 7, 6]
    converted, report = compare(b.model({"x": [2, 6, 7, 6]}, {"y": extents}), MASK, tolerance=1e-4)
    assert len(ops(converted)) == 3 and ops(converted)[0] == ops(converted)[2] == "Transpose"
    behind = ["Mul", "Add", "Sub", "Div", "Sub", "BatchNormalization", "Relu"]
    assert taken(report) == {"conv": [b.nodes[0].op_type, *behind]}


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (1, 1, 5)])
def test_steps_behind_a_linear_layer(shape):
    b = Builder()
    x = b.add("MatMul", ["x", b.weights("w", 4, 5)], "product", "linear")
    for place, op in enumerate(("Add", "Mul", "Sub")):
        x = step(b, place, op, x, shape)
    b.add("Add", [x, "residual"], "y")
    shapes = {"x": [2, 7, 4], "residual": [2, 7, 5]}
    converted, _ = compare(b.model(shapes, {"y": [2, 7, 5]}), MASK)
    assert ops(converted) == ["MaskedLinear"]


def test_a_batch_norm_behind_gemm():
    b = Builder()
    b.add("Gemm", ["x", b.weights("w", 4, 5), b.weights("c", 5)], "product", "gemm")
    b.add("Relu", [batch_norm(b, "norm", "product", 5)], "y")
    converted, report = compare(b.model({"x": [7, 4]}, {"y": [7, 5]}), MASK)
    assert ops(converted) == ["MaskedLinear"] and len(report) == 1


@pytest.mark.parametrize(
    "op, shape, first",
    [("Mul", (1, 6, 7, 6), False), ("Add", (6,), False), ("Add", (7, 1), False), ("Div", (), True)],
)
def test_what_is_no_step(op, shape, first):
    """Constants for pixels, rows or columns, and quotients of constants."""
    b = Builder()
    b.add("Relu", [step(b, 0, op, b.conv("conv", "x", 6, 6), shape, first)], "y")
    model = b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]})
    _, report = compare(model, MASK, tolerance=1e-4, densities=(1.0,) if op == "Div" else (0.0, 0.3, 1.0))
    assert taken(report) == {"conv": ["Conv"]}


def test_steps_that_others_read():
    b = Builder()
    x = step(b, 1, "Add", step(b, 0, "Mul", b.conv("conv", "x", 6, 6), ()), ())
    b.add("Add", [b.add("Relu", [x], "r"), b.add("Tanh", ["step0"], "t")], "y")
    _, report = compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]}), MASK)
    assert taken(report) == {"conv": ["Conv", "Mul"]}


def test_weights_of_16_bits_that_would_overflow():
    """The steps stay, as nodes of their own."""
    from distile.onnx.affine import affine_after
    from distile.onnx.graph import Graph
    from distile.onnx.units import _folded

    b = Builder()
    b.add("Mul", ["x", b.constant("large", np.float32(1e6))], "y")
    affine = affine_after(Graph(b.model({"x": [2, 3, 4, 5]}, {"y": [2, 3, 4, 5]})), "x", 1)
    assert len(affine.nodes) == 1
    weights = np.ones((3, 3, 1, 1), np.float16)
    assert not _folded(weights, None, 0, affine).nodes and _folded(weights, None, 0, affine).weights is weights
    assert _folded(weights.astype(np.float32), None, 0, affine).nodes


def hardswish(b, x, order, name="hs"):
    """x * clip(x + 3, 0, 6) / 6 in an order."""
    for constant, value in (("three", 3), ("zero", 0), ("six", 6), ("sixth", 1 / 6)):
        if not any(tensor.name == constant for tensor in b.initializers):
            b.constant(constant, np.float32(value))
    add = lambda op, inputs, part: b.add(op, inputs, f"{name}.{part}")
    plus = add("Add", ["three", x] if order == "turned" else [x, "three"], "plus")
    if order == "relu and min":
        clip = add("Min", [add("Relu", [plus], "positive"), "six"], "clip")
    else:
        clip = add("Clip", [plus, "zero", "six"], "clip")
    if order == "divided first":
        return add("Mul", [add("Div", [x, "six"], "part"), clip], "y")
    if order == "gate divided":
        return add("Mul", [x, add("Div", [clip, "six"], "gate")], "y")
    if order == "gate times":
        return add("Mul", [add("Mul", ["sixth", clip], "gate"), x], "y")
    if order == "product times":
        return add("Mul", [add("Mul", [clip, x], "product"), "sixth"], "y")
    return add("Div", [add("Mul", [x, clip], "product"), "six"], "y")


ORDERS = ["plain", "turned", "relu and min", "divided first", "gate divided", "gate times", "product times"]


@pytest.mark.parametrize("order", ORDERS)
def test_hardswish(order):
    b = Builder()
    y = hardswish(b, step(b, 0, "Mul", b.conv("conv", "x", 6, 6), ()), order)
    converted, report = compare(b.model({"x": [2, 6, 7, 6]}, {y: [2, 6, 7, 6]}), MASK)
    assert ops(converted) == ["Transpose", "MaskedConv", "Transpose"]
    assert converted.graph.node[1].attribute and "activation" in str(converted.graph.node[1])
    (row,) = report
    assert dict(row.operator.params)["epilogue"] == "hardswish"


@pytest.mark.parametrize("op, attributes, name", [
    ("Tanh", {}, "tanh"), ("Elu", {}, "elu"), ("Elu", {"alpha": 1.0}, "elu"), ("Elu", {"alpha": 0.5}, "none"),
    ("Mish", {}, "mish"), ("LeakyRelu", {}, "leaky_relu"), ("LeakyRelu", {"alpha": 0.2}, "leaky_relu(0.2)"),
    ("LeakyRelu", {"alpha": -1.5}, "leaky_relu(-1.5)"), ("LeakyRelu", {"alpha": 0.0}, "leaky_relu(0.0)"),
])  # fmt: skip
def test_single_nodes(op, attributes, name):
    b = Builder()
    b.add(op, [b.conv("conv", "x", 6, 6)], "y", **attributes)
    converted, report = compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]}, opset=18), MASK)
    (row,) = report
    assert dict(row.operator.params)["epilogue"] == name.partition("(")[0]
    assert name == "none" or f's: "{name}"' in str(converted.graph.node[1])


SLOPES = [0.25, -0.5, 0.0, 1.5, 0.1, 2.0]


@pytest.mark.parametrize("slope, name", [([0.25], "leaky_relu"), ([[[0.25]]], "leaky_relu"), (SLOPES, "none")])
def test_prelu(slope, name):
    b = Builder()
    b.constant("slope", np.float32(slope).reshape(-1, 1, 1))
    b.add("PRelu", [b.conv("conv", "x", 6, 6), "slope"], "y")
    converted, report = compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]}), MASK)
    (row,) = report
    assert dict(row.operator.params)["epilogue"] == name
    assert name == "none" or 's: "leaky_relu(0.25)"' in str(converted.graph.node[1])


@pytest.mark.parametrize("turned", [False, True])
def test_mish(turned):
    """As PyTorch's exporter writes it before opset 18."""
    b = Builder()
    x = b.conv("conv", "x", 6, 6)
    gate = b.add("Tanh", [b.add("Softplus", [x], "softplus")], "tanh")
    b.add("Mul", [gate, x] if turned else [x, gate], "y")
    converted, report = compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]}), MASK)
    assert ops(converted) == ["Transpose", "MaskedConv", "Transpose"]
    (row,) = report
    assert dict(row.operator.params)["epilogue"] == "mish"


@pytest.mark.parametrize("numbers", [(2, 0, 6, 6), (3, 0, 5, 6), (3, 1, 6, 6), (3, 0, 6, 5)])
def test_what_is_no_hardswish(numbers):
    b = Builder()
    plus, least, most, divisor = (b.constant(f"n{place}", np.float32(value)) for place, value in enumerate(numbers))
    b.conv("conv", "x", 6, 6)
    clip = b.add("Clip", [b.add("Add", ["conv.out", plus], "plus"), least, most], "clip")
    b.add("Div", [b.add("Mul", ["conv.out", clip], "product"), divisor], "y")
    _, report = compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]}), MASK)
    assert taken(report) == {"conv": ["Conv"]}


def test_steps_behind_an_activation():
    """Affine nodes are masked as the layer is: before a pointwise layer in its weights, and else as a batch norm."""
    b = Builder()
    x = hardswish(b, step(b, 0, "Add", b.conv("first", "x", 6, 6), ()), "plain", "h1")
    x = step(b, 2, "Add", step(b, 1, "Mul", x, ()), ())
    x = hardswish(b, b.conv("pointwise", x, 8, 6, 1), "plain", "h2")
    x = step(b, 4, "Sub", step(b, 3, "Mul", x, (8, 1, 1)), (1, 8, 1, 1))
    b.conv("padded", x, 6, 8, groups=2)
    converted, report = compare(b.model({"x": [2, 6, 7, 6]}, {"padded.out": [2, 6, 7, 6]}), MASK, tolerance=1e-4)
    middle = ["MaskedConv", "MaskedConv", "MaskedBatchNorm", "MaskedConv"]
    assert ops(converted) == ["Transpose", *middle, "Transpose"]
    assert taken(report)["pointwise"][:3] == ["Mul", "Add", "Conv"] and taken(report)["Mul_step3"] == ["Mul", "Sub"]


@pytest.mark.parametrize("groups, masks", [(1, "mask"), (2, "mask"), (1, "mask2")])
def test_steps_before_a_pointwise_layer(groups, masks):
    """With another mask it may read pixels that are not active, so the steps stay an operator."""
    b = Builder()
    x = b.add("Relu", [b.conv("first", "x", 6, 6)], "r")
    x = step(b, 1, "Add", step(b, 0, "Mul", x, (6, 1, 1)), (6, 1, 1))
    b.conv("second", x, 4, 6, 1, groups=groups)
    rules = [Rule("second", masks), Rule("*", "mask")]
    converted, _ = compare(b.model({"x": [2, 6, 7, 6]}, {"second.out": [2, 4, 7, 6]}), rules)
    assert ops(converted).count("MaskedBatchNorm") == (masks != "mask")


def test_steps_between_linear_layers():
    b = Builder()
    x = b.add("Gelu", [b.add("MatMul", ["x", b.weights("w1", 4, 6)], "p1", "first")], "g")
    x = step(b, 1, "Add", step(b, 0, "Mul", x, (6,)), ())
    b.add("MatMul", [x, b.weights("w2", 6, 3)], "y", "second")
    converted, _ = compare(b.model({"x": [2, 7, 4]}, {"y": [2, 7, 3]}, opset=20), MASK)
    assert ops(converted) == ["MaskedLinear", "MaskedLinear"]


@pytest.mark.parametrize("size", [[7, 6], ["h", "w"]])
@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_squeeze_excite_and_sums(gate, size):
    """Products and sums of what is 0 outside of a mask are masked operators too."""
    b = Builder()
    x = b.add("Relu", [b.conv("conv", "x", 6, 6)], "r")
    pooled = b.add("GlobalAveragePool", [x], "pooled")
    scaled = b.add("Mul", [b.add(gate, [b.conv("se", pooled, 6, 6, 1)], "gate"), x], "scaled")
    y = b.add("Relu", [b.add("Add", [x, scaled], "sum")], "positive")
    b.add("Add", [y, b.add("Tanh", ["x"], "t")], "y")
    model = b.model({"x": [2, 6, *size]}, {"y": [2, 6, *size]})
    converted, _ = compare(model, [Rule("se", None), *MASK], tolerance=1e-4)
    found = ops(converted)
    assert found.count("MaskedMul") == found.count("MaskedAdd") == found.count("Add") == 1
    assert found.count("Relu") == 0


def test_sums_with_upsampled_images():
    """As in a pyramid of features."""
    b = Builder()
    high = b.conv("high", "x", 6, 6)
    low = b.conv("low", high, 6, 6, stride=2)
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    how = dict(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    large = b.add("Resize", [low, "", scales], "large", "resize", **how)
    b.conv("last", b.add("Add", [high, large], "sum"), 6, 6)
    converted, report = compare(b.model({"x": [2, 6, 8, 6]}, {"last.out": [2, 6, 8, 6]}), MASK, tolerance=1e-4)
    middle = ["MaskedUpsample", "MaskedAdd", "MaskedConv"]
    assert [op for op in ops(converted) if op not in ("Transpose", "MaskPool")] == ["MaskedConv", "MaskedConv", *middle]
    rules = [Rule("resize", None), *MASK]
    converted, report = compare(b.model({"x": [2, 6, 8, 6]}, {"last.out": [2, 6, 8, 6]}), rules, tolerance=1e-4)
    assert ops(converted).count("Resize") == 1 and "MaskedAdd" not in ops(converted)
    assert [row.reason for row in report if isinstance(row, Left)] == ["by rule"]


@pytest.mark.parametrize("seed", range(8))
def test_random_chains(seed):
    random = np.random.default_rng(seed)
    b = Builder(seed)
    current, rules, place = "x", [], 0
    for layer in range(4):
        kernel, groups = int(random.choice([1, 3])), int(random.choice([1, 2, 6]))
        current = b.conv(f"conv{layer}", current, 6, 6, kernel, groups=groups)
        rules.append(Rule(f"conv{layer}", ["mask", "mask", "mask2", None][random.integers(4)]))
        for after in range(2):
            for _ in range(random.integers(3)):
                shape = [(), (6, 1, 1), (1, 6, 1, 1), (1, 6, 7, 6)][random.choice(4, p=[0.4, 0.3, 0.2, 0.1])]
                op, first = random.choice(["Add", "Sub", "Mul"]), bool(random.integers(2))
                current, place = step(b, place, op, current, shape, first), place + 1
            if not after:
                kind = random.choice(["none", "Relu", "HardSwish", "composed", "silu"])
                if kind == "composed":
                    current = hardswish(b, current, ORDERS[random.integers(len(ORDERS))], f"h{layer}")
                elif kind == "silu":
                    current = b.add("Mul", [current, b.add("Sigmoid", [current], f"s{layer}")], f"silu{layer}")
                elif kind != "none":
                    current = b.add(kind, [current], f"act{layer}")
    b.add("Identity", [current], "y")
    compare(b.model({"x": [2, 6, 7, 6]}, {"y": [2, 6, 7, 6]}), rules, tolerance=2e-4)
