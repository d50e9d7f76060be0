"""Quantized layers: the operators against integer sums."""

import numpy as np
import pytest
import stand_in
from networks import draw_integers, run_node
from onnx import TensorProto

from distile.compiler import compile_polykernel
from distile.description import Operator
from distile.onnx import cache_folder
from distile.toolchain import compiler_folder

KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8, np.float32: TensorProto.FLOAT}


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


class LayerNumbers:
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
        numbers = LayerNumbers(random, x_type, y_type, outer, per_channel)
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
    numbers = LayerNumbers(random, x_type, y_type, 3, factor=4)
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
            numbers = LayerNumbers(random, x_type, y_type, 12, factor=4)
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
    numbers = LayerNumbers(random, np.uint8, np.uint8, 256, factor=20)
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
    numbers = LayerNumbers(random, np.uint8, np.uint8, 4)
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
