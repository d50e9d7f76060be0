"""Gradients against those of the dense operator and then the mask, and against differences, in float64."""

import pytest
import torch

from distile import dense

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


def tensors(*shapes):
    torch.manual_seed(5)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def same_gradients(masked, reference, inputs):
    actual, expected = masked(), reference()
    torch.testing.assert_close(actual, expected)
    seed = torch.randn_like(actual)
    for got, wanted in zip(torch.autograd.grad(actual, inputs, seed), torch.autograd.grad(expected, inputs, seed)):
        torch.testing.assert_close(got, wanted)


CONV = [
    # in, out, kernel, stride, padding, dilation, groups
    (4, 6, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (4, 6, (3, 2), (2, 1), (0, 2, 1, 0), (1, 2), 2),
    (4, 4, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 4),
    (4, 8, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("activation", ["none", "relu", "relu6", "silu", "gelu", "sigmoid", "hardsigmoid", "hardswish"])
@pytest.mark.parametrize("ins, outs, kernel, stride, padding, dilation, groups", CONV)
def test_conv2d(ins, outs, kernel, stride, padding, dilation, groups, activation):
    args = (stride, padding, dilation, groups, activation)
    x, weight, bias = tensors((2, ins, 7, 6), (outs, ins // groups, *kernel), (outs,))
    shape = dense.conv2d(x, weight, bias, torch.ones(1, 1, 1), None, *args).shape
    residual = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    keywords = dict(zip(("stride", "padding", "dilation", "groups", "activation"), args))
    same_gradients(
        lambda: ops.conv2d(x, weight, bias, mask, residual, **keywords),
        lambda: dense.conv2d(x, weight, bias, mask, residual, *args),
        (x, weight, bias, residual),
    )


@pytest.mark.parametrize(
    "kernel, stride, output_padding, padding, dilation, groups",
    [((4, 4), (2, 2), (0, 0), (1, 1, 1, 1), (1, 1), 1), ((3, 2), (2, 3), (1, 2), (1, 0, 0, 1), (1, 2), 2)],
)
def test_conv_transpose2d(kernel, stride, output_padding, padding, dilation, groups):
    args = (stride, output_padding, padding, dilation, groups, "silu")
    x, weight, bias = tensors((2, 4, 5, 4), (4, 6 // groups, *kernel), (6,))
    shape = dense.conv_transpose2d(x, weight, bias, torch.ones(1, 1, 1), None, *args).shape
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    keywords = dict(zip(("stride", "output_padding", "padding", "dilation", "groups", "activation"), args))
    same_gradients(
        lambda: ops.conv_transpose2d(x, weight, bias, mask, None, **keywords),
        lambda: dense.conv_transpose2d(x, weight, bias, mask, None, *args),
        (x, weight, bias),
    )


def test_upsample_conv2d():
    args = ((2, 3), (1, 1, 1, 0), (1, 2), 1, "relu")
    x, weight, bias = tensors((1, 3, 4, 5), (5, 3, 3, 3), (5,))
    shape = dense.upsample_conv2d(x, weight, bias, torch.ones(1, 1, 1), None, *args).shape
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    keywords = dict(zip(("scale", "padding", "dilation", "groups", "activation"), args))
    same_gradients(
        lambda: ops.upsample_conv2d(x, weight, bias, mask, None, **keywords),
        lambda: dense.upsample_conv2d(x, weight, bias, mask, None, *args),
        (x, weight, bias),
    )


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_linear(activation):
    x, weight, bias, residual = tensors((2, 9, 5), (7, 5), (7,), (2, 9, 7))
    mask = torch.rand(2, 9) < 0.5
    same_gradients(
        lambda: ops.linear(x, weight, bias, mask, residual, activation=activation),
        lambda: dense.linear(x, weight, bias, mask, residual, activation),
        (x, weight, bias, residual),
    )


def test_gradcheck():
    x, weight, bias = tensors((1, 2, 5, 4), (3, 2, 3, 3), (3,))
    mask = torch.rand(1, 5, 4) < 0.5
    assert torch.autograd.gradcheck(
        lambda *t: ops.conv2d(*t, mask, None, padding=[1] * 4, activation="silu"), (x, weight, bias)
    )
    x, weight = tensors((2, 4, 3), (5, 3))
    mask = torch.rand(2, 4) < 0.5
    assert torch.autograd.gradcheck(lambda *t: ops.linear(*t, None, mask, None, activation="gelu"), (x, weight))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    query, key, value = tensors((2, 3, 6, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    mask, key_mask = torch.rand(2, 6) < 0.6, torch.rand(2, 9) < 0.6
    key_mask[:, 0] = True
    same_gradients(
        lambda: ops.attention(query, key, value, mask, key_mask, causal=causal),
        lambda: dense.attention(query, key, value, mask, key_mask, 0, causal),
        (query, key, value),
    )


@pytest.mark.parametrize("shape", [(2, 7, 12), (2, 12, 3, 4)])
def test_norms(shape):
    torch.manual_seed(6)
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in (shape, (12,), (12,)))
    mask = torch.rand(shape[:2] if len(shape) == 3 else (2, 3, 4)) < 0.5
    for masked, reference, inputs in [
        (
            lambda: ops.layer_norm(x, mask, weight, bias),
            lambda: dense.layer_norm(x, mask, weight, bias, 1e-5),
            (x, weight, bias),
        ),
        (lambda: ops.rms_norm(x, mask, weight), lambda: dense.rms_norm(x, mask, weight, 1e-6), (x, weight)),
    ]:
        actual, expected = masked(), reference()
        seed = torch.randn_like(actual)
        for got, wanted in zip(torch.autograd.grad(actual, inputs, seed), torch.autograd.grad(expected, inputs, seed)):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
