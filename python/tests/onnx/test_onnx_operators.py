"""Each operator of the library against ONNX Runtime's dense operator, and the mask after it."""

import math

import ml_dtypes
import numpy as np
import pytest
import stand_in
from distile import _facts
from networks import BOOL, FLOAT, INT, Builder, run, run_node
from onnx import TensorProto, helper

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.vectorize(math.erfc)(-x * math.sqrt(0.5)) / 2,
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky_relu(-0.5)": lambda x: np.where(x > 0, x, -0.5 * x),
    "leaky_relu(0)": lambda x: np.where(x > 0, x, 0 * x),
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def draw_mask(*shape, density=0.3, seed=3):
    return np.random.default_rng(seed).random(shape) < density


def images(x, layout):
    """From NCHW."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" else x


def back(x, layout):
    return x.transpose(0, 3, 1, 2) if layout == "NHWC" else x


def masked(dense, mask, kept=None):
    return np.where(mask[:, None], dense, np.float32(0) if kept is None else kept)


def test_every_row_has_a_definition():
    assert ACTIVATIONS.keys() >= _facts.ACTIVATIONS.keys()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    x = np.concatenate([np.linspace(-20, 20, 4001), [np.nan, np.inf, -np.inf, -0.0, 1e-40, 80, -80]]).astype(np.float32)
    x = x.reshape(1, -1, 1, 1)
    result = run_node("MaskedActivation", [x, np.ones((1, 1, 1), bool)], activation=activation)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = ACTIVATIONS[activation](x.astype(np.float64))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


# With the PolyKernels that ship (the first four), and dense.
CONVOLUTIONS = [
    ("MaskedConv", 128, 128, 3, {"pads": [1, 1, 1, 1]}, "relu"),
    ("MaskedConv", 576, 576, 3, {"pads": [1, 1, 1, 1], "group": 576, "strides": [2, 2]}, "relu6"),
    ("MaskedConvTranspose", 256, 128, 4, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, "relu"),
    ("MaskedUpsampleConv", 256, 256, 3, {"pads": [1, 1, 1, 1], "scales": [2, 2]}, "none"),
    ("MaskedConv", 5, 7, 3, {"pads": [0, 2, 1, 0], "strides": [2, 1], "dilations": [1, 2]}, "silu"),
    ("MaskedConv", 6, 4, 2, {"group": 2}, "hardswish"),
    ("MaskedConv", 4, 6, 1, {}, "leaky_relu(-0.5)"),
    ("MaskedConvTranspose", 5, 3, 3, {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 0, 0, 1]}, "none"),
    ("MaskedUpsampleConv", 3, 5, 3, {"pads": [1, 0, 1, 0], "scales": [2, 3]}, "relu"),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op, inner, outer, kernel, attributes, activation", CONVOLUTIONS)
def test_convolutions(op, inner, outer, kernel, attributes, activation, layout):
    x = draw(2, inner, 9, 8)
    groups = attributes.get("group", 1)
    transposed = op == "MaskedConvTranspose"
    weights = draw(*((inner, outer) if transposed else (outer, inner // groups)), kernel, kernel, seed=1)
    weights /= np.float32(np.sqrt(weights[0].size))
    bias = draw(outer, seed=2)
    dense_attributes = {key: value for key, value in attributes.items() if key != "scales"}
    larger = x
    for axis, scale in enumerate(attributes.get("scales", []), 2):
        larger = larger.repeat(scale, axis)
    dense = run_node(
        "ConvTranspose" if transposed else "Conv", [larger, weights, bias], (1, 2), domain="", **dense_attributes
    )
    for density in (0.0, 0.3, 1.0):
        mask = draw_mask(2, *dense.shape[2:], density=density)
        inputs = [images(x, layout), weights, mask, bias]
        result = run_node(op, inputs, (1, 3), layout=layout, activation=activation, **attributes)
        expected = masked(ACTIVATIONS[activation](dense), mask)
        np.testing.assert_allclose(back(result, layout), expected, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("with_residual, with_kept", [(True, False), (False, True), (True, True)])
def test_residual_and_kept(layout, with_residual, with_kept):
    x, weights, mask = draw(2, 4, 7, 6), draw(4, 4, 3, 3, seed=1), draw_mask(2, 7, 6)
    residual = draw(2, 4, 7, 6, seed=4) if with_residual else None
    kept = draw(2, 4, 7, 6, seed=5) if with_kept else None
    dense = run_node("Conv", [x, weights], (1,), domain="", pads=[1] * 4)
    dense = np.maximum(dense + (residual if with_residual else 0), 0)
    inputs = [images(x, layout), weights, mask[:, None], None]
    inputs += [None if value is None else images(value, layout) for value in (residual, kept)]
    result = run_node("MaskedConv", inputs, (1,), layout=layout, activation="relu", pads=[1] * 4)
    np.testing.assert_allclose(back(result, layout), masked(dense, mask, kept), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inner, outer, shape", [(384, 1152, (2, 11)), (5, 3, (2, 7)), (5, 3, (9,)), (6, 4, (2, 3, 5))])
@pytest.mark.parametrize("transposed", [0, 1])
def test_linear(inner, outer, shape, transposed):
    x, bias, mask = draw(*shape, inner), draw(outer, seed=2), draw_mask(*shape)
    weights = draw(inner, outer, seed=1) / np.float32(np.sqrt(inner))
    expected = np.where(mask[..., None], x @ weights + bias, 0)
    given = np.ascontiguousarray(weights.T) if transposed else weights
    result = run_node("MaskedLinear", [x, given, mask, bias], (1, 3), transB=transposed)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-5)
    kept = draw(*shape, outer, seed=4)
    result = run_node("MaskedLinear", [x, given, mask, None, None, kept], (1,), transB=transposed, activation="relu")
    expected = np.where(mask[..., None], np.maximum(x @ weights, 0), kept)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("key_density", [None, 0.4, 0.0])
def test_attention(key_density):
    query, key, value = draw(3, 2, 17, 192)
    mask = draw_mask(2, 17)
    keys = None if key_density is None else draw_mask(2, 17, density=key_density, seed=8)
    split = lambda x: x.reshape(2, 17, 3, 64).transpose(0, 2, 1, 3)
    scores = split(query) @ split(key).transpose(0, 1, 3, 2) / 8
    if keys is not None:
        scores = np.where(keys[:, None, None], scores, -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights *= 1 if keys is None else keys[:, None, None]
    expected = (weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)) @ split(value)
    expected = expected.transpose(0, 2, 1, 3).reshape(2, 17, 192) * mask[..., None]
    result = run_node("MaskedAttention", [query, key, value, mask, keys], num_heads=3, head_dim=64)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_norms():
    x, mask, scale, bias = draw(2, 7, 12), draw_mask(2, 7), draw(12, seed=1), draw(12, seed=2)
    dense = run_node("LayerNormalization", [x, scale, bias], (1, 2), domain="", epsilon=1e-3)
    result = run_node("MaskedLayerNorm", [x, mask, scale, bias], epsilon=1e-3)
    np.testing.assert_allclose(result, np.where(mask[..., None], dense, 0), rtol=1e-5, atol=1e-5)
    dense = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * scale
    result = run_node("MaskedRMSNorm", [x, mask, scale], epsilon=1e-3)
    np.testing.assert_allclose(result, np.where(mask[..., None], dense, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_group_norm(layout):
    x, mask, scale = draw(2, 12, 5, 6), draw_mask(2, 5, 6), draw(12, seed=1)
    groups = x.reshape(2, 3, 4, 5, 6)
    expected = np.zeros_like(groups)
    for image in range(2):
        active = groups[image][:, :, mask[image]]
        mean, variance = active.mean((1, 2)), active.var((1, 2))
        expected[image] = (groups[image] - mean[:, None, None, None]) / np.sqrt(variance + 1e-4)[:, None, None, None]
    expected = np.maximum(expected.reshape(x.shape) * scale[:, None, None], 0) * mask[:, None]
    attributes = dict(layout=layout, num_groups=3, epsilon=1e-4, activation="relu")
    result = run_node("MaskedGroupNorm", [images(x, layout), mask, scale], **attributes)
    np.testing.assert_allclose(back(result, layout), expected, rtol=1e-4, atol=1e-4)
    mean, variance = draw(2, 3, seed=5), np.abs(draw(2, 3, seed=6)) + 1
    expected = (groups - mean[..., None, None, None]) / np.sqrt(variance + 1e-4)[..., None, None, None]
    expected = np.maximum(expected.reshape(x.shape) * scale[:, None, None], 0) * mask[:, None]
    result = run_node("MaskedGroupNorm", [images(x, layout), mask, scale, None, mean, variance], **attributes)
    np.testing.assert_allclose(back(result, layout), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling(op, layout):
    x = draw(2, 6, 9, 8)
    window = dict(kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    for more in ({}, {"dilations": [2, 1]} if op == "MaxPool" else {"count_include_pad": 1}):
        dense = run_node(op, [x], domain="", **window, **more)
        mask = draw_mask(2, *dense.shape[2:])
        result = run_node(f"Masked{op}", [images(x, layout), mask], layout=layout, **window, **more)
        np.testing.assert_allclose(back(result, layout), masked(dense, mask), rtol=1e-6, atol=1e-6)


def test_masks():
    mask = draw_mask(2, 9, 10, density=0.1)
    padded = np.pad(mask, ((0, 0), (1, 1), (2, 2)))
    dilated = np.any([padded[:, y : y + 9, x : x + 10] for y in range(3) for x in range(5)], 0)
    result = run_node("MaskDilate", [mask], types=(BOOL,), radius=[1, 2])
    assert (result == dilated).all()
    pooled = np.pad(mask, ((0, 0), (0, 0), (0, 2))).reshape(2, 3, 3, 4, 3).any((2, 4))
    assert (run_node("MaskPool", [mask], types=(BOOL,), factor=[3, 3]) == pooled).all()
    scores, weights = draw(2, 4, 5, 6), draw(4, seed=1)
    expected = np.einsum("nchw,c->nhw", scores, weights) + 0.25 > 0.5
    result = run_node("MaskFromScores", [scores, weights], types=(BOOL,), bias=0.25, threshold=0.5)
    assert (result == expected).all()


@pytest.mark.parametrize("size, factor, offset", [((3, 4), (3, 2), (1, 1)), ((9, 10), (1, 1), (0, 0)),
                                                  ((2, 2), (2, 3), (4, 2)), ((5, 6), (2, 2), (-1, -1))])  # fmt: skip
def test_cells_of_masks(size, factor, offset):
    mask = draw_mask(2, 9, 10, density=0.1)
    expected = np.zeros((2, *size), bool)
    for place in np.ndindex(*size):
        spans = []
        for at, cells, step, begin, pixels in zip(place, size, factor, offset, mask.shape[1:]):
            low = 0 if at == 0 else begin + at * step
            high = pixels if at == cells - 1 else begin + (at + 1) * step
            spans.append(slice(min(max(low, 0), pixels - 1), max(high, min(max(low, 0), pixels - 1) + 1)))
        expected[(slice(None), *place)] = mask[(slice(None), *spans)].any((1, 2))
    inputs = [mask, np.array(size, np.int64)]
    result = run_node("MaskCells", inputs, types=(BOOL,), factor=factor, offset=offset)
    assert (result == expected).all()
    with pytest.raises(Exception, match="the size of cells is not that of an image"):
        run_node("MaskCells", [mask, np.array([0, 3], np.int64)], types=(BOOL,))
    with pytest.raises(Exception, match="a factor below 1"):
        run_node("MaskCells", inputs, types=(BOOL,), factor=[0, 1])


def test_one_mask_for_a_batch():
    mask, tokens = draw_mask(1, 5, 6), draw_mask(1, 7)
    x, rows = draw(3, 8, 5, 6), draw(3, 7, 8, seed=1)
    filter, weights = draw(4, 8, 3, 3, seed=2), draw(8, 4, seed=3)
    calls = [
        ("MaskedConv", [x, filter, mask], (1,), dict(pads=[1, 1, 1, 1])),
        ("MaskedLinear", [rows, weights, tokens], (1,), {}),
        ("MaskedLayerNorm", [rows, tokens], (), {}),
        ("MaskedGroupNorm", [x, mask], (), dict(num_groups=2)),
        ("MaskedMaxPool", [x, mask], (), dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
        ("MaskedGlobalAveragePool", [x, mask], (), {}),
        ("MaskedAdd", [x, x, mask], (), {}),
    ]
    for op, inputs, constants, attributes in calls:
        each = [*inputs[:-1], inputs[-1].repeat(3, 0)]
        results = [run_node(op, given, constants, **attributes) for given in (inputs, each)]
        np.testing.assert_array_equal(*results, err_msg=op)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_batch_norm_and_group_statistics(layout):
    x, mask = draw(2, 12, 5, 6), draw_mask(2, 5, 6)
    scale, bias, mean = draw(3, 12, seed=1)
    variance = np.abs(draw(12, seed=2)) + np.float32(0.5)
    dense = run_node("BatchNormalization", [x, scale, bias, mean, variance], (1, 2, 3, 4), domain="", epsilon=1e-3)
    inputs = [images(x, layout), mask, scale, bias, mean, variance]
    result = run_node("MaskedBatchNorm", inputs, layout=layout, epsilon=1e-3, activation="silu")
    expected = masked(ACTIVATIONS["silu"](dense), mask)
    np.testing.assert_allclose(back(result, layout), expected, rtol=1e-5, atol=1e-5)
    for given in (mask, None):
        groups = x.reshape(2, 3, 4, 5, 6)
        active = [group[:, :, :] if given is None else group[:, :, given[image]] for image, group in enumerate(groups)]
        moments = [np.stack([getattr(one.reshape(3, -1), moment)(1) for one in active]) for moment in ("mean", "var")]
        inputs = [images(x, layout), given]
        results = run_node("MaskedGroupStatistics", inputs, types=(FLOAT, FLOAT), layout=layout, num_groups=3)
        for result, expected in zip(results, moments):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_global_pooling(layout):
    x, mask = draw(3, 6, 5, 4), draw_mask(3, 5, 4)
    mask[1] = False
    for op, numpy_op in (("MaskedGlobalMaxPool", np.max), ("MaskedGlobalAveragePool", np.mean)):
        result = run_node(op, [images(x, layout)], layout=layout)
        np.testing.assert_allclose(back(result, layout)[:, :, 0, 0], numpy_op(x, (2, 3)), rtol=1e-5, atol=1e-6)
        result = run_node(op, [images(x, layout), mask], layout=layout)
        expected = np.stack([numpy_op(x[i][:, mask[i]], 1) if mask[i].any() else np.zeros(6) for i in range(3)])
        np.testing.assert_allclose(back(result, layout)[:, :, 0, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("with_kept", [False, True])
def test_upsampling(layout, with_kept):
    x, mask = draw(2, 5, 3, 4), draw_mask(2, 6, 12)
    kept = draw(2, 5, 6, 12, seed=4) if with_kept else None
    inputs = [images(x, layout), mask, images(kept, layout) if with_kept else None]
    result = run_node("MaskedUpsample", inputs, layout=layout, scales=[2, 3])
    expected = masked(x.repeat(2, 2).repeat(3, 3), mask, kept)
    np.testing.assert_array_equal(back(result, layout), expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("with_kept", [False, True])
def test_combinations(layout, with_kept):
    a, b, mask = draw(2, 5, 4, 6), draw(2, 5, 4, 6, seed=1), draw_mask(2, 4, 6)
    kept = draw(2, 5, 4, 6, seed=4) if with_kept else None
    gate = b[:, :, :1, :1].copy()
    sigmoid, relu, silu = (ACTIVATIONS[name] for name in ("sigmoid", "relu", "silu"))
    for op, operands, attributes, dense in (
        ("MaskedAdd", [a, b], dict(activation="relu"), relu(a + b)),
        ("MaskedAdd", [a, gate], {}, a + gate),
        ("MaskedMul", [a, b], dict(activation="silu"), silu(a * b)),
        ("MaskedMul", [a, gate], dict(other_activation="sigmoid"), a * sigmoid(gate)),  # Squeeze-excite.
        ("MaskedActivation", [a], dict(activation="silu"), silu(a)),
    ):
        inputs = [*(images(operand, layout) for operand in operands), mask, images(kept, layout) if with_kept else None]
        result = run_node(op, inputs, layout=layout, **attributes)
        np.testing.assert_allclose(back(result, layout), masked(dense, mask, kept), rtol=1e-5, atol=1e-6)
    b = draw(2, 3, 4, 6, seed=1)
    kept = draw(2, 8, 4, 6, seed=4) if with_kept else None
    inputs = [images(a, layout), images(b, layout), mask, images(kept, layout) if with_kept else None]
    result = run_node("MaskedConcat", inputs, layout=layout)
    np.testing.assert_array_equal(back(result, layout), masked(np.concatenate([a, b], 1), mask, kept))
    more = [draw(2, channels, 4, 6, seed=channels) for channels in (1, 2, 3, 4, 6, 7)]
    kept = draw(2, 31, 4, 6, seed=4) if with_kept else None
    inputs[3:] = [images(one, layout) if one is not None else None for one in (kept, *more)]
    result = run_node("MaskedConcat", inputs, layout=layout)
    np.testing.assert_array_equal(back(result, layout), masked(np.concatenate([a, b, *more], 1), mask, kept))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_masks_behind_dense_operators(kind):
    """Images in NCHW as they are, whatever is in inactive pixels."""
    x, mask = draw(2, 5, 4, 7).astype(kind), draw_mask(2, 4, 7)
    x[:, 1] = np.where(mask, x[:, 1], np.nan)
    x[:, 2] = np.where(mask, x[:, 2], np.inf)
    for given in (mask, mask[:, None], mask[:1]):  # One mask serves all images.
        result = run_node("MaskedActivation", [x, given], types=(helper.np_dtype_to_tensor_dtype(x.dtype),))
        np.testing.assert_array_equal(result, np.where(given.reshape(-1, 1, 4, 7), x, kind(0)))
    with pytest.raises(Exception, match="one element for each pixel"):
        run_node("MaskedActivation", [x, mask.transpose(0, 2, 1)], types=(helper.np_dtype_to_tensor_dtype(x.dtype),))


def test_combinations_of_tokens():
    a, b, mask = draw(2, 7, 5), draw(2, 7, 5, seed=1), draw_mask(2, 7)
    result = run_node("MaskedAdd", [a, b, mask])
    np.testing.assert_array_equal(result, np.where(mask[..., None], a + b, 0))
    result = run_node("MaskedConcat", [a, b, mask])
    np.testing.assert_array_equal(result, np.where(mask[..., None], np.concatenate([a, b], 2), 0))


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_packing(density):
    tokens, mask = draw(2, 7, 5), draw_mask(2, 7, density=density)
    packed = run_node("MaskedPack", [tokens, mask])
    np.testing.assert_array_equal(packed, tokens[mask])
    result = run_node("MaskedUnpack", [packed, mask])
    np.testing.assert_array_equal(result, np.where(mask[..., None], tokens, 0))
    lengths = run_node("MaskCumulativeLengths", [mask], types=(INT,))
    np.testing.assert_array_equal(lengths, [0, *mask.sum(1).cumsum()])
    for layout in ("NCHW", "NHWC"):
        x, mask, kept = draw(2, 5, 4, 6), draw_mask(2, 4, 6, density=density), draw(2, 5, 4, 6, seed=4)
        packed = run_node("MaskedPack", [images(x, layout), mask], layout=layout)
        np.testing.assert_array_equal(packed, x.transpose(0, 2, 3, 1)[mask])
        result = run_node("MaskedUnpack", [packed, mask, images(kept, layout)], layout=layout)
        np.testing.assert_array_equal(back(result, layout), masked(x, mask, kept))


def test_packed_tokens_for_another_mask():
    with pytest.raises(Exception, match="no packed tokens for 3 active pixels"):
        run_node("MaskedUnpack", [draw(0, 5), np.ones((1, 3), bool)])
    with pytest.raises(Exception, match="BAD_SHAPE"):
        run_node("MaskedUnpack", [draw(2, 5), np.ones((1, 3), bool)])


def test_masks_through_windows():
    """Against the pixels that a convolution of ones reads."""
    mask = draw_mask(2, 5, 6, density=0.1)
    window = dict(kernel_shape=[3, 2], strides=[2, 1], dilations=[1, 2], pads=[1, 1, 0, 1])
    ones = np.ones((1, 1, 3, 2), np.float32)
    small = run_node("Conv", [mask[:, None].astype(np.float32), ones], (1,), domain="", **window) > 0
    result = run_node("MaskAffectedOutput", [mask], types=(BOOL,), size=list(small.shape[2:]), **window)
    np.testing.assert_array_equal(result, small[:, 0])
    outputs = draw_mask(2, *small.shape[2:], density=0.2)
    needed = np.zeros_like(mask)
    for image, y, x in zip(*outputs.nonzero()):
        for i in range(3):
            for j in range(2):
                row, column = y * 2 - 1 + i, x - 1 + j * 2
                if 0 <= row < 5 and 0 <= column < 6:
                    needed[image, row, column] = True
    result = run_node("MaskNeededInput", [outputs], types=(BOOL,), size=[5, 6], **window)
    np.testing.assert_array_equal(result, needed)
    result = run_node("MaskAffectedOutput", [mask], types=(BOOL,), size=[10, 18], strides=[2, 3], kind="upsampled")
    np.testing.assert_array_equal(result, mask.repeat(2, 1).repeat(3, 2))


def test_mask_formats_and_differences():
    mask = draw_mask(2, 5, 70)
    words = np.zeros((2, 5, 3), np.uint32)
    for image, y, x in zip(*mask.nonzero()):
        words[image, y, x // 32] |= np.uint32(1 << (x % 32))
    words = words.view(np.int32)
    np.testing.assert_array_equal(run_node("MaskToBits", [mask], types=(INT,)), words)
    np.testing.assert_array_equal(run_node("MaskFromBits", [words], types=(BOOL,), width=70), mask)
    indices, counts = np.full((2, 350), -1, np.int32), mask.sum((1, 2)).astype(np.int32)
    for image in range(2):
        indices[image, : counts[image]] = mask[image].reshape(-1).nonzero()[0]
    result = run_node("MaskFromIndices", [indices, counts], types=(BOOL,), size=[5, 70])
    np.testing.assert_array_equal(result, mask)
    with pytest.raises(Exception, match="BAD_VALUE"):
        run_node("MaskFromIndices", [indices], types=(BOOL,), size=[5, 70])
    for layout in ("NCHW", "NHWC"):
        a = draw(2, 4, 5, 6)
        b = a + np.where(draw_mask(2, 4, 5, 6, density=0.1), np.float32(0.5), np.float32(0.01))
        result = run_node("MaskDifference", [images(a, layout), images(b, layout)], types=(BOOL,), layout=layout,
                          threshold=0.1)  # fmt: skip
        np.testing.assert_array_equal(result, (np.abs(a - b) > 0.1).any(1))


def test_bfloat16():
    """A PolyKernel in bfloat16, between casts."""
    x, mask = draw(1, 8, 8, 256), draw_mask(1, 8, 8)
    builder = Builder()
    builder.weights("w32", 256, 256, 3, 3)
    for name in ("x", "w32"):
        builder.add("Cast", [name], f"{name}.bf16", to=TensorProto.BFLOAT16)
    attributes = dict(domain="distile", layout="NHWC", activation="relu", pads=[1] * 4)
    builder.add("MaskedConv", ["x.bf16", "w32.bf16", "mask"], "y.bf16", **attributes)
    builder.add("Cast", ["y.bf16"], "y", to=TensorProto.FLOAT)
    model = builder.model({"x": x.shape, "mask": mask.shape}, {"y": x.shape})
    (result,) = run(model, {"x": x, "mask": mask})
    weights = np.frombuffer(builder.initializers[0].raw_data, np.float32).reshape(256, 256, 3, 3)
    dense = run_node("Conv", [images(x.transpose(0, 3, 1, 2), "NCHW").copy(), weights], (1,), domain="", pads=[1] * 4)
    expected = masked(np.maximum(dense, 0), mask).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(result, expected, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(name):
    """A layer on tensors of 8 bits, between casts."""
    _, of_onnx = _facts.FLOAT_TYPES[name]
    tensors = {"a": 10 * draw(1, 4, 5, 6), "b": 10 * draw(1, 4, 5, 6, seed=1)}
    mask = draw_mask(1, 5, 6)
    builder = Builder()
    for tensor in tensors:
        builder.add("Cast", [tensor], f"{tensor}.narrow", to=getattr(TensorProto, of_onnx))
    builder.add("MaskedAdd", ["a.narrow", "b.narrow", "mask"], "y.narrow", domain="distile")
    builder.add("Cast", ["y.narrow"], "y", to=TensorProto.FLOAT)
    shape = tensors["a"].shape
    model = builder.model({"a": shape, "b": shape, "mask": mask.shape}, {"y": shape}, opset=19)
    (result,) = run(model, {**tensors, "mask": mask})
    narrow = getattr(ml_dtypes, name)
    a, b = (values.astype(narrow).astype(np.float32) for values in tensors.values())
    np.testing.assert_array_equal(result, masked((a + b).astype(narrow).astype(np.float32), mask))


@pytest.mark.parametrize(
    "inputs, constants, attributes, message",
    [
        ([draw(1, 3, 5, 5), draw(4, 3, 3, 3), draw_mask(1, 4, 3)], (1,), {}, "mask"),
        ([draw(1, 3, 5, 5), draw(4, 3, 3, 3), draw_mask(1, 3, 3)], (), {}, "not an initializer"),
        ([draw(1, 3, 5, 5), draw(4, 3, 3, 3), draw_mask(1, 3, 3)], (1,), {"activation": "swish"}, "no activation"),
        ([draw(1, 3, 5, 5), draw(4, 3, 3, 3), draw_mask(1, 3, 3)], (1,), {"layout": "NWHC"}, "layout"),
        ([draw(1, 3, 5, 5), draw(4, 3, 3, 3), draw_mask(1, 3, 3)], (1,), {"pads": [1, 1]}, "2 numbers instead of 4"),
        ([draw(1, 3, 2, 5), draw(4, 3, 3, 3), draw_mask(1, 3, 3)], (1,), {}, "smaller than the operator's window"),
    ],
)
def test_errors(inputs, constants, attributes, message):
    with pytest.raises(Exception, match=message):
        run_node("MaskedConv", inputs, constants, **attributes)


def test_attention_needs_a_polykernel():
    tokens = draw(1, 4, 16)
    with pytest.raises(Exception, match="no PolyKernel computes attention of 2 heads of 8 channels"):
        run_node("MaskedAttention", [tokens, tokens, tokens, draw_mask(1, 4)], num_heads=2, head_dim=8)


def test_types_without_dense_operators():
    """ONNX Runtime has no Conv in float16 for CPUs."""
    inputs = [draw(1, 3, 4, 4).astype(np.float16), draw(5, 3, 3, 3).astype(np.float16), draw_mask(1, 2, 2)]
    with pytest.raises(Exception, match="node 'node', and ONNX Runtime has no dense Conv of its type: compile its"):
        run_node("MaskedConv", inputs, (1,), types=(TensorProto.FLOAT16,))


def test_stand_in():
    """The stand-in for ONNX Runtime, with which GPUs are tested, gives what ONNX Runtime gives."""
    x, filter, mask, bias = draw(2, 5, 4, 128), draw(128, 128, 3, 3, seed=1), draw_mask(2, 5, 4), draw(128, seed=2)
    case = "MaskedConv", [x, filter, mask, bias], (1, 3)
    attributes = dict(layout="NHWC", pads=[1] * 4, activation="relu")
    np.testing.assert_array_equal(stand_in.run_node(*case, **attributes)[0], run_node(*case, **attributes))
    mean, variance = stand_in.run_node("MaskedGroupStatistics", [x, None], num_groups=4, layout="NHWC")
    assert mean.shape == variance.shape == (2, 4) and abs(mean.mean() - x.mean()) < 1e-5
    with pytest.raises(RuntimeError, match="is 'NWHC', but there are only NCHW and NHWC"):
        stand_in.run_node(*case, layout="NWHC")


def test_threads():
    mask = helper.make_tensor_value_info("mask", TensorProto.BOOL, [1, 4, 4])
    builder = Builder()
    builder.conv("conv", "x", 4, 3)
    builder.nodes[0].op_type, builder.nodes[0].domain = "MaskedConv", "distile"
    builder.nodes[0].input.insert(2, mask.name)
    model = builder.model({"x": [1, 3, 4, 4], "mask": [1, 4, 4]}, {"conv.out": [1, 4, 4, 4]})
    feeds = {"x": draw(1, 3, 4, 4), "mask": draw_mask(1, 4, 4)}
    np.testing.assert_array_equal(run(model, feeds)[0], run(model, feeds, threads=1)[0])
    with pytest.raises(Exception, match="distile.threads is '0'"):
        run(model, feeds, threads=0)


IMAGE, MASK33 = draw(1, 4, 5, 5), draw_mask(1, 3, 3)


@pytest.mark.parametrize(
    "op, inputs, constants, attributes, message",
    [
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"auto_pad": "SAME_UPPER"}, "the attribute auto_pad"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"kernel_shape": [2, 2]}, "not that of its weights, 3"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"group": 0}, "is 0, but must divide its 4 output"),
        ("MaskedConv", [IMAGE, draw(4, 2, 3, 3), MASK33], (1,), {"group": 3}, "is 3, but must divide its 4 output"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"group": 1.0}, "group of node .* is not an integer"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"strides": 2}, "is not a list of integers"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"strides": [1.5, 1.5]}, "is not a list of integers"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"activation": 1}, "is not a string"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"output_padding": [1, 1]}, "attribute output_padding"),
        ("MaskedConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"weight_bits": 4}, "the attribute weight_bits"),
        ("MaskedUpsampleConv", [IMAGE, draw(4, 4, 3, 3), MASK33], (1,), {"strides": [1, 1]}, "the attribute strides"),
        ("MaskedMaxPool", [IMAGE, MASK33], (), {}, "has no attribute kernel_shape"),
        ("MaskedMaxPool", [IMAGE, MASK33], (), {"kernel_shape": [3, 3], "ceil_mode": 1}, "the attribute ceil_mode"),
        ("MaskedMaxPool", [IMAGE, MASK33], (), {"kernel_shape": [3, 3], "count_include_pad": 1}, "count_include_pad"),
        ("MaskedActivation", [IMAGE, draw_mask(1, 5, 5)], (), {"other_activation": "relu"}, "other_activation"),
        ("MaskedLinear", [draw(1, 4, 5), draw(5, 3), draw_mask(1, 4)], (1,), {"alpha": 2.0}, "the attribute alpha"),
        ("MaskedLayerNorm", [draw(1, 4, 5), draw_mask(1, 4)], (), {"axis": 1}, "the attribute axis"),
        ("MaskedLayerNorm", [draw(1, 4, 5), draw_mask(1, 4)], (), {"epsilon": 1}, "epsilon of node .* is not a float"),
    ],
)
def test_attributes_that_do_not_fit(op, inputs, constants, attributes, message):
    with pytest.raises(Exception, match=message):
        run_node(op, inputs, constants, **attributes)
