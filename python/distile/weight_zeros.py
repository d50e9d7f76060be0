"""How many of a layer's weights are 0."""

from __future__ import annotations

import itertools
import math
import typing

if typing.TYPE_CHECKING:
    import numpy
    import torch

LEAST_ZEROS = 0.5  # A share of the weights, as the compiler has it.
MOST_SAMPLED = 4096
QUAD = 4


def zeros_of(weight: torch.Tensor) -> dict[str, float]:
    """zeros_in() of weights on a CPU; else {}: other devices have no code that skips zeros."""
    return zeros_in(weight.detach()) if weight.device.type == "cpu" else {}


def zeros_in(weights) -> dict[str, float]:
    """{"weight_zeros": their share, in a sample}, as an operator's typical size has it, if code for them is worth it
    (docs/sparse_weights.md); else {}. `weights` is a tensor of PyTorch or an array of NumPy."""
    weights = weights.reshape(-1)
    # In step with neither kernels nor blocks of channels.
    step = next(n for n in itertools.count(max(1, len(weights) // MOST_SAMPLED)) if math.gcd(n, 2 * 3 * 5 * 7) == 1)
    sample = weights[::step]
    return typical_of(int((sample == 0).sum()) / max(1, len(sample)))


def zero_quads_in(weights: numpy.ndarray, channels: int) -> dict[str, float]:
    """As zeros_in(), of a quantized filter, whose code leaves out quads: QUAD consecutive input channels, which the
    dimension `channels` has, that are all 0."""
    weights = weights.swapaxes(channels, -1)
    quads = [weights[..., first : first + QUAD] for first in range(0, weights.shape[-1], QUAD)]
    empty, all_quads = sum(int((~one.any(-1)).sum()) for one in quads), len(quads) * weights[..., 0].size
    return typical_of(empty / max(1, all_quads))


def typical_of(zeros: float) -> dict[str, float]:
    """What zeros_in() finds, for a known share of zeros."""
    return {"weight_zeros": min(round(zeros, 2), 0.99)} if zeros >= LEAST_ZEROS else {}
