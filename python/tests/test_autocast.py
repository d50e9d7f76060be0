"""torch.autocast: masked layers give what PyTorch's give in it, and then the mask."""

import pytest
import torch
from torch import nn

from distile import dense, layers
from distile.nn import (
    MaskedAdd,
    MaskedAttention,
    MaskedConv2d,
    MaskedConvTranspose2d,
    MaskedLayerNorm,
    MaskedLinear,
    MaskedMultiply,
    MaskedUpsampleConv2d,
)

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def dtype(request):
    return request.param


@pytest.fixture
def autocast(device, dtype):
    return lambda: torch.autocast(device, dtype)


BOUNDS = {torch.bfloat16: 0.03, torch.float16: 0.004}


def close(actual, expected, dtype):
    bound = BOUNDS[dtype] * max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=bound)


LAYERS = [
    (lambda: MaskedConv2d(8, 12, 3, stride=2, padding=1, activation="silu"), (2, 8, 9, 11), (2, 5, 6)),
    (lambda: MaskedConv2d(8, 8, 3, padding=1, groups=8), (2, 8, 9, 11), (2, 9, 11)),
    (lambda: MaskedConv2d(8, 12, 3, padding=1, groups=2, activation="gelu"), (1, 8, 6, 5), (1, 6, 5)),
    (lambda: MaskedConvTranspose2d(8, 12, 4, stride=2, padding=1), (2, 8, 5, 6), (2, 10, 12)),
    (lambda: MaskedUpsampleConv2d(8, 12, 3, padding=1), (2, 8, 5, 6), (2, 10, 12)),
    (lambda: MaskedLinear(24, 7, activation="gelu"), (2, 9, 24), (2, 9)),
    (lambda: MaskedAttention(24, 3, qkv_bias=True), (2, 9, 24), (2, 9)),
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("make, shape, where", LAYERS)
def test_layers(make, shape, where, gradients, autocast, dtype):
    """The type of the base class's result, its values at the active pixels, and gradients in the parameters' types."""
    torch.manual_seed(0)
    layer, x, mask = make(), torch.randn(shape), torch.rand(where) < 0.5
    full = torch.ones_like(mask)
    spread = mask[:, None] if len(where) == 3 else mask[..., None]
    with torch.set_grad_enabled(gradients), autocast():
        whole = layer(x, full)  # Active everywhere: the dense layer.
        if not isinstance(layer, MaskedAttention):
            close(whole, layer(x), dtype)
            masked = layer(x, mask)
            close(masked, torch.where(spread, whole, 0), dtype)
            assert masked.dtype == layer(x).dtype
        assert whole.dtype == dtype
    close(whole, layer(x, full), dtype)
    if not gradients:
        return
    parameters = list(layer.parameters())
    seed = torch.randn_like(whole)
    found = torch.autograd.grad(whole, parameters, seed)
    for got, wanted in zip(found, torch.autograd.grad(layer(x, full), parameters, seed.float())):
        assert got.dtype == torch.float32
        close(got, wanted, dtype)


@pytest.mark.parametrize("make, shape, where", LAYERS)
def test_backward_inside(make, shape, where, autocast, dtype):
    """PyTorch advises against it, but it works."""
    torch.manual_seed(0)
    layer, x, mask = make(), torch.randn(shape, requires_grad=True), torch.rand(where) < 0.5
    inputs = [x, *layer.parameters()]
    with autocast():
        found = torch.autograd.grad(layer(x, mask).float().sum(), inputs)
    for got, wanted in zip(found, torch.autograd.grad(layer(x, mask).sum(), inputs)):
        assert got.dtype == torch.float32
        close(got, wanted, dtype)


@torch.no_grad()
def test_attention(autocast, dtype):
    torch.manual_seed(0)
    heads, mask = torch.randn(3, 2, 3, 9, 64).unbind(0), torch.rand(2, 9) < 0.5
    with autocast():
        result = ops.attention(*heads, mask, mask)
    assert result.dtype == dtype
    close(result, dense.attention(*heads, mask, mask, 0, False), dtype)


@torch.no_grad()
def test_sums_take_the_wider_type(autocast, dtype):
    x, y, mask = torch.randn(2, 8, 6, 7), torch.randn(2, 8, 6, 7).to(dtype), torch.rand(2, 6, 7) < 0.5
    with autocast():
        for first, second in ((x, y), (y, x)):
            for module, plain in ((MaskedAdd(), layers.add), (MaskedMultiply(), layers.multiply)):
                result = module(first, second, mask)
                assert result.dtype == torch.float32
                torch.testing.assert_close(result, plain(x, y.float(), mask))
        assert MaskedAdd()(y, y, mask).dtype == dtype


@torch.no_grad()
def test_others_keep_their_type(autocast):
    x, mask = torch.randn(2, 9, 24), torch.rand(2, 9) < 0.5
    norm, wide = MaskedLayerNorm(24), torch.randn(2, 9, 5, dtype=torch.float64)
    expected = norm(x, mask)
    with autocast():
        torch.testing.assert_close(norm(x, mask), expected, rtol=0, atol=0)
        assert ops.linear(wide, torch.randn(3, 5).double(), None, mask).dtype == torch.float64


@torch.no_grad()
def test_weights_stay_packed(autocast):
    """A weight in float32 is not converted at each call."""
    layer, x, mask = MaskedLinear(384, 1152), torch.randn(1, 9, 384), torch.rand(1, 9) < 0.5
    with autocast():
        layer(x, mask)
        before = ops._times_packed()
        layer(x, mask)
        assert ops._times_packed() == before


@pytest.mark.parametrize("inside", [False, True])
def test_compile(inside, device, dtype):
    torch.manual_seed(0)
    net = nn.ModuleList([MaskedConv2d(8, 12, 3, padding=1, activation="relu"), MaskedLinear(12, 6), MaskedAdd()])

    def run(x, mask):
        tokens = net[0](x, mask).flatten(2).transpose(1, 2).contiguous()
        return net[1](net[2](tokens, tokens.float() + 1, mask.flatten(1)), mask.flatten(1))

    def within(x, mask):
        with torch.autocast(device, dtype):
            return run(x, mask)

    compiled = torch.compile(within if inside else run, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x, mask = torch.randn(2, 8, 6, 5), torch.rand(2, 6, 5) < 0.5
        expected = within(x, mask)
        with torch.autocast(device, dtype, enabled=not inside):
            actual = compiled(x, mask)
        assert actual.dtype == expected.dtype == dtype
        close(actual, expected, dtype)
        for got, wanted in zip(
            torch.autograd.grad(actual.float().sum(), net.parameters()),
            torch.autograd.grad(expected.float().sum(), net.parameters()),
        ):
            assert got.dtype == torch.float32
            close(got, wanted, dtype)


def test_residuals_of_another_type(autocast):
    x, weight, mask = torch.randn(2, 9, 24), torch.randn(7, 24), torch.rand(2, 9) < 0.5
    residual = torch.randn(2, 9, 7).bfloat16()
    with pytest.raises((RuntimeError, ValueError), match="residual"):
        ops.linear(x, weight, None, mask, residual)
    with autocast():
        assert ops.linear(x, weight, None, mask, residual).isfinite().all()
