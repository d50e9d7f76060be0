"""Pruned layers: PolyKernels that multiply with the nonzero weights alone."""

import pytest
import torch

import distile
from distile import polykernels, toolchain
from distile.nn import MaskedConv2d, MaskedLinear

pytestmark = pytest.mark.filterwarnings("ignore:distile")


def prune(layer, zeros: float):
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < zeros] = 0


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@pytest.mark.parametrize("zeros", [0.3, 0.9])
@torch.no_grad()
def test_pruned_layers(zeros):
    channels = int(zeros * 40)  # Other shapes for each, which have PolyKernels of their own.
    layers = [MaskedConv2d(19, channels, 3, padding=1, activation="relu"), MaskedLinear(channels, 70)]
    for layer in layers:
        prune(layer, zeros)
        x = torch.randn(2, 9, channels) if isinstance(layer, MaskedLinear) else torch.randn(2, 19, 17, 21)
        whole = layer(x)
        mask = torch.rand(whole.shape[:2] if whole.dim() == 3 else (2, *whole.shape[2:])) < 0.5
        spread = mask[..., None] if whole.dim() == 3 else mask[:, None]
        (operator,) = distile.build(layer, x, mask=mask)
        skips = b"cpu-nonzeros" in polykernels.shared_object(operator).read_bytes()
        assert skips == (zeros > 0.5)
        torch.testing.assert_close(layer(x, mask), torch.where(spread, whole, 0.0), rtol=1e-4, atol=1e-4)
        # Other zeros, and none, need no other PolyKernel.
        for other in (0.9, 0.0):
            torch.nn.init.normal_(layer.weight)
            prune(layer, other)
            with polykernels.recording() as missing:
                result = layer(x, mask)
            assert not missing
            torch.testing.assert_close(result, torch.where(spread, layer(x), 0.0), rtol=1e-4, atol=1e-4)
