"""Weights of 16 bits with inputs of float32: their values, their PolyKernels, and models that are cast."""

import pytest
import torch

import distile
from distile import polykernels, toolchain
from distile.nn import MaskedConv2d, MaskedConvTranspose2d, MaskedLinear, MaskedUpsampleConv2d

pytestmark = pytest.mark.filterwarnings("ignore:distile")
NEEDS_COMPILER = pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")


def masked(layer, x, whole):
    """A mask of the output, and what the layer gives with it."""
    mask = torch.rand(whole.shape[:2] if whole.dim() == 3 else (len(whole), *whole.shape[2:])) < 0.5
    return mask, torch.where(mask[..., None] if whole.dim() == 3 else mask[:, None], whole, 0.0)


@pytest.mark.cpu
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_layers(dtype):
    layers = [
        MaskedConv2d(11, 21, 3, stride=2, padding=1, activation="relu"),
        MaskedConv2d(21, 21, 3, padding=1, groups=21),
        MaskedConvTranspose2d(21, 9, 4, stride=2, padding=1),
        MaskedUpsampleConv2d(9, 12, 3, padding=1),
        MaskedLinear(12, 30, activation="gelu"),
    ]
    x = torch.randn(2, 11, 16, 18)
    for layer in layers:
        x = x[..., 0].transpose(1, 2).contiguous() if isinstance(layer, MaskedLinear) else x
        before = layer.weight.clone()
        errors = distile.cast_weights(layer, dtype)
        assert layer.weight.dtype == dtype and layer.bias.dtype == torch.float32
        assert 0 < errors[""] <= (2**-8 if dtype == torch.bfloat16 else 2**-11)
        assert (layer.weight.float() - before).abs().max() <= 1.01 * errors[""] * before.abs().max()
        whole = layer(x)
        assert whole.dtype == torch.float32
        mask, expected = masked(layer, x, whole)
        torch.testing.assert_close(layer(x, mask), expected, rtol=1e-4, atol=1e-4)  # Dense: there is no PolyKernel.
        (operator,) = distile.build(layer, x, mask=mask)
        assert operator.has_narrow_weights and polykernels.shared_object(operator).name.endswith("_narrow.so")
        with polykernels.recording() as missing:
            result = layer(x, mask)
        assert not missing
        # Halide's code for the taps of an upsampled pixel rounds their sum once more.
        close = 1e-2 if isinstance(layer, MaskedUpsampleConv2d) else 1e-4
        torch.testing.assert_close(result, expected, rtol=close, atol=close)
        assert not distile.build(layer, x, mask=mask)
        x = whole


@pytest.mark.cpu
@NEEDS_COMPILER
@torch.no_grad()
def test_layers_of_a_shape_that_ships():
    layer, x = MaskedLinear(384, 1152), torch.randn(1, 30, 384)
    distile.cast_weights(layer, torch.bfloat16)
    mask, expected = masked(layer, x, layer(x))
    with polykernels.recording() as missing:
        before = layer(x, mask)
    assert not missing  # What ships keeps them in float32.
    (operator,) = distile.build(layer, x, mask=mask)
    assert dict(operator.params)["weights_dtype"] == "bfloat16"
    after = layer(x, mask)
    torch.testing.assert_close(before, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_pruned_weights_skip_zeros():
    layer, x = MaskedLinear(40, 70), torch.randn(1, 30, 40)
    distile.prune(layer, 0.9)
    distile.cast_weights(layer, torch.bfloat16)
    mask, expected = masked(layer, x, layer(x))
    torch.testing.assert_close(layer(x, mask), expected, rtol=1e-4, atol=1e-4)
    (operator,) = (each for each in polykernels.missing() if ("in_channels", 40) in each.params)
    assert not operator.has_narrow_weights


@torch.no_grad()
def test_models():
    conv = torch.nn.Conv2d(8, 8, 3, padding=1)
    dense = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(8), torch.nn.ReLU(), conv).eval()
    x = torch.randn(1, 8, 12, 12)
    expected = dense(x)
    model = distile.convert(dense, example=x)
    errors = distile.cast_weights(model, torch.bfloat16)
    assert errors and all(0 < error < 2**-8 for error in errors.values())
    torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
    back = distile.cast_weights(model, torch.float32)
    assert set(back) == set(errors) and not any(back.values())


def test_shared_weights_stay_shared():
    first, second = MaskedLinear(4, 4), MaskedLinear(4, 4)
    second.weight = first.weight
    distile.cast_weights(torch.nn.Sequential(first, second), torch.float16)
    assert first.weight is second.weight and first.weight.requires_grad


def test_wrong_arguments():
    layer = MaskedLinear(4, 4)
    with pytest.raises(ValueError, match="bfloat16"):
        distile.cast_weights(layer, torch.int8)
    with torch.no_grad():
        layer.weight[1, 2] = 1e6
    model = torch.nn.Sequential(MaskedLinear(4, 4), layer)
    with pytest.raises(ValueError, match="weights of 1 are too large for torch.float16"):
        distile.cast_weights(model, torch.float16)
    assert model[0].weight.dtype == torch.float32
