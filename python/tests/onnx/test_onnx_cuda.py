"""Every operator, and a converted network, on an NVIDIA GPU against the CPU.

Needs the library with the part for GPUs, which DISTILE_ONNXRUNTIME names, and ONNX Runtime with its CUDA provider
(onnxruntime-gpu) or, to test all but that provider, PyTorch. Skipped without them.
"""

import numpy as np
import onnxruntime
import pytest
import stand_in
from networks import BOOL, FLOAT, Builder, feeds_of, run, run_node
from onnx import TensorProto, helper, numpy_helper

from distile.onnx import Replaced, Rule, convert
from distile.onnx.building import build, missing
from distile.onnx.graph import attributes as attributes_of
from distile.onnx.library import has_cuda
from distile.toolchain import compiler_folder


def has_provider():
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return False
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN of their wheels, where there are any.
    return True


def has_pytorch():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


PROVIDER = has_cuda() and has_provider()
pytestmark = pytest.mark.skipif(
    not PROVIDER and not (has_cuda() and has_pytorch()), reason="no GPU, or nothing that runs on it"
)
random = np.random.default_rng(0)


def draw(*shape):
    return random.standard_normal(shape).astype(np.float32)


def draw_mask(*shape, density=0.3):
    return random.random(shape) < density


def weights(*shape):
    return draw(*shape) / np.float32(np.sqrt(shape[1:] and np.prod(shape[1:])))


IMAGES, MASK, BLOCK = draw(2, 12, 9, 128), draw_mask(2, 12, 9), dict(pads=[1] * 4, layout="NHWC")
TOKENS, ACTIVE = draw(2, 40, 384), draw_mask(2, 40)
LARGE, QUERIES = draw(1, 10, 7, 256), draw(3, 2, 40, 192)
WINDOW = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
UINT8 = TensorProto.UINT8
VECTOR, POSITIVE = draw(128), np.abs(draw(128)) + np.float32(0.5)
INDICES = np.stack([random.choice(108, 20, replace=False) for _ in range(2)]).astype(np.int32)
WORDS = random.integers(0, 2**31, (2, 12, 1)).astype(np.int32)
NHWC = dict(layout="NHWC")
# A quantized convolution: its numbers are those of the input, the weights, the bias and the output.
QUANTIZED = [
    random.integers(0, 256, (1, 10, 7, 256)).astype(np.uint8),
    random.integers(-128, 128, (256, 256, 3, 3)).astype(np.int8),
    draw_mask(1, 10, 7),
    *(None, None, None),
    *(np.float32(0.02), np.uint8(130), np.abs(draw(256)) / 100 + np.float32(1e-4)),
    random.integers(-5000, 5000, 256).astype(np.int32),
    *(np.float32(1.5), np.uint8(100)),
]
QUANTIZED_CONSTANTS = (1, *range(6, 12))

# Operators with their inputs, which of them are initializers, the types of the results, and attributes. Those with
# weights have the shapes whose PolyKernels ship.
EXACT = [
    ("MaskedMaxPool", [IMAGES, draw_mask(2, 6, 5)], (), (FLOAT,), {**WINDOW, **NHWC}),
    ("MaskedMaxPool", [IMAGES, draw_mask(2, 6, 5), draw(2, 6, 5, 128)], (), (FLOAT,), {**WINDOW, **NHWC}),
    ("MaskedGlobalMaxPool", [IMAGES, MASK], (), (FLOAT,), NHWC),
    ("MaskedGlobalMaxPool", [IMAGES], (), (FLOAT,), NHWC),
    ("MaskedUpsample", [IMAGES, draw_mask(2, 24, 27)], (), (FLOAT,), dict(scales=[2, 3], **NHWC)),
    ("MaskedUpsample", [IMAGES, draw_mask(2, 24, 27), draw(2, 24, 27, 128)], (), (FLOAT,), dict(scales=[2, 3], **NHWC)),
    ("MaskedAdd", [IMAGES, draw(2, 12, 9, 128), MASK], (), (FLOAT,), dict(activation="relu", **NHWC)),
    ("MaskedAdd", [TOKENS, draw(2, 40, 384), ACTIVE, draw(2, 40, 384)], (), (FLOAT,), {}),
    ("MaskedActivation", [IMAGES, MASK], (), (FLOAT,), dict(activation="relu6", **NHWC)),
    ("MaskedConcat", [IMAGES, draw(2, 12, 9, 64), MASK], (), (FLOAT,), NHWC),
    ("MaskedConcat", [IMAGES, draw(2, 12, 9, 64), MASK, draw(2, 12, 9, 192)], (), (FLOAT,), NHWC),
    ("MaskedPack", [IMAGES, MASK], (), (FLOAT,), NHWC),
    ("MaskedPack", [TOKENS, ACTIVE], (), (FLOAT,), {}),
    ("MaskedPack", [TOKENS, np.zeros_like(ACTIVE)], (), (FLOAT,), {}),
    ("MaskedUnpack", [draw(MASK.sum(), 128), MASK], (), (FLOAT,), NHWC),
    ("MaskedUnpack", [draw(ACTIVE.sum(), 64), ACTIVE, draw(2, 40, 64)], (), (FLOAT,), {}),
    ("MaskedUnpack", [draw(0, 64), np.zeros_like(ACTIVE)], (), (FLOAT,), {}),
    ("MaskDilate", [MASK], (), (BOOL,), dict(radius=[1, 2])),
    ("MaskPool", [MASK], (), (BOOL,), dict(factor=[2, 2])),
    ("MaskNeededInput", [draw_mask(2, 6, 5)], (), (BOOL,), dict(size=[12, 9], **WINDOW)),
    ("MaskAffectedOutput", [MASK], (), (BOOL,), dict(size=[6, 5], **WINDOW)),
    ("MaskDifference", [IMAGES, IMAGES + draw(2, 12, 9, 128) / 50], (), (BOOL,), dict(threshold=0.05, **NHWC)),
    ("MaskFromIndices", [INDICES], (), (BOOL,), dict(size=[12, 9])),
    ("MaskFromIndices", [INDICES, np.array([20, 3], np.int32)], (), (BOOL,), dict(size=[12, 9])),
    ("MaskFromBits", [WORDS], (), (BOOL,), dict(width=20)),
    ("MaskedQLinearConv", QUANTIZED, QUANTIZED_CONSTANTS, (UINT8,), dict(activation="relu", **BLOCK)),
]
CLOSE = [
    ("MaskedAveragePool", [IMAGES, draw_mask(2, 6, 5)], (), (FLOAT,), {**WINDOW, **NHWC}),
    ("MaskedGlobalAveragePool", [IMAGES, MASK], (), (FLOAT,), NHWC),
    ("MaskedGlobalAveragePool", [IMAGES], (), (FLOAT,), NHWC),
    ("MaskedMul", [IMAGES, draw(2, 1, 1, 128), MASK], (), (FLOAT,), dict(other_activation="sigmoid", **NHWC)),
    ("MaskedActivation", [TOKENS, ACTIVE], (), (FLOAT,), dict(activation="gelu")),
    ("MaskedLayerNorm", [TOKENS, ACTIVE, draw(384), draw(384)], (), (FLOAT,), {}),
    ("MaskedRMSNorm", [TOKENS, ACTIVE, draw(384)], (), (FLOAT,), {}),
    (
        "MaskedBatchNorm",
        [IMAGES, MASK, VECTOR, VECTOR, VECTOR, POSITIVE],
        (),
        (FLOAT,),
        dict(activation="silu", **NHWC),
    ),
    ("MaskedGroupStatistics", [IMAGES, MASK], (), (FLOAT, FLOAT), dict(num_groups=8, **NHWC)),
    ("MaskedGroupStatistics", [IMAGES], (), (FLOAT, FLOAT), dict(num_groups=8, **NHWC)),
    ("MaskedGroupNorm", [IMAGES, MASK, VECTOR, VECTOR], (), (FLOAT,), dict(num_groups=8, **NHWC)),
    (
        "MaskedGroupNorm",
        [IMAGES, MASK, VECTOR, None, draw(2, 8), np.abs(draw(2, 8))],
        (),
        (FLOAT,),
        dict(num_groups=8, **NHWC),
    ),
    ("MaskedAttention", [*QUERIES, ACTIVE], (), (FLOAT,), dict(num_heads=3, head_dim=64)),
    ("MaskedAttention", [*QUERIES, ACTIVE, draw_mask(2, 40)], (), (FLOAT,), dict(num_heads=3, head_dim=64)),
]
# Convolutions multiply in TF32.
TF32 = [
    (
        "MaskedConv",
        [IMAGES, weights(128, 128, 3, 3), MASK, draw(128)],
        (1, 3),
        (FLOAT,),
        dict(activation="relu", **BLOCK),
    ),
    (
        "MaskedConv",
        [IMAGES, weights(128, 128, 3, 3), MASK, draw(128), None, draw(2, 12, 9, 128)],
        (1, 3),
        (FLOAT,),
        dict(activation="relu", **BLOCK),
    ),
    (
        "MaskedConvTranspose",
        [LARGE, weights(256, 128, 4, 4), draw_mask(1, 20, 14), draw(128)],
        (1, 3),
        (FLOAT,),
        dict(strides=[2, 2], activation="relu", **BLOCK),
    ),
    (
        "MaskedUpsampleConv",
        [LARGE, weights(256, 256, 3, 3), draw_mask(1, 20, 14), draw(256)],
        (1, 3),
        (FLOAT,),
        dict(scales=[2, 2], **BLOCK),
    ),
    ("MaskedLinear", [TOKENS, weights(384, 1152), ACTIVE, draw(1152)], (1, 3), (FLOAT,), {}),
]


def on_gpu(op, inputs, constants=(), types=(FLOAT,), **attributes):
    """The results of a node on the GPU."""
    if not PROVIDER:
        return stand_in.run_node(op, inputs, constants, "cuda", **attributes)
    results = run_node(op, inputs, constants, types=types, device="cuda", **attributes)
    return results if len(types) > 1 else [results]


def compare(case, **tolerance):
    op, inputs, constants, types, attributes = case
    expected = run_node(op, inputs, constants, types=types, **attributes)
    expected = expected if len(types) > 1 else [expected]
    for result, other in zip(on_gpu(op, inputs, constants, types, **attributes), expected, strict=True):
        assert result.dtype == other.dtype and result.shape == other.shape
        np.testing.assert_allclose(result, other, **tolerance)


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=[case[0] for case in cases])


@named(EXACT)
def test_exact(case):
    compare(case, rtol=0, atol=0)


@named(CLOSE)
def test_close(case):
    compare(case, rtol=1e-4, atol=1e-4)


@named(TF32)
def test_tf32(case):
    compare(case, rtol=5e-3, atol=2e-2)


@pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("tokens", [3, 40])
def test_pruned(dtype, tokens):
    """Few tokens in 16 bits read a bitmap, beside code for any number of them. Others skip what would be no number."""
    weight = weights(264, 72)
    weight[random.random(weight.shape) < 0.93] = 0
    weight[5] = 0
    b = Builder()
    b.add("MatMul", ["x", b.constant("w", weight.astype(dtype))], "y", "linear")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = b.model({"x": [1, tokens, 264]}, {"y": [1, tokens, 72]})
    model.graph.input[0].type.tensor_type.elem_type = model.graph.output[0].type.tensor_type.elem_type = kind
    _, report = convert(model, [Rule("*", "mask")])
    build(report, device="cuda")
    assert not missing(report, "cuda")
    for count in (tokens, 8, 9):
        x, mask = draw(1, count, 264).astype(dtype), draw_mask(1, count, density=0.6)
        expected = np.where(mask[..., None], x.astype(np.float32) @ weight, 0)
        if dtype == np.float32:
            x[:, :, 5] = np.nan
            expected = np.where(mask[..., None], np.nan_to_num(x) @ weight, 0)
        (found,) = on_gpu("MaskedLinear", [x, weight.astype(dtype), mask], (1,), (kind,))
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-4 if dtype == np.float32 else 2e-2)


@pytest.mark.skipif(compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_two_of_four(kind):
    """Weights of the pattern 2:4 take the PolyKernel for it, and others that for all."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    kept = weights(264, 72)
    kept[np.indices(kept.shape)[0] % 4 // 2 == random.integers(0, 2, kept.shape[1])] = 0
    x, mask = draw(1, 40, 264).astype(dtype), draw_mask(1, 40, density=0.6)
    for weight in (kept, weights(264, 72)):
        b = Builder()
        b.add("MatMul", ["x", b.constant("w", weight.astype(dtype))], "y", "linear")
        model = b.model({"x": [1, 40, 264]}, {"y": [1, 40, 72]})
        model.graph.input[0].type.tensor_type.elem_type = model.graph.output[0].type.tensor_type.elem_type = kind
        _, report = convert(model, [Rule("*", "mask")])
        assert ("weight_pattern" in report[0].typical) == (weight is kept)
        build(report, device="cuda")
        assert not missing(report, "cuda")
        (found,) = on_gpu("MaskedLinear", [x, weight.astype(dtype), mask], (1,), (kind,))
        expected = np.where(mask[..., None], x.astype(np.float32) @ weight.astype(dtype).astype(np.float32), 0)
        np.testing.assert_allclose(found.astype(np.float32), expected, rtol=2e-2, atol=2e-2)


def test_scores():
    """A sum near the threshold may fall on either side."""
    case = "MaskFromScores", [IMAGES, VECTOR], (), (BOOL,)
    (result,) = on_gpu(*case, threshold=2.0, **NHWC)
    expected = run_node(*case[:3], types=case[3], threshold=2.0, **NHWC)
    assert (result != expected).mean() < 0.01 and 0 < expected.mean() < 1


@pytest.mark.skipif(not PROVIDER, reason="ONNX Runtime has no CUDA provider")
def test_on_the_host():
    """Masks as bits and lengths are for the host; their nodes run there, between nodes on the GPU."""
    nodes = [
        helper.make_node("MaskDilate", ["mask"], ["large"], domain="distile"),
        helper.make_node("MaskToBits", ["large"], ["bits"], domain="distile"),
        helper.make_node("MaskCumulativeLengths", ["large"], ["lengths"], domain="distile"),
    ]
    inputs = [helper.make_tensor_value_info("mask", TensorProto.BOOL, MASK.shape)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in ("bits", "lengths")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("distile", 1)]
    graph = helper.make_graph(nodes, "test", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for one, other in zip(run(model, {"mask": MASK}, device="cuda and cpu"), run(model, {"mask": MASK})):
        np.testing.assert_array_equal(one, other)


def test_layout_and_missing_polykernels():
    with pytest.raises(Exception, match="set the attribute layout to NHWC"):
        on_gpu("MaskedGlobalMaxPool", [IMAGES])
    with pytest.raises(Exception, match="no PolyKernel for NVIDIA GPUs computes a convolution of 5 to 7 channels"):
        on_gpu("MaskedConv", [draw(1, 4, 4, 5), draw(7, 5, 3, 3), draw_mask(1, 4, 4)], (1,), **BLOCK)
    with pytest.raises(Exception, match="on GPUs, quantized operators keep no pixels of another tensor"):
        kept = np.zeros_like(QUANTIZED[0])
        inputs = [*QUANTIZED[:5], kept, *QUANTIZED[6:]]
        on_gpu("MaskedQLinearConv", inputs, QUANTIZED_CONSTANTS, (UINT8,), activation="relu", **BLOCK)


def block_network():
    """Convolutions of which PolyKernels ship for GPUs, with group norm, squeeze-excite and upsampling."""
    b = Builder()
    x = b.add("Relu", [b.conv("a/conv1", "x", 128, 128)], "r1")
    skip = b.add("Relu", [b.conv("a/conv2", x, 128, 128)], "r2")
    vectors = [b.weights(f"norm.{name}", 128) for name in ("weight", "bias")]
    x = b.add("GroupNormalization", [b.add("Add", [skip, "x"], "sum"), *vectors], "g", "a/norm", num_groups=8)
    x = b.add("Mul", [x, b.add("Sigmoid", [x], "sigmoid")], "silu")
    pooled = b.add("GlobalAveragePool", [x], "pooled")
    gate = b.add("Sigmoid", [b.conv("gate", pooled, 128, 128, 1)], "gates")
    x = b.add("Relu", [b.conv("a/conv3", b.add("Mul", [x, gate], "excited"), 128, 128)], "r3")
    x = b.add("Concat", [x, skip], "wide", axis=1)
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    x = b.add("Resize", [x, "", scales], "up", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    b.add("Identity", [b.conv("up/conv", x, 256, 256)], "y")
    return b.model({"x": [2, 128, 12, 9]}, {"y": [2, 256, 24, 18]}, opset=21)


def run_model(model, feeds):
    """The result of a model on the GPU; without the provider, standard nodes run on the CPU."""
    if PROVIDER:
        return run(model, feeds, device="cuda")[0]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = {**feeds, **constants, "": None}
    for node in model.graph.node:
        inputs = [values[name] for name in node.input]
        places = [place for place, name in enumerate(node.input) if name in constants]
        if node.domain == "distile":
            results = on_gpu(node.op_type, inputs, places, **attributes_of(node))
        else:
            results = [run_node(node.op_type, inputs, places, domain="", **attributes_of(node))]
        values.update(zip(node.output, results, strict=True))
    return values[model.graph.output[0].name]


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_converted_network(density):
    rules = [Rule("a/*", "mask"), Rule("up/*", "large")]
    converted, report = convert(block_network(), rules)
    assert sum(isinstance(row, Replaced) for row in report) == 5 and not missing(report, "cuda")
    reference, _ = convert(block_network(), rules, reference=True)
    for seed in (1, 2):
        feeds = feeds_of(converted, density, seed)
        result, (expected,) = run_model(converted, feeds), run(reference, feeds)
        np.testing.assert_allclose(result, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())


def test_float16():
    x, mask, filter = draw(1, 12, 9, 256), draw_mask(1, 12, 9), weights(256, 256, 3, 3)
    inputs = [x.astype(np.float16), filter.astype(np.float16), mask]
    (result,) = on_gpu("MaskedConv", inputs, (1,), (TensorProto.FLOAT16,), activation="relu", **BLOCK)
    dense = run_node("Conv", [x.transpose(0, 3, 1, 2).copy(), filter], (1,), domain="", pads=[1] * 4)
    expected = np.maximum(dense, 0) * mask[:, None]
    np.testing.assert_allclose(result.transpose(0, 3, 1, 2), expected, rtol=2e-2, atol=2e-2)
