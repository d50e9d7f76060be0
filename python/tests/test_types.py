"""Float8: what layers and operators store is what PyTorch and, where it does that too, ONNX make of float32."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import distile
from distile import polykernels, toolchain

ops = torch.ops.distile
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def every_element(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def same(found, expected):
    """Whether two tensors hold the same numbers, zeros of the same sign, and NaN at the same places."""
    nan = expected.float().isnan()
    bits = found.view(torch.uint8) == expected.view(torch.uint8)
    return found.dtype == expected.dtype and bool(torch.where(nan, found.float().isnan(), bits).all())


def all_sums(dtype):
    """The sums of every two elements as our layer stores them, and in float32: ties, overflows and infinities too."""
    a = every_element(dtype).view(1, 256, 1).expand(1, 256, 256).contiguous()
    b = every_element(dtype).view(1, 1, 256).expand(1, 256, 256).contiguous()
    found = ops.add(a, b, torch.ones(1, 256, dtype=torch.bool))
    return found, a.float() + b.float()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_layers_round_as_pytorch(dtype):
    found, sums = all_sums(dtype)
    assert same(found, sums.to(dtype))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_layers_round_as_onnx(dtype):
    """ONNX's Cast saturates; that of PyTorch, which we follow, leaves infinities to the type that has them."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    kind = getattr(onnx.TensorProto, "FLOAT8E4M3FN" if dtype == torch.float8_e4m3fn else "FLOAT8E5M2")
    nodes = [onnx.helper.make_node("Cast", ["x"], ["narrow"], to=kind)]
    nodes.append(onnx.helper.make_node("Cast", ["narrow"], ["y"], to=onnx.TensorProto.FLOAT))
    infos = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None])] for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", *infos))
    found, sums = all_sums(dtype)
    cast = torch.from_numpy(ReferenceEvaluator(model).run(None, {"x": sums.numpy().ravel()})[0]).view_as(sums)
    saturated = found.float()
    if dtype == torch.float8_e5m2:
        largest = torch.finfo(dtype).max
        saturated = torch.where(saturated.isnan(), saturated, saturated.clamp(-largest, largest))
    assert np.array_equal(saturated.numpy(), cast.numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_copies_keep_every_element(dtype):
    x = every_element(dtype).view(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    mask = torch.ones(1, 8, 8, dtype=torch.bool)
    assert same(ops.max_pool2d(x, mask, kernel=(1, 1)), x)
    assert same(ops.activate(x, mask, activation="none"), x)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_operators_have_twins(dtype):
    x, weight = torch.randn(2, 6, 7, 9).to(dtype), torch.randn(4, 6, 3, 3)
    residual, mask = torch.randn(2, 4, 7, 9).to(dtype), torch.rand(2, 7, 9) < 0.5
    found = ops.conv2d(x, weight, None, mask, residual, padding=[1] * 4, activation="relu")
    wide = F.relu(F.conv2d(x.float(), weight, padding=1) + residual.float())
    assert same(found, torch.where(mask[:, None], wide, 0).to(dtype))


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore:distile")
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.parametrize("dtype", FLOAT8)
def test_polykernels(dtype):
    """Every sum of two elements is stored to the bit. Longer sums are in another order than the twins', so that one next to
    a tie may become the next element."""
    ones, whole = torch.ones(16, 1, 1, 1), torch.ones(1, 64, 64, dtype=torch.bool)
    x, y = (every_element(dtype).view(shape).expand(256, 256) for shape in ((256, 1), (1, 256)))
    x, y = (each.reshape(1, 64, 64, 16).permute(0, 3, 1, 2) for each in (x, y))
    image, filter, mask = torch.randn(2, 16, 9, 7).to(dtype), torch.randn(24, 16, 3, 3), torch.rand(2, 9, 7) < 0.5
    heads, tokens = torch.randn(2, 9, 2, 8).to(dtype).transpose(1, 2), torch.rand(2, 9) < 0.5

    def results():
        yield ops.conv2d(x, ones, None, whole, y, groups=16)
        yield ops.conv2d(image, filter, None, mask, padding=[1] * 4, activation="silu")
        yield ops.attention(heads, heads, heads, tokens)

    with polykernels.recording() as missing:
        twins = list(results())
    assert len(missing) == len(distile.build(*missing)) == len(twins)
    with polykernels.recording() as missing:
        found = list(results())
    assert not missing
    assert same(found[0], (x.float() + y.float() + 0.0).to(dtype))  # Without a bias, the sum of a pixel begins with 0.
    for result, twin in zip(found[1:], twins[1:]):
        assert result.dtype == dtype
        torch.testing.assert_close(result.float(), twin.float(), rtol=4 * torch.finfo(dtype).eps, atol=2**-9)
        assert (result.float() == twin.float()).float().mean() > 0.99
