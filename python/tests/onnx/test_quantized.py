"""Quantized layers: the operators against integer sums, and converted models against ONNX Runtime's own result."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import stand_in
from networks import Builder, run, run_node
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from distile.compiler import compile_polykernel, compiler_folder
from distile.description import Operator
from distile.onnx import Left, Replaced, Rule, cache_folder, convert
from distile.onnx.__main__ import table
from distile.onnx.building import build, missing
from distile.onnx.explain import explain
from distile.onnx.graph import attributes as attributes_of

KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8, np.float32: TensorProto.FLOAT}
with_compiler = pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")


def draw_integers(random, kind, *shape):
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max + 1, shape).astype(kind)


def convolve(x, w, bias, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1):
    """Sums of int64, of images in NHWC."""
    padded = np.pad(x, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    height, width = (
        (padded.shape[1 + axis] - dilations[axis] * (w.shape[2 + axis] - 1) - 1) // strides[axis] + 1 for axis in (0, 1)
    )
    sums = np.zeros((x.shape[0], height, width, w.shape[0]), np.int64) + bias
    inner, outer = w.shape[1], w.shape[0] // group
    for g in range(group):
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                top, left = i * dilations[0], j * dilations[1]
                rows = slice(top, top + (height - 1) * strides[0] + 1, strides[0])
                columns = slice(left, left + (width - 1) * strides[1] + 1, strides[1])
                read = padded[:, rows, columns, g * inner : (g + 1) * inner]
                sums[..., g * outer : (g + 1) * outer] += read @ w[g * outer : (g + 1) * outer, :, i, j].T
    return sums


def convolve_transposed(x, w, bias, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), output_padding=(0, 0)):
    height, width = (
        (x.shape[1 + axis] - 1) * strides[axis] + dilations[axis] * (w.shape[2 + axis] - 1) + 1 for axis in (0, 1)
    )
    whole = np.zeros((x.shape[0], height + output_padding[0], width + output_padding[1], w.shape[1]), np.int64)
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            rows = slice(i * dilations[0], i * dilations[0] + (x.shape[1] - 1) * strides[0] + 1, strides[0])
            columns = slice(j * dilations[1], j * dilations[1] + (x.shape[2] - 1) * strides[1] + 1, strides[1])
            whole[:, rows, columns] += x @ w[:, :, i, j]
    return whole[:, pads[0] : whole.shape[1] - pads[2], pads[1] : whole.shape[2] - pads[3]] + bias


CLAMPED = {"none": (-np.inf, np.inf), "relu": (0, np.inf), "relu6": (0, 6)}


class Numbers:
    """The numbers of a layer, and what it makes of its sums, as quantize.h defines it, in float32."""

    def __init__(self, random, x_type, y_type, outer, per_channel=True, factor=1.0):
        self.x_type, self.y_type = x_type, y_type
        self.x_scale, self.x_zero = np.float32(0.02), x_type(3 if x_type == np.int8 else 130)
        self.w_scale = (random.random(outer if per_channel else ()) * 0.02 + 0.001).astype(np.float32)
        self.bias = random.integers(-5000, 5000, outer).astype(np.int32)
        self.y_scale, self.y_zero = np.float32(0.06 * factor), None
        if y_type != np.float32:
            self.y_zero = y_type(-5 if y_type == np.int8 else 100)

    @property
    def inputs(self):
        numbers = [self.x_scale, self.x_zero, self.w_scale, self.bias]
        return numbers if self.y_type == np.float32 else [*numbers, self.y_scale, self.y_zero]

    def results(self, sums, activation="none", real_bias=0, residual=None):
        """`residual`: real numbers less than the output's scale, where it is quantized."""
        to_float = self.y_type == np.float32
        unit = np.float32(1) if to_float or activation == "relu6" else self.y_scale
        values = sums.astype(np.float32) * (self.x_scale * self.w_scale / unit) + np.float32(real_bias) / unit
        if residual is not None:
            values = values + residual / unit
        values = np.clip(values, *(np.float32(limit) for limit in CLAMPED[activation]))
        return values if to_float else self.stored(values * np.float32(1 if unit == self.y_scale else 1 / self.y_scale))

    def stored(self, values):
        limits = np.iinfo(self.y_type)
        return np.clip(np.rint(values) + int(self.y_zero), limits.min, limits.max).astype(self.y_type)

    @property
    def zero(self):
        return np.float32(0) if self.y_zero is None else self.y_zero


TYPES = [(x, y) for x in (np.uint8, np.int8) for y in (np.uint8, np.int8, np.float32)]
CONVOLUTIONS = [
    ("MaskedQLinearConv", 5, 7, 3, dict(pads=[1] * 4)),
    ("MaskedQLinearConv", 6, 4, 3, dict(pads=[0, 2, 1, 0], strides=[2, 1], dilations=[1, 2], group=2)),
    ("MaskedQLinearConv", 6, 6, 3, dict(group=6, strides=[2, 2], pads=[1] * 4)),
    ("MaskedQLinearConvTranspose", 5, 3, 4, dict(strides=[2, 2], pads=[1] * 4)),
    ("MaskedQLinearConvTranspose", 5, 3, 3, dict(strides=[2, 3], output_padding=[1, 2], pads=[1, 0, 0, 1])),
    ("MaskedQLinearConvTranspose", 4, 6, 2, dict(strides=[1, 1], pads=[2, 1, 0, 2], dilations=[2, 1])),
]


def convolution_case(op, inner, outer, kernel, attributes, x_type, seed):
    """An input, a filter, and a function from zero point and bias to the sums."""
    random = np.random.default_rng(seed)
    x = draw_integers(random, x_type, 2, 8, 7, inner)
    transposed = op == "MaskedQLinearConvTranspose"
    shape = (inner, outer) if transposed else (outer, inner // attributes.get("group", 1))
    w = draw_integers(random, np.int8, *shape, kernel, kernel)
    of = convolve_transposed if transposed else convolve
    return random, x, w, lambda zero, bias: of(x.astype(np.int64) - int(zero), w.astype(np.int64), bias, **attributes)


CONSTANTS = (1, 3, *range(6, 14))


@pytest.mark.parametrize("x_type, y_type", TYPES)
@pytest.mark.parametrize("op, inner, outer, kernel, attributes", CONVOLUTIONS)
def test_convolutions(op, inner, outer, kernel, attributes, x_type, y_type):
    """Without a PolyKernel; full-range weights, whose products of pairs exceed int16."""
    random, x, w, sums_of = convolution_case(op, inner, outer, kernel, attributes, x_type, 0)
    for activation, per_channel, real_bias in (("none", True, 0), ("relu", False, 0.25), ("relu6", True, 0)):
        numbers = Numbers(random, x_type, y_type, outer, per_channel)
        dense = numbers.results(sums_of(numbers.x_zero, numbers.bias), activation, real_bias)
        mask = random.random(dense.shape[:3]) < 0.4
        biases = np.full(outer, real_bias, np.float32) if real_bias else None
        inputs = [x, w, mask, biases, None, None, *numbers.inputs]
        result = run_node(
            op, inputs, CONSTANTS, types=(KINDS[y_type],), layout="NHWC", activation=activation, **attributes
        )
        assert result.dtype == y_type
        np.testing.assert_array_equal(result, np.where(mask[..., None], dense, numbers.zero))


@pytest.mark.parametrize("x_type, y_type", TYPES)
@pytest.mark.parametrize("transposed", [0, 1])
def test_linear(x_type, y_type, transposed):
    random = np.random.default_rng(1)
    numbers = Numbers(random, x_type, y_type, 3, factor=4)
    for shape in ((2, 7), (9,), (2, 3, 5)):
        x, w = draw_integers(random, x_type, *shape, 5), draw_integers(random, np.int8, 5, 3)
        dense = numbers.results((x.astype(np.int64) - int(numbers.x_zero)) @ w + numbers.bias)
        mask = random.random(shape) < 0.5
        given = np.ascontiguousarray(w.T) if transposed else w
        inputs = [x, given, mask, None, None, None, *numbers.inputs]
        result = run_node("MaskedQLinearMatMul", inputs, CONSTANTS, types=(KINDS[y_type],), transB=transposed)
        np.testing.assert_array_equal(result, np.where(mask[..., None], dense, numbers.zero))


def build_convolution(x_type, y_type, activation, residual):
    """The PolyKernel of a convolution of 3x3 pixels and 20 to 12 channels."""
    extents = ("kernel", 3), ("stride", 1), ("dilation", 1)
    window = {f"{name}_{axis}": value for name, value in extents for axis in "hw"}
    pads = {f"pad_{side}": 1 for side in ("top", "bottom", "left", "right")}
    channels = dict(in_channels=20, out_channels=12, groups=1)
    types = dict(dtype=np.dtype(x_type).name, output_dtype=np.dtype(y_type).name)
    operator = Operator.make(
        "masked_conv2d", **types, **channels, **window, **pads, epilogue=activation, residual=residual
    )
    compile_polykernel(operator, None, cache_folder() / f"{operator.name}.so", compiler_folder())


@pytest.mark.parametrize("x_type, y_type", TYPES)
def test_residual_and_kept(x_type, y_type):
    """Dense, and then with a PolyKernel."""
    op, attributes = "MaskedQLinearConv", dict(pads=[1] * 4)
    random, x, w, sums_of = convolution_case(op, 20, 12, 3, attributes, x_type, 2)
    to_float = y_type == np.float32
    for polykernel in (False, True) if compiler_folder() else (False,):
        cases = ("relu", True, True), ("relu6", True, False), ("none", False, True)
        for activation, with_residual, with_kept in cases:
            numbers = Numbers(random, x_type, y_type, 12, factor=4)
            if polykernel:
                build_convolution(x_type, y_type, activation, with_residual)
            shape = (2, 8, 7, 12)
            scale = np.float32(0.3)
            zero = np.float32(0) if to_float else y_type(7)
            if to_float:
                residual, kept = random.standard_normal((2, *shape)).astype(np.float32)
                real = residual
            else:
                residual, kept = draw_integers(random, y_type, 2, *shape)
                real = residual.astype(np.float32) - np.float32(zero)
            unit = np.float32(1) if to_float or activation == "relu6" else numbers.y_scale
            # Scaled as the operator does it, so that the bits are the same.
            real = real if to_float else real * (scale / unit) * unit
            sums = sums_of(numbers.x_zero, numbers.bias)
            dense = numbers.results(sums, activation, residual=real if with_residual else None)
            mask = random.random(shape[:3]) < 0.4
            inputs = [x, w, mask, None, residual if with_residual else None, kept if with_kept else None]
            inputs += numbers.inputs
            if with_residual and not to_float:
                inputs += [scale, zero]
            result = run_node(
                op, inputs, CONSTANTS, types=(KINDS[y_type],), layout="NHWC", activation=activation, **attributes
            )
            inactive = kept if with_kept else np.full(shape, numbers.zero)
            np.testing.assert_array_equal(result[~mask], inactive[~mask])
            distance = np.abs(result[mask].astype(np.float64) - dense[mask])
            # A residual's scale is multiplied and divided here, so that a tie may round otherwise.
            assert distance.max() <= (2e-6 * np.abs(dense).max() if to_float else with_residual)
            assert to_float or (distance > 0).mean() < 1e-3


def test_shipped_polykernel():
    """The PolyKernel of the library, which is for the zero points of any layer."""
    random = np.random.default_rng(3)
    x, w = draw_integers(random, np.uint8, 1, 5, 6, 256), draw_integers(random, np.int8, 256, 256, 3, 3)
    numbers = Numbers(random, np.uint8, np.uint8, 256, factor=20)
    sums = convolve(x.astype(np.int64) - int(numbers.x_zero), w.astype(np.int64), numbers.bias, pads=[1] * 4)
    mask = random.random((1, 5, 6)) < 0.4
    inputs = [x, w, mask, None, None, None, *numbers.inputs]
    more = dict(layout="NHWC", pads=[1] * 4, activation="relu")
    result = run_node("MaskedQLinearConv", inputs, CONSTANTS, types=(TensorProto.UINT8,), **more)
    np.testing.assert_array_equal(result, np.where(mask[..., None], numbers.results(sums, "relu"), numbers.zero))
    # The stand-in for ONNX Runtime on GPUs takes quantized tensors too.
    (result,) = stand_in.run_node("MaskedQLinearConv", inputs, CONSTANTS, **more)
    np.testing.assert_array_equal(result, np.where(mask[..., None], numbers.results(sums, "relu"), numbers.zero))


def node_inputs(**changed):
    random = np.random.default_rng(4)
    numbers = Numbers(random, np.uint8, np.uint8, 4)
    inputs = dict(
        x=draw_integers(random, np.uint8, 1, 5, 5, 3), w=draw_integers(random, np.int8, 4, 3, 3, 3),
        mask=np.ones((1, 3, 3), bool), bias=None, residual=None, kept=None, x_scale=numbers.x_scale,
        x_zero=numbers.x_zero, w_scale=numbers.w_scale, integer_bias=numbers.bias, y_scale=numbers.y_scale,
        y_zero=numbers.y_zero,
    )  # fmt: skip
    return list({**inputs, **changed}.values())


@pytest.mark.parametrize(
    "changed, more, message",
    [
        ({}, dict(layout="NCHW"), "quantized images, and all images on GPUs, are in NHWC: set the attribute layout"),
        (dict(w_scale=np.ones(3, np.float32)), {}, "scale of the weights of node 'node' has 3 elements instead of 4"),
        (dict(integer_bias=np.ones(1, np.int32)), {}, "integer bias of node 'node' has 1 elements instead of 4"),
        (dict(bias=np.ones(3, np.float32)), {}, "bias of node 'node' has 3 elements instead of 4"),
        (dict(x_scale=np.ones(2, np.float32)), {}, "scale of the input of node 'node' has 2 elements instead of 1"),
        (dict(x_zero=np.ones(2, np.uint8)), {}, "zero point of the input of node 'node' has 2 elements instead of 1"),
        (dict(x_scale=np.float32(0)), {}, "a scale of the input of node 'node' is 0.0*; it must be above 0 and finite"),
        (dict(w_scale=np.float32(np.inf)), {}, "a scale of the weights of node 'node' is inf; it must be above 0"),
        (dict(y_zero=None), {}, "output of node 'node' has a scale, but no zero point of uint8 or int8"),
        (dict(y_scale=None), {}, "scale of the output of node 'node' has 0 elements instead of 1"),
        (dict(constants=(1, 9)), {}, "scale of the input of node 'node' is not an initializer"),
        (dict(constants=(6, 8, 9, 10)), {}, "weights of node 'node' are not an initializer"),
        (dict(x=np.zeros((1, 2, 5, 3), np.uint8)), {}, "smaller than the operator's window"),
        (dict(x=np.zeros((1, 5, 5, 4), np.uint8)), {}, "the input has 4 channels instead of 3"),
        ({}, dict(weight_bits=3), "weight_bits of node 'node' is 3; it must be 4 or 8"),
        (dict(w=np.full((4, 3, 3, 3), 8, np.int8)), dict(weight_bits=4), "is 8, but weight_bits says that they are from"),
        (dict(kept=np.zeros((1, 3, 4, 4), np.uint8)), {}, "another shape or type than the output"),
        (dict(mask=np.ones((1, 4, 3), bool)), {}, "mask"),
    ],
)
def test_errors(changed, more, message):
    changed = dict(changed)
    constants = changed.pop("constants", CONSTANTS)
    types = (TensorProto.FLOAT if "y_zero" in changed else TensorProto.UINT8,)
    with pytest.raises(Exception, match=message):
        run_node("MaskedQLinearConv", node_inputs(**changed), constants, types=types, **{"layout": "NHWC", **more})


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
