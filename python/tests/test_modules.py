"""Modules, the shared mask, packed weights, and what PyTorch's compiler and exporter make of all this."""

import copy
import gc

import pytest
import torch
from torch import nn

import distile
from distile import dense
from distile.nn import (
    MaskedAttention,
    MaskedConv2d,
    MaskedConvTranspose2d,
    MaskedLayerNorm,
    MaskedLinear,
    MaskedRMSNorm,
    MaskedUpsampleConv2d,
)

ops = torch.ops.distile
pytestmark = pytest.mark.filterwarnings("ignore:distile")


def close(actual, expected, bound=2e-4):
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


@torch.no_grad()
def test_weights_are_packed_once_per_version():
    torch.manual_seed(0)
    layer = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
    x, mask = image(1, 128, 8, 8), torch.rand(1, 8, 8) < 0.4

    def check(packings):
        before = ops._times_packed()
        close(
            layer(x, mask), dense.conv2d(x, layer.weight, layer.bias, mask, None, (1, 1), (1,) * 4, (1, 1), 1, "relu")
        )
        assert ops._times_packed() - before == packings

    check(1)
    check(0)
    layer.weight.mul_(2)
    check(1)
    layer.bias.add_(1)
    check(1)
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})
    check(1)
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))
    check(1)
    check(0)
    other = copy.deepcopy(layer)
    other(x, mask)
    check(0)
    assert other._place.number != layer._place.number


@torch.no_grad()
def test_weights_are_freed_with_the_module():
    layer = MaskedLinear(384, 1152)
    layer(torch.randn(1, 4, 384), torch.ones(1, 4, dtype=torch.bool))
    weight, number = torch.empty(0), layer._place.number
    layer(torch.randn(1, 4, 384), torch.ones(1, 4, dtype=torch.bool))
    pointer = layer.weight.data_ptr()
    assert pointer
    del layer, weight
    gc.collect()
    before = ops._times_packed()
    again = MaskedLinear(384, 1152)
    again._place.number = number
    again(torch.randn(1, 4, 384), torch.ones(1, 4, dtype=torch.bool))
    assert ops._times_packed() == before + 1


@torch.no_grad()
@pytest.mark.parametrize(
    "layer, size, masked",
    [
        (MaskedConv2d(8, 12, 3, stride=2, padding=1, activation="silu"), (9, 11), (5, 6)),
        (MaskedConv2d(8, 12, 4, padding="same"), (9, 11), (9, 11)),
        (MaskedConvTranspose2d(8, 12, 4, stride=2, padding=1), (5, 6), (10, 12)),
        (MaskedUpsampleConv2d(8, 12, 3, padding=1, scale=(2, 3)), (5, 6), (10, 18)),
    ],
)
def test_convolutions(layer, size, masked):
    torch.manual_seed(0)
    x, mask = torch.randn(2, 8, *size), torch.rand(2, *masked) < 0.5
    whole = layer(x)
    close(layer(x, mask), torch.where(mask[:, None], whole, 0.0))
    close(layer(x, mask[:, None]), torch.where(mask[:, None], whole, 0.0))
    with distile.mask(mask):
        close(layer(x), torch.where(mask[:, None], whole, 0.0))
    out = torch.ones_like(whole, memory_format=torch.channels_last)
    layer(x, mask, out=out)
    close(out, torch.where(mask[:, None], whole, 1.0))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(5, 24), (2, 5, 24), (2, 4, 3, 24)])
@pytest.mark.parametrize("layer", [MaskedLinear(24, 7, activation="gelu"), MaskedLayerNorm(24), MaskedRMSNorm(24)])
def test_token_layers(layer, shape):
    torch.manual_seed(0)
    x, mask = torch.randn(shape), torch.rand(shape[:-1]) < 0.5
    close(layer(x, mask), torch.where(mask[..., None], layer(x), 0.0))
    for zero in (False, True):
        out = torch.full_like(layer(x), 7.0)
        assert layer(x, mask, out=out, zero=zero) is out
        close(out, torch.where(mask[..., None], layer(x), 0.0 if zero else 7.0))


@torch.no_grad()
def test_attention():
    torch.manual_seed(0)
    layer = MaskedAttention(192, 3, qkv_bias=True)
    x, mask = torch.randn(2, 20, 192), torch.rand(2, 20) < 0.5
    result = layer(x, mask)
    for image in (0, 1):
        kept = mask[image]
        alone = layer(x[image : image + 1, kept])
        close(result[image, kept], alone[0])
        assert not result[image, ~kept].any()


@torch.no_grad()
def test_attention_writes_and_adds():
    torch.manual_seed(0)
    layer, x, added = MaskedAttention(24, 3), torch.randn(2, 9, 24), torch.randn(2, 9, 24)
    mask = torch.rand(2, 9) < 0.5
    for chosen in (mask, None):
        plain = layer(x, chosen)
        seen = torch.ones_like(mask) if chosen is None else mask
        expected = torch.where(seen[..., None], plain + added, 0)
        close(layer(x, chosen, residual=added), expected)
        for zero in (False, True):
            out = torch.full_like(x, 7)
            assert layer(x, chosen, residual=added, out=out, zero=zero) is out
            close(out, torch.where(seen[..., None], expected, 0.0 if zero else 7.0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = MaskedConv2d(128, 128, 3, padding=1, activation="relu")
        self.down = MaskedConv2d(128, 16, 3, stride=2, padding=1)

    def forward(self, x, mask, low):
        return self.down(self.first(x, mask), low)


@torch.no_grad()
def test_context_serves_all_resolutions():
    block, x, mask = Block(), image(1, 128, 9, 8), torch.rand(1, 9, 8) < 0.2
    low = distile.masks.pool(mask, 2)
    expected = block(x, mask, low)
    distile.trace(block, (x, mask, low))
    with distile.mask(mask) as shared:
        assert torch.equal(block.down(block.first(x)), expected)
        assert block.down._mask(None, 1, 5, 4) is block.down._mask(None, 1, 5, 4) and shared.at(9, 8) is mask
    assert block.first(x).count_nonzero() > expected.count_nonzero()


@pytest.mark.parametrize("grad", [False, True])
def test_compile(grad):
    torch.manual_seed(0)
    block, x = Block(), image(1, 128, 8, 8)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        mask = torch.rand(1, 8, 8) < 0.4
        low = distile.masks.pool(mask, 2)
        with torch.set_grad_enabled(grad):
            expected, actual = block(x, mask, low), compiled(x, mask, low)
        close(actual, expected)
        if grad:
            for got, wanted in zip(
                torch.autograd.grad(actual.sum(), block.parameters()),
                torch.autograd.grad(expected.sum(), block.parameters()),
            ):
                close(got, wanted, 1e-3)


@torch.no_grad()
def test_compile_keeps_packed_weights():
    block, x, mask = Block(), image(1, 128, 8, 8), torch.rand(1, 8, 8) < 0.4
    low = distile.masks.pool(mask, 2)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    compiled(x, mask, low)
    before = ops._times_packed()
    compiled(x, mask, low)
    assert ops._times_packed() == before
    block.first.weight.mul_(2)
    close(compiled(x, mask, low), block(x, mask, low))
    assert ops._times_packed() == before + 1


@torch.no_grad()
def test_compile_with_context():
    block, x, mask = nn.Sequential(MaskedConv2d(128, 128, 3, padding=1, activation="relu")), image(1, 128, 8, 8), None
    compiled = torch.compile(lambda x, mask: _in_context(block, x, mask), backend="aot_eager", fullgraph=True)
    for density in (0.2, 0.8):
        mask = torch.rand(1, 8, 8) < density
        close(compiled(x, mask), _in_context(block, x, mask))


def _in_context(block, x, mask):
    with distile.mask(mask):
        return block(x)


@torch.no_grad()
def test_export(tmp_path):
    block, x, mask = Block().eval(), image(1, 128, 8, 8), torch.rand(1, 8, 8) < 0.4
    low = distile.masks.pool(mask, 2)
    program = torch.export.export(block, (x, mask, low))
    torch.export.save(program, tmp_path / "block.pt2")
    loaded = torch.export.load(tmp_path / "block.pt2").module()
    close(loaded(x, mask, low), block(x, mask, low))
