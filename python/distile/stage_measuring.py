"""Measures the ways to run a stage, and chooses one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

NEVER = 1e30  # The time of a way that the device lacks.
SECONDS = 0.06  # For all ways at a density.


def blob(shape: tuple[int, ...], density: float, device) -> torch.Tensor:
    """A mask of connected regions, [N, H, W] or of tokens [N, T], with this share of active pixels."""
    n, width = shape[0], shape[-1]
    height = shape[1] if len(shape) == 3 else 1
    radius = max(min(height, width) // 8, 1)
    generator = torch.Generator().manual_seed(height * 65536 + width)
    noise = torch.rand(n, 1, height, width, generator=generator, device="cpu")
    for _ in range(2):
        noise = F.avg_pool2d(noise, 2 * radius + 1, 1, radius, count_include_pad=False)
    values = noise.flatten().sort(descending=True)[0]
    count = min(max(round(density * values.numel()), 1), values.numel())
    return (noise >= values[count - 1]).reshape(shape).to(device)


def density_of(masks: Sequence[torch.Tensor]) -> float:
    """The share of pixels that are active, in all these masks."""
    active, pixels = sum(int(mask.bool().sum()) for mask in masks), sum(mask.numel() for mask in masks)
    return active / max(pixels, 1)


def times_of(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """The median times of calls in microseconds, in turns; NEVER for those that fail."""
    times: list[list[float]] = [[] for _ in calls]
    able = []
    for number, call in enumerate(calls):
        try:
            call()  # Packs weights, and makes memory.
            able.append(number)
        except RuntimeError:
            times[number].append(NEVER)
    end = time.perf_counter() + SECONDS
    while len(times[able[0]]) < 3 or time.perf_counter() < end:
        for number in able:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            calls[number]()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[number].append((time.perf_counter() - start) * 1e6)
    return [statistics.median(one) for one in times]


def fastest(rows: Sequence[Sequence[float]], density: float) -> int:
    """The way with the least time at a density, between two rows by what lies between their times: as the library
    chooses on a CPU (python/csrc/stage_operator.cpp)."""
    above = next((place for place, row in enumerate(rows) if row[0] >= density), len(rows) - 1)
    low, high = rows[max(above - 1, 0)], rows[above]
    share = min(max((density - low[0]) / (high[0] - low[0]), 0.0), 1.0) if high[0] > low[0] else 1.0
    times = [a + share * (b - a) for a, b in zip(low[1:], high[1:])]
    return times.index(min(times))
