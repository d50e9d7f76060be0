"""Types of 8 bits: layers store what PyTorch and, where it does the same, ONNX make of float32; operators have twins."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import distile  # noqa: F401: defines the operators

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
