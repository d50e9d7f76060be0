"""Quantized layers: converted models against ONNX Runtime's own result."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import Builder, draw_integers, run
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from distile.onnx import Left, Replaced, Rule, convert
from distile.onnx.__main__ import table
from distile.onnx.building import build, missing
from distile.onnx.explain import explain
from distile.onnx.graph import attributes as attributes_of
from distile.toolchain import compiler_folder

with_compiler = pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")

# Models as ONNX Runtime's tools quantize them.


class Calibration(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def quantize(model, tmp_path, **options):
    """What quantize_static makes of a model of float32, with all quantized results of its layers as outputs."""
    random = np.random.default_rng(5)
    (given,) = model.graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    feeds = [{given.name: random.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    model = copy.deepcopy(model)
    del model.opset_import[1:]
    path = tmp_path / "quantized.onnx"
    quantize_static(model, str(path), Calibration(feeds), weight_type=QuantType.QInt8, **options)
    model = onnx.load(path)
    layers = {output for node in model.graph.node if node.op_type in LAYERS for output in node.output}
    zeros = {node.op_type: 7 for node in model.graph.node}
    for node in model.graph.node:
        quantizes = node.op_type == "QuantizeLinear" and node.input[0] in layers
        if quantizes or node.op_type in ("QLinearConv", "QLinearMatMul", "QGemm"):
            place = {"QuantizeLinear": 2, "QGemm": 8}.get(node.op_type, zeros[node.op_type])
            (kind,) = [one.data_type for one in model.graph.initializer if one.name == node.input[place]]
            if node.output[0] not in {value.name for value in model.graph.output}:
                model.graph.output.append(helper.make_tensor_value_info(node.output[0], kind, None))
    return model, feeds[0]


LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def run_exactly(model, feeds, unsigned):
    """ONNX Runtime's result, with exact products. Without this entry, products of uint8 and int8 saturate on CPUs
    without VNNI; with it, ONNX Runtime lacks kernels for inputs of int8."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if unsigned:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def compare(model, rules, given, tolerance=0, build_too=True, **more):
    """Converts a model and compares each of its results with ONNX Runtime's own: bytes differ by at most `tolerance`,
    real numbers by rounding. Runs without PolyKernels, and then with them. Returns the report."""
    converted, report = convert(model, rules, **more)
    reference, _ = convert(model, rules, reference=True, **more)
    assert not any(node.domain == "distile" for node in reference.graph.node)
    names = [value.name for value in model.graph.output]
    random = np.random.default_rng(6)
    unsigned = all(row.operator is None or dict(row.operator.params)["dtype"] == "uint8" for row in report
                   if isinstance(row, Replaced))
    replaced = [row for row in report if isinstance(row, Replaced) and row.operator]
    for polykernels in (False, True) if compiler_folder() and build_too else (False,):
        if polykernels:
            build(replaced)
            assert not missing(replaced)
        for density in (0.0, 0.3, 1.0):
            feeds = dict(given)
            for value in converted.graph.input:
                if value.name not in feeds:
                    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
                    feeds[value.name] = random.random(shape) < density
            pairs = list(zip(names, run(converted, feeds), run_exactly(reference, feeds, unsigned)))
            if density == 1.0:  # Where all is active, nothing changes.
                pairs += zip(names, run(converted, feeds), run_exactly(model, given, unsigned))
            for name, result, expected in pairs:
                assert result.dtype == expected.dtype and result.shape == expected.shape
                if result.dtype == np.float32:
                    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 + tolerance * 0.1, err_msg=name)
                    continue
                distance = np.abs(result.astype(np.int32) - expected)
                assert distance.max(initial=0) <= tolerance, name
                assert (distance > 0).mean() <= 0.02, name
    return report


def images_network():
    """A stem, a block with a depthwise convolution and a shortcut, groups, and a head."""
    b = Builder()
    b.add("Relu", [b.conv("stem", "x", 16, 3, stride=2)], "r0")
    b.constant("zero", np.float32(0))
    b.constant("six", np.float32(6))
    b.add("Clip", [b.conv("expand", "r0", 32, 16, 1), "zero", "six"], "e")
    b.add("Clip", [b.conv("depthwise", "e", 32, 32, groups=32), "zero", "six"], "d")
    b.add("Add", [b.conv("project", "d", 16, 32, 1), "r0"], "a")
    b.add("Relu", [b.conv("groups", "a", 24, 16, groups=4, pads=[0, 1, 2, 1])], "r1")
    b.add("MaxPool", ["r1"], "m", "pool", kernel_shape=[2, 2], strides=[2, 2])
    b.add("Flatten", [b.add("GlobalAveragePool", [b.conv("last", "m", 12, 24)], "p")], "flat")
    b.add("Gemm", ["flat", b.weights("head.w", 5, 12), b.weights("head.b", 5)], "y", "head", transB=1)
    return b.model({"x": [2, 3, 24, 20]}, {"y": [2, 5]})


FORMATS = [QuantFormat.QDQ, QuantFormat.QOperator]
ACTIVATIONS = [QuantType.QUInt8, QuantType.QInt8]


def in_every_form(test):
    """A test for each format, type of activations and kind of scales that the quantizer has."""
    test = pytest.mark.parametrize("per_channel", [False, True])(test)
    test = pytest.mark.parametrize("activation_type", ACTIVATIONS)(test)
    return pytest.mark.parametrize("quant_format", FORMATS)(test)


BLOCKS = [Rule("head*", None), Rule("pool*", None), Rule("*", "mask")]


@in_every_form
def test_quantized_network(tmp_path, quant_format, activation_type, per_channel):
    options = dict(quant_format=quant_format, activation_type=activation_type)
    model, given = quantize(images_network(), tmp_path, per_channel=per_channel, **options)
    report = compare(model, BLOCKS, given)
    replaced = [row for row in report if isinstance(row, Replaced)]
    names = ["stem", "expand", "depthwise", "project", "groups", "last"]
    assert [row.name.removesuffix("_quant") for row in replaced] == names
    for row in replaced:
        assert row.op == "MaskedQLinearConv"
        kind = "uint8" if activation_type == QuantType.QUInt8 else "int8"
        params = dict(row.operator.params)
        assert (params["dtype"], params["output_dtype"]) == (kind, kind)
        expected = ["Conv", "QuantizeLinear"] if quant_format == QuantFormat.QDQ else ["QLinearConv"]
        assert [node.op_type for node in row.nodes] == expected
    assert replaced[2].operator.generator == "masked_depthwise_conv2d"


def test_symmetric_activations(tmp_path):
    """The quantizer leaves activations as they are: a relu stays between dequantized tensors. ONNX Runtime adds such
    tensors in float32 or by its own quantized operator, as it finds the nodes, and the two round otherwise."""
    options = dict(quant_format=QuantFormat.QDQ, activation_type=QuantType.QInt8)
    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True}
    model, given = quantize(images_network(), tmp_path, extra_options=symmetric, **options)
    report = compare(model, BLOCKS, given, tolerance=1)
    assert sum(isinstance(row, Replaced) for row in report) == 6


def tokens_network():
    b = Builder()
    b.add("MatMul", ["x", b.weights("w1", 24, 48)], "l1", "fc1")
    b.add("Relu", [b.add("Add", ["l1", b.weights("b1", 48)], "h")], "r")
    b.add("MatMul", ["r", b.weights("w2", 48, 24)], "y", "fc2")
    return b.model({"x": [2, 9, 24]}, {"y": [2, 9, 24]})


@in_every_form
def test_quantized_tokens(tmp_path, quant_format, activation_type, per_channel):
    options = dict(quant_format=quant_format, activation_type=activation_type)
    model, given = quantize(tokens_network(), tmp_path, per_channel=per_channel, **options)
    report = compare(model, [Rule("fc*", "mask")], given)
    assert [row.op for row in report] == ["MaskedQLinearMatMul"] * 2


@pytest.mark.parametrize("quant_format", FORMATS)
def test_quantized_gemm(tmp_path, quant_format):
    b = Builder()
    b.add("Gemm", ["x", b.weights("w1", 16, 24), b.weights("b1", 16)], "h", "first", transB=1)
    b.add("Gemm", ["h", b.weights("w2", 16, 8), b.weights("b2", 8)], "y", "second", transB=0)
    model = b.model({"x": [11, 24]}, {"y": [11, 8]})
    options = dict(quant_format=quant_format, activation_type=QuantType.QUInt8)
    model, given = quantize(model, tmp_path, **options)
    report = compare(model, [Rule("*", "mask")], given)
    assert [row.op for row in report] == ["MaskedQLinearMatMul"] * 2
    assert [attributes_of(row.masked)["transB"] for row in report] == [1, 0]


def test_transposed_convolution(tmp_path):
    """ONNX Runtime computes transposed convolutions in float32 and quantizes the result, so its numbers may lie on the
    other side of a tie."""
    b = Builder()
    b.add("Relu", [b.conv("first", "x", 12, 8)], "r")
    b.conv("up", "r", 6, 12, 4, 2, op="ConvTranspose", pads=[1] * 4)
    model = b.model({"x": [2, 8, 9, 7]}, {"up.out": [2, 6, 18, 14]})
    options = dict(quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8)
    for per_channel in (False, True):
        quantized, given = quantize(model, tmp_path, per_channel=per_channel, **options)
        report = compare(quantized, [Rule("*", "mask")], given, tolerance=1)
        assert [row.op for row in report] == ["MaskedQLinearConv", "MaskedQLinearConvTranspose"]


# Models by hand.


class Quantized(Builder):
    """Adds DequantizeLinear and QuantizeLinear."""

    def numbers(self, name, scale, zero):
        parts = [self.constant(f"{name}.scale", np.asarray(scale, np.float32))]
        return parts if zero is None else [*parts, self.constant(f"{name}.zero", zero)]

    def dequantize(self, name, stored, scale, zero=None, **more):
        return self.add("DequantizeLinear", [stored, *self.numbers(name, scale, zero)], f"{name}.real", **more)

    def quantize(self, x, name, scale, zero):
        return self.add("QuantizeLinear", [x, *self.numbers(name, scale, zero)], name)

    def filter(self, name, values, scale, zero=None, **more):
        return self.dequantize(name, self.constant(f"{name}.stored", values), scale, zero, **more)

    def input(self, x="x", zero=np.uint8(120)):
        return self.dequantize("in", x, 0.03, zero)

    def quantized_model(self, inputs, outputs, opset=21):
        """`inputs` and `outputs`: names with types and shapes."""
        infos = [
            [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in some.items()]
            for some in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "test", *infos, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


UINT8, INT8, FLOAT = TensorProto.UINT8, TensorProto.INT8, TensorProto.FLOAT
IMAGE = {"x": (UINT8, [2, 6, 9, 8])}
PADS = dict(pads=[1] * 4)


def given_images(seed=7, kind=np.uint8):
    return {"x": draw_integers(np.random.default_rng(seed), kind, 2, 6, 9, 8)}


def small_filter(b, outer=10, inner=6, kernel=3, kind=np.int8):
    limits = np.iinfo(kind)
    return b.random.integers(limits.min // 2, limits.max // 2, (outer, inner, kernel, kernel)).astype(kind)


def only(report, op="MaskedQLinearConv"):
    (row,) = report
    assert isinstance(row, Replaced) and row.op == op, row
    return row


@pytest.mark.parametrize("activation", ["none", "relu", "relu6", "silu", "leaky_relu"])
def test_activations_before_quantization(activation):
    b = Quantized()
    w = b.filter("w", small_filter(b), 0.004)
    b.add("Conv", [b.input(), w], "c", "conv", **PADS)
    b.constant("least", np.float32(0))
    b.constant("most", np.float32(6))
    name = {
        "none": lambda: "c",
        "relu": lambda: b.add("Relu", ["c"], "a"),
        "relu6": lambda: b.add("Clip", ["c", "least", "most"], "a"),
        "silu": lambda: b.add("Mul", ["c", b.add("Sigmoid", ["c"], "s")], "a"),
        "leaky_relu": lambda: b.add("LeakyRelu", ["c"], "a", alpha=0.3),
    }[activation]()
    b.quantize(name, "y", 0.021, np.uint8(90))
    # ONNX Runtime computes these in float32, which may lie on the other side of a tie.
    report = compare(
        b.quantized_model(IMAGE, {"y": (UINT8, None)}), [Rule("*", "mask")], given_images(),
        tolerance=int(activation in ("relu6", "silu", "leaky_relu")),
    )  # fmt: skip
    row = only(report)
    assert dict(row.operator.params)["epilogue"] == activation
    assert row.nodes[-1].op_type == "QuantizeLinear"


def test_float_output_with_residual():
    """As TensorRT's tools write it: the sum is quantized, and what is added is not."""
    b = Quantized()
    b.add("Conv", [b.input(), b.filter("w", small_filter(b), 0.004)], "c", "conv", **PADS)
    b.add("Add", ["c", b.dequantize("r", "residual", 0.05, np.int8(-3))], "sum")
    b.quantize(b.add("Relu", ["sum"], "a"), "y", 0.05, np.uint8(3))
    model = b.quantized_model({**IMAGE, "residual": (INT8, [2, 10, 9, 8])}, {"y": (UINT8, None)})
    given = {**given_images(), "residual": draw_integers(np.random.default_rng(8), np.int8, 2, 10, 9, 8)}
    row = only(compare(model, [Rule("*", "mask")], given, tolerance=1))
    assert [node.op_type for node in row.nodes] == ["Conv", "Add"]
    params = dict(row.operator.params)
    assert params["output_dtype"] == "float32" and params["residual"]


def test_batch_norm_behind_a_quantized_convolution():
    """It is a node of its own, because it does not fold into weights of int8."""
    b = Quantized()
    b.add("Conv", [b.input(), b.filter("w", small_filter(b), 0.004)], "c", "conv", **PADS)
    vectors = [b.weights(name, 10) for name in ("scale", "shift", "mean")]
    vectors.append(b.constant("variance", b.random.uniform(0.5, 2, 10).astype(np.float32)))
    b.add("BatchNormalization", ["c", *vectors], "y", "norm")
    model = b.quantized_model(IMAGE, {"y": (FLOAT, None)})
    report = compare(model, [Rule("*", "mask")], given_images(), tolerance=1e-3)
    assert [row.op for row in report] == ["MaskedQLinearConv", "MaskedBatchNorm"]


@pytest.mark.parametrize("bias", ["integers", "integers of another scale", "real"])
def test_biases(bias):
    b = Quantized()
    w_scale = np.linspace(0.002, 0.006, 10, dtype=np.float32)
    inputs = [b.input(), b.filter("w", small_filter(b), w_scale, axis=0)]
    values = b.random.integers(-9000, 9000, 10).astype(np.int32)
    if bias == "real":
        inputs.append(b.constant("b", values.astype(np.float32) * np.float32(1e-4)))
    else:
        scale = np.float32(0.03) * w_scale if bias == "integers" else np.full(10, 2e-4, np.float32)
        inputs.append(b.filter("b", values, scale, axis=0))
    b.quantize(b.add("Conv", inputs, "c", "conv", **PADS), "y", 0.03, np.uint8(99))
    model = b.quantized_model(IMAGE, {"y": (UINT8, None)})
    converted, _ = convert(model, [Rule("*", "mask")])
    (masked,) = [node for node in converted.graph.node if node.op_type == "MaskedQLinearConv"]
    assert (bool(masked.input[3]), bool(masked.input[9])) == (bias != "integers", bias == "integers")
    if bias != "integers of another scale":  # ONNX Runtime takes such a bias for one of the usual scale.
        compare(model, [Rule("*", "mask")], given_images(), tolerance=int(bias == "real"))
    else:
        real = numpy_of(model, "b.stored").astype(np.float32) * np.float32(2e-4)
        np.testing.assert_array_equal(numpy_of(converted, masked.input[3]), real)


def numpy_of(model, name):
    (tensor,) = [one for one in model.graph.initializer if one.name == name]
    return onnx.numpy_helper.to_array(tensor)


def weights_as(b, form):
    """Weights as models have them; all become int8 without a zero point."""
    if form == "uint8 around 128":
        return b.filter("w", small_filter(b, kind=np.uint8) + np.uint8(64), 0.004, np.uint8(128))
    if form == "uint8 with zero points that fit":
        values = b.random.integers(40, 100, (10, 6, 3, 3)).astype(np.uint8)
        return b.filter("w", values, np.full(10, 0.004), np.arange(60, 70).astype(np.uint8), axis=0)
    if form == "int4":
        tensor = helper.make_tensor("w.stored", TensorProto.INT4, (10, 6, 3, 3), b.random.integers(-8, 8, 540))
        b.initializers.append(tensor)
        return b.add("DequantizeLinear", ["w.stored", *b.numbers("w", 0.06, None)], "w.real")
    assert form == "quantized in the graph"
    real = (b.random.standard_normal((10, 6, 3, 3)) / 7).astype(np.float32)
    scale, zero = b.numbers("w", np.linspace(0.003, 0.005, 10), np.zeros(10, np.int8))
    stored = b.add("QuantizeLinear", [b.constant("w", real), scale, zero], "w.quantized", axis=0)
    return b.add("DequantizeLinear", [stored, scale, zero], "w.real", axis=0)


@pytest.mark.parametrize(
    "form", ["uint8 around 128", "uint8 with zero points that fit", "int4", "quantized in the graph"]
)
def test_forms_of_weights(form):
    b = Quantized()
    b.quantize(b.add("Conv", [b.input(), weights_as(b, form)], "c", "conv", **PADS), "y", 0.03, np.uint8(99))
    # ONNX Runtime leaves some forms as float32 convolutions, which may lie on the other side of a tie.
    model = b.quantized_model(IMAGE, {"y": (UINT8, None)})
    row = only(compare(model, [Rule("*", "mask")], given_images(), tolerance=1))
    assert attributes_of(row.masked).get("weight_bits", 8) == (4 if form == "int4" else 8)


def test_transposed_matrix():
    """As PyTorch's exporter writes a linear layer."""
    b = Quantized()
    w = b.filter("w", b.random.integers(-60, 60, (5, 24)).astype(np.int8), np.linspace(0.004, 0.005, 5), axis=0)
    b.add("MatMul", [b.dequantize("in", "x", 0.03, np.uint8(7)), b.add("Transpose", [w], "t", perm=[1, 0])], "l", "fc")
    b.add("Add", ["l", b.weights("bias", 5)], "s")
    b.quantize(b.add("Relu", ["s"], "r"), "y", 0.02, np.uint8(0))
    model = b.quantized_model({"x": (UINT8, [2, 9, 24])}, {"y": (UINT8, None)})
    given = {"x": draw_integers(np.random.default_rng(9), np.uint8, 2, 9, 24)}
    row = only(compare(model, [Rule("*", "mask")], given, tolerance=1), "MaskedQLinearMatMul")
    assert [node.op_type for node in row.nodes] == ["MatMul", "Add", "Relu", "QuantizeLinear"]


def test_norm_with_quantized_vectors():
    """Norms compute with real numbers, of which quantizers store the vectors as integers."""
    b = Quantized()
    w = b.filter("w", b.random.integers(-60, 60, (24, 16)).astype(np.int8), 0.004)
    b.quantize(b.add("MatMul", [b.input(), w], "l", "fc"), "q", 0.05, np.uint8(120))
    vectors = [
        b.filter("scale", b.random.integers(100, 250, 16).astype(np.uint8), 0.01, np.uint8(20)),
        b.filter("bias", b.random.integers(-3000, 3000, 16).astype(np.int32), 1e-4),
    ]
    b.add("LayerNormalization", [b.dequantize("d", "q", 0.05, np.uint8(120)), *vectors], "y", "norm")
    model = b.quantized_model({"x": (UINT8, [2, 9, 24])}, {"y": (FLOAT, None)})
    given = {"x": draw_integers(np.random.default_rng(9), np.uint8, 2, 9, 24)}
    report = compare(model, [Rule("*", "mask")], given)
    assert [row.op for row in report] == ["MaskedQLinearMatMul", "MaskedLayerNorm"]


def test_weights_of_an_operator_that_are_no_constants():
    b = Quantized()
    numbers = b.numbers("x", 0.03, np.uint8(120)), b.numbers("w", 0.01, np.int8(0)), b.numbers("y", 0.1, np.uint8(9))
    b.add("QLinearConv", ["x", *numbers[0], "w", *numbers[1], *numbers[2]], "y", "conv", **PADS)
    model = b.quantized_model({**IMAGE, "w": (INT8, [10, 6, 3, 3])}, {"y": (UINT8, None)})
    _, (row,) = convert(model, [Rule("*", "mask")])
    assert row.reason == "its weights are not constant"


def reasons_model(change):
    """A quantized convolution with something that has no masked form."""
    b = Quantized()
    inputs, source, more = dict(IMAGE), "in.real", {}
    if change == "scale of the input":
        b.add("DequantizeLinear", ["x", "scale"], source)
        inputs["scale"] = (FLOAT, [])
    elif change == "scales of the input":
        b.dequantize("in", "x", np.full(6, 0.03), None, axis=1)
    elif change == "type of the input":
        b.dequantize("in", "x", 0.03, np.int16(0))
        inputs["x"] = (TensorProto.INT16, [2, 6, 9, 8])
    elif change == "input in float32":
        source, inputs["x"] = "x", (FLOAT, [2, 6, 9, 8])
    else:
        b.input()
    zero, scale, axis = None, np.float32(0.004), {}
    values = small_filter(b)
    if change == "zero point of the weights":
        values, zero = b.random.integers(0, 256, values.shape).astype(np.uint8), np.uint8(60)
    elif change == "axis of the weights":
        scale, axis = np.full(6, 0.004), dict(axis=1)
    elif change == "blocks":
        scale, axis = np.full((10, 3, 3, 3), 0.004), dict(axis=1, block_size=2)
    elif change == "weights":
        inputs["w.stored"] = (INT8, list(values.shape))
    if change == "weights":
        w = b.dequantize("w", "w.stored", scale)
    elif change == "scale of the weights":
        b.constant("w.stored", values)
        inputs["w.scale"] = (FLOAT, [])
        w = b.add("DequantizeLinear", ["w.stored", "w.scale"], "w.real")
    else:
        w = b.filter("w", values, scale, zero, **axis)
    layer = [source, w]
    if change == "bias":
        inputs["b"] = (FLOAT, [10])
        layer.append("b")
    b.add("Conv", layer, "y", "conv", **PADS, **more)
    return b.quantized_model(inputs, {"y": (FLOAT, None)})


@pytest.mark.parametrize(
    "change, reason",
    [
        ("scale of the input", "the scale of its input is not constant"),
        ("scales of the input", "its input has more than one scale or zero point"),
        ("type of the input", "its input is of type int16, not uint8 or int8"),
        ("input in float32", "its weights are quantized, but its input is not"),
        ("zero point of the weights", "its weights have a zero point that is not 0, and less it they exceed int8"),
        ("axis of the weights", "its weights have scales of another axis than the outputs'"),
        ("blocks", "the quantization of its weights is blocked"),
        ("weights", "its weights are not constant"),
        ("scale of the weights", "the scale of its weights is not constant"),
        ("bias", "its bias is not constant"),
    ],
)
def test_reasons(change, reason):
    model = reasons_model(change)
    converted, report = convert(model, [Rule("*", "mask")])
    (row,) = report
    assert isinstance(row, Left) and row.reason == reason
    assert [node.op_type for node in converted.graph.node] == [node.op_type for node in model.graph.node]


def test_integer_operators_stay():
    b = Quantized()
    b.add("ConvInteger", ["x", b.constant("w", small_filter(b))], "y", "conv", **PADS)
    _, (row,) = convert(b.quantized_model(IMAGE, {"y": (TensorProto.INT32, None)}), [Rule("*", "mask")])
    assert row.reason == "it gives integer sums, whose scale only a run knows: quantize the model statically"


def test_quantization_that_stays():
    """A QuantizeLinear that others read beside, or that the operator cannot do, stays behind a result of float32."""
    b = Quantized()
    b.add("Conv", [b.input(), b.filter("w", small_filter(b), 0.004)], "c", "conv", **PADS)
    b.quantize("c", "y", 0.03, np.uint8(99))
    row = only(
        compare(b.quantized_model(IMAGE, {"y": (UINT8, None), "c": (FLOAT, None)}), [Rule("*", "mask")], given_images(),
                tolerance=1)
    )  # fmt: skip
    assert [node.op_type for node in row.nodes] == ["Conv"]
    assert dict(row.operator.params)["output_dtype"] == "float32"


def test_chain_in_nhwc():
    """Quantized images stay in NHWC through what lies between layers."""
    b = Quantized()
    b.quantize(b.add("Conv", [b.input(), b.filter("w", small_filter(b), 0.004)], "c", "first", **PADS), "q", 0.03,
               np.uint8(99))  # fmt: skip
    b.add("Abs", [b.dequantize("d", "q", 0.03, np.uint8(99))], "abs")
    again = b.dequantize("e", b.quantize("abs", "q2", 0.03, np.uint8(0)), 0.03, np.uint8(0))
    b.quantize(b.add("Conv", [again, b.filter("v", small_filter(b, 4, 10), 0.004)], "c2", "second", **PADS), "y", 0.05,
               np.uint8(7))  # fmt: skip
    model = b.quantized_model(IMAGE, {"y": (UINT8, None)})
    compare(model, [Rule("*", "mask")], given_images())
    converted, _ = convert(model, [Rule("*", "mask")])
    assert [node.op_type for node in converted.graph.node].count("Transpose") == 2
    layouts = {attributes_of(node)["layout"] for node in converted.graph.node if node.domain == "distile"}
    assert layouts == {"NHWC"}


@with_compiler
def test_tables(tmp_path):
    """What the commands print about quantized layers."""
    b = Quantized()
    values = small_filter(b, 14)
    b.quantize(b.add("Conv", [b.input(), b.filter("w", values, 0.004)], "c", "conv", **PADS), "y", 0.03, np.uint8(99))
    model = b.quantized_model(IMAGE, {"y": (UINT8, None)})
    rules = [Rule("*", "mask")]
    _, report = convert(model, rules)
    place = "stride 1x1, offset 0x0, grid 9x8"
    assert f"MaskedQLinearConv  mask  9x8   {place}  with QuantizeLinear; no PolyKernel: dense" in table(report)
    masks = lambda name, extents: np.ones(extents, bool)
    (row,), left, _ = explain(model, rules, masks, seconds=0.002)
    assert (row.name, row.kind, row.dense_work) == ("conv", "uint8 conv 3x3 6-14", 2 * 72 * 14 * 6 * 9)
    assert row.runs_dense and not left
    (row,), _, _ = explain(model, rules, masks, seconds=0.002, compile_missing=True)
    assert not row.runs_dense and "no PolyKernel" not in table(report)
