"""How many of a layer's weights are 0."""

from __future__ import annotations

import itertools
import math

import torch

LEAST_ZEROS = 0.5  # A share of the weights, as the compiler has it.
MOST_SAMPLED = 4096


def zeros_of(weight: torch.Tensor) -> dict[str, float]:
    """{"weight_zeros": their share, in a sample}, as an operator's typical size has it, if code for them is worth it
    (docs/sparse_weights.md); else {}."""
    if weight.device.type != "cpu":
        return {}
    weights = weight.detach().flatten()
    # In step with neither kernels nor blocks of channels.
    step = next(n for n in itertools.count(max(1, weights.numel() // MOST_SAMPLED)) if math.gcd(n, 2 * 3 * 5 * 7) == 1)
    zeros = float((weights[::step] == 0).double().mean())
    return {"weight_zeros": min(round(zeros, 2), 0.99)} if zeros >= LEAST_ZEROS else {}
