"""Pooling, sums, products, group norm and mask units against plain PyTorch, and their modules."""

import copy
import itertools

import pytest
import torch
from torch import nn

import distile
from distile import layers
from distile import nn as masked

ops = torch.ops.distile
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def close(actual, expected, bound=1e-5):
    torch.testing.assert_close(actual.float(), expected.float(), rtol=bound, atol=bound)


def image(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last)


def both_forms(name, plain, tensors, mask, bound, **keywords):
    """The functional form, and `out` with both treatments of inactive pixels."""
    expected = plain(*tensors, **keywords)
    actual = getattr(ops, name)(*tensors, **keywords)
    close(actual, expected, bound)
    for zero in (False, True):
        out = torch.full_like(actual, 7)
        assert getattr(ops, name).out(*tensors, **keywords, zero=zero, out=out) is out
        seen = mask[:, None].expand_as(out) if out.dim() == 4 else mask[..., None].expand_as(out)
        assert torch.equal(out[seen], actual[seen]) and (out[~seen] == (0 if zero else 7)).all()


@torch.no_grad()
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("density", [0, 0.3, 1])
@pytest.mark.parametrize(
    "kernel, stride, padding, dilation", [(3, 2, 1, 1), (2, 2, 0, 1), ((2, 5), (1, 3), (0, 2), 1), (3, 1, 1, 2)]
)
def test_pooling(kernel, stride, padding, dilation, density, dtype):
    torch.manual_seed(0)
    x = image(2, 17, 12, 11, dtype=dtype)
    pairs = [[value, value] if isinstance(value, int) else list(value) for value in (kernel, stride, padding, dilation)]
    window = dict(zip(("kernel", "stride", "padding", "dilation"), pairs))
    size = nn.functional.max_pool2d(x.float(), kernel, stride, padding, dilation).shape[2:]
    mask = torch.rand(2, *size) < density
    both_forms("max_pool2d", layers.max_pool2d, (x, mask), mask, 0, **window)
    close(masked.MaskedMaxPool2d(kernel, stride, padding, dilation)(x, mask), layers.max_pool2d(x, mask, **window), 0)
    if dilation == 1:
        del window["dilation"]
        for count_padding in (False, True):
            keywords = dict(window, count_padding=count_padding)
            both_forms("avg_pool2d", layers.avg_pool2d, (x, mask), mask, BOUNDS[dtype], **keywords)
            module = masked.MaskedAvgPool2d(kernel, stride, padding, count_include_pad=count_padding)
            close(module(x, mask), layers.avg_pool2d(x, mask, **keywords), BOUNDS[dtype])
            close(module(x), nn.AvgPool2d.forward(module, x))


@torch.no_grad()
@pytest.mark.parametrize("dtype", BOUNDS)
def test_upsampling(dtype):
    torch.manual_seed(0)
    x, mask = image(2, 17, 5, 6, dtype=dtype), torch.rand(2, 10, 18) < 0.4
    both_forms("upsample_nearest", layers.upsample_nearest, (x, mask), mask, 0, scale=(2, 3))
    module = masked.MaskedUpsample((2, 3))
    close(module(x, mask), torch.where(mask[:, None], module(x), 0), 0)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BOUNDS)
def test_global_pooling(dtype):
    torch.manual_seed(0)
    x, mask = image(3, 33, 9, 7, dtype=dtype), torch.rand(3, 9, 7) < 0.4
    mask[1] = False
    for maximum, chosen in itertools.product((False, True), (mask, None)):
        expected = layers.global_pool(x.float(), chosen, maximum=maximum)
        close(ops.global_pool(x, chosen, maximum=maximum), expected, BOUNDS[dtype])
    with distile.mask(mask):
        close(masked.MaskedGlobalPool()(x), layers.global_pool(x.float(), mask), BOUNDS[dtype])


@torch.no_grad()
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("activation", ["none", "relu", "silu", "mish"])
def test_sums_and_products(activation, dtype):
    torch.manual_seed(0)
    mask = torch.rand(2, 6, 9) < 0.5
    bound = BOUNDS[dtype]
    x, pixel = image(2, 24, 6, 9, dtype=dtype), image(2, 24, 1, 1, dtype=dtype)
    for other in (image(2, 24, 6, 9, dtype=dtype), pixel):
        both_forms("add", layers.add, (x, other, mask), mask, bound, activation=activation)
        keywords = dict(other_activation="sigmoid", activation=activation)
        both_forms("multiply", layers.multiply, (x, other, mask), mask, bound, **keywords)
    both_forms("activate", layers.activate, (x, mask), mask, bound, activation=activation)
    tokens, kept = torch.randn(2, 11, 24).to(dtype), torch.rand(2, 11) < 0.5
    both_forms("add", layers.add, (tokens, tokens * 2, kept), kept, bound, activation=activation)
    # In place.
    expected = torch.where(mask[:, None], layers.add(x, pixel, mask, activation=activation), x)
    close(ops.add.out(x, pixel, mask, activation=activation, out=x), expected, bound)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("groups, channels", [(4, 24), (24, 24), (1, 17)])
def test_group_norm(groups, channels, dtype):
    torch.manual_seed(0)
    x = (image(2, channels, 7, 10) * 2 + 1).to(dtype)
    mask, weight, bias = torch.rand(2, 7, 10) < 0.4, torch.randn(channels), torch.randn(channels)
    keywords = dict(groups=groups, activation="silu")
    both_forms("group_norm", layers.group_norm, (x, mask, weight, bias), mask, BOUNDS[dtype], **keywords)
    for chosen in (mask, None):
        for actual, expected in zip(
            ops.group_statistics(x, chosen, groups=groups), layers.group_statistics(x, chosen, groups=groups)
        ):
            close(actual, expected)
    for given in (layers.group_statistics(x, groups=groups), (torch.randn(groups), torch.rand(groups))):
        both_forms("group_norm", layers.group_norm, (x, mask, weight, bias, *given), mask, BOUNDS[dtype], **keywords)
    assert not ops.group_norm(x, torch.zeros_like(mask), None, None, **keywords).any()


@torch.no_grad()
def test_norm_modules():
    torch.manual_seed(0)
    x, mask = image(2, 24, 7, 10) * 3 + 1, torch.rand(2, 7, 10) < 0.4
    norm = masked.MaskedGroupNorm(6, 24, activation="relu")
    whole = norm(x)
    close(whole, nn.functional.relu(nn.GroupNorm(6, 24)(x)))
    close(norm(x, torch.ones_like(mask)), whole)
    norm.keep_statistics(x)
    close(norm(x, mask), torch.where(mask[:, None], whole, 0))
    close(norm(x), whole)
    norm.forget_statistics()
    assert (norm(x, mask) - torch.where(mask[:, None], whole, 0)).abs().max() > 0.01
    batch_norm = masked.MaskedBatchNorm2d(24).eval()
    batch_norm.running_mean.normal_()
    batch_norm.running_var.uniform_(0.5, 2)
    close(batch_norm(x, mask), torch.where(mask[:, None], nn.BatchNorm2d.forward(batch_norm, x), 0))
    with pytest.raises(RuntimeError, match="eval"):
        batch_norm.train()(x, mask)


@torch.no_grad()
def test_parameters_that_change():
    """Norms convert parameters of 16 bits once, and again when they change."""
    torch.manual_seed(0)
    norm, mask = masked.MaskedGroupNorm(4, 24).half(), torch.rand(2, 9, 7) < 0.4
    x = torch.randn(2, 24, 9, 7).half().to(memory_format=torch.channels_last)

    def check(layer):
        expected = layers.group_norm(x, mask, layer.weight, layer.bias, groups=4)
        assert (layer(x, mask) - expected).abs().max() < 1e-2

    for factor in (1, -3):
        norm.weight.mul_(factor)
        norm.bias.add_(factor)
        check(norm)
    twin = copy.deepcopy(norm)
    norm.weight.data = torch.randn(24).half()
    check(norm)
    check(twin)
    norm.float()
    x = x.float()
    check(norm)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BOUNDS)
def test_mask_units(dtype):
    torch.manual_seed(0)
    x = image(2, 40, 12, 14, dtype=dtype)
    conv = nn.Conv2d(40, 1, 1, stride=2)
    unit = masked.MaskUnit.from_conv(conv, threshold=0.1)
    scores = unit.scores(x.float())
    close(scores, conv(x.float())[:, 0])
    mask = unit(x)
    sure = (scores - 0.1).abs() > 1e-4
    assert sure.float().mean() > 0.9 and mask.dtype == torch.bool
    assert torch.equal(mask[sure], (scores > 0.1)[sure])
    assert torch.equal(ops.mask_scores(x), layers.mask_scores(x)) or dtype != torch.float32


@torch.no_grad()
def test_squeeze_excite_and_concatenation():
    torch.manual_seed(0)
    x, y, mask = image(2, 24, 7, 10), image(2, 10, 7, 10), torch.rand(2, 7, 10) < 0.4
    module = masked.MaskedSqueezeExcite(24, 6, gate="hardsigmoid")
    squeezed = torch.relu(module.reduce(layers.global_pool(x, mask)))
    gate = nn.functional.hardsigmoid(module.expand(squeezed))
    close(module(x, mask), torch.where(mask[:, None], x * gate, 0))
    joined = masked.MaskedConcat()([x, y], mask)
    assert torch.equal(joined, torch.where(mask[:, None], torch.cat([x, y], 1), 0))
    out = torch.full_like(joined, 7)
    assert torch.equal(
        masked.MaskedConcat()([x, y], mask, out=out), torch.where(mask[:, None], torch.cat([x, y], 1), 7)
    )


CALLS = {
    "max_pool2d": (lambda x, y, v: (x, torch.rand(2, 5, 6) < 0.5), dict(kernel=(2, 2))),
    "avg_pool2d": (lambda x, y, v: (x, torch.rand(2, 6, 7) < 0.5), dict(kernel=(3, 3), padding=(1, 1))),
    "global_pool": (lambda x, y, v: (x, torch.rand(2, 6, 7) < 0.5), dict()),
    "global_pool max": (lambda x, y, v: (x, torch.rand(2, 6, 7) < 0.5), dict(maximum=True)),
    "add": (lambda x, y, v: (x, y, torch.rand(2, 6, 7) < 0.5), dict(activation="silu")),
    "multiply": (
        lambda x, y, v: (x, y[:, :, :1, :1].detach().requires_grad_(), torch.rand(2, 6, 7) < 0.5),
        dict(other_activation="sigmoid"),
    ),
    "multiply tokens": (
        lambda x, y, v: (
            x.detach()[0].flatten(1).T[None].contiguous().requires_grad_(),
            v.detach()[None, None].requires_grad_(),
            torch.rand(1, 42) < 0.5,
        ),
        dict(),
    ),
    "upsample_nearest": (lambda x, y, v: (x, torch.rand(2, 12, 21) < 0.5), dict(scale=(2, 3))),
    "activate": (lambda x, y, v: (x, torch.rand(2, 6, 7) < 0.5), dict(activation="gelu")),
    "group_norm": (
        lambda x, y, v: (x, torch.rand(2, 6, 7) < 0.5, v, v.detach().flip(0).requires_grad_()),
        dict(groups=4, activation="silu"),
    ),
    "group_norm given": (
        lambda x, y, v: (x, torch.rand(2, 6, 7) < 0.5, v, None, torch.randn(2, 4), torch.rand(2, 4) + 0.5),
        dict(groups=4),
    ),
}


def arguments(name):
    torch.manual_seed(0)
    x, y = (image(2, 8, 6, 7).requires_grad_() for _ in range(2))
    make, keywords = CALLS[name]
    return make(x, y, torch.randn(8).requires_grad_()), keywords


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name):
    tensors, keywords = arguments(name)
    operator, plain = getattr(ops, name.split()[0]), getattr(layers, name.split()[0])
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    expected = plain(*tensors, **keywords)
    weights = torch.randn_like(expected)
    found = torch.autograd.grad((operator(*tensors, **keywords) * weights).sum(), wanted)
    for actual, right in zip(found, torch.autograd.grad((expected * weights).sum(), wanted)):
        close(actual, right, 1e-4)


def test_no_gradients_of_statistics():
    x = image(2, 8, 6, 7).requires_grad_()
    with pytest.raises(RuntimeError, match="group_statistics has no gradients"):
        ops.group_statistics(x, groups=4)[0].sum().backward()


def test_errors():
    x, mask = image(2, 8, 6, 7), torch.rand(2, 6, 7) < 0.5
    with pytest.raises(RuntimeError, match="3 groups"):
        ops.group_norm(x, mask, None, None, groups=3)
    with pytest.raises(RuntimeError, match="mean"):
        ops.group_norm(x, mask, None, None, torch.randn(5), torch.rand(5), groups=4)
    with pytest.raises(RuntimeError, match="smaller than the pooled windows"):
        ops.max_pool2d(x, mask, kernel=(9, 9))
    with pytest.raises(RuntimeError, match="float16, bfloat16, float8_e4m3fn and float8_e5m2"):
        ops.add(x.double(), x.double(), mask)
    with pytest.raises(RuntimeError, match="no activation"):
        ops.activate(x, mask, activation="swish")
