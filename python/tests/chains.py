"""Chains of masked layers, images and masks for the tests of groups of devices."""

import pytest
import torch
from torch import nn

from distile.nn import MaskedConv2d


def threads_of(device):
    """Contexts of CPUs have one thread each."""
    return {"threads": 1} if torch.device(device).type == "cpu" else {}


def chain_of(group, layers, **keywords):
    """Few PolyKernels ship for GPUs."""
    try:
        return group.chain(layers, **keywords)
    except ValueError as error:
        if group.devices[0].type != "cuda" or "no PolyKernel" not in str(error):
            raise
        pytest.skip(str(error))


def image(device, *shape, dtype=torch.float32):
    """Drawn before it is moved, so that all ranks have the same."""
    return torch.randn(shape).to(device, dtype).contiguous(memory_format=torch.channels_last)


def blobs(device, batch, height, width, density):
    noise = nn.functional.avg_pool2d(torch.rand(batch, 1, height, width), 5, 1, 2)[:, 0]
    return (noise < torch.quantile(noise.flatten(), density)).to(device)


def one_by_one(layers, x, masks, residuals=None):
    """What modules compute one after the other."""
    tensors = [x]
    for number, (layer, mask) in enumerate(zip(layers, masks)):
        given = (residuals or {}).get(number)
        tensors.append(layer(tensors[-1], mask, None if given is None else tensors[given]))
    return tensors[-1]


def agree(actual, expected):
    """To the bit on CPUs. Modules on a GPU have no fixed order of sums."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if actual.is_cuda:
        bound = 1e-4 if actual.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)
    else:
        assert torch.equal(actual, expected)


@torch.inference_mode(False)  # On a GPU, writes of tensors of that mode do not show, and each call would pack them again.
def convolutions(device, *, layers=3, channels=128, dtype=torch.float32):
    made = [MaskedConv2d(channels, channels, 3, padding=1, activation="relu") for _ in range(layers)]
    return [layer.to(device, dtype) for layer in made]
