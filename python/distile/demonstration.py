"""A masked convolution on this machine, against PyTorch's dense one: what `python -m distile` shows."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time

import torch

from . import polykernels
from .nn import MaskedConv2d

CHANNELS, SIZE, BATCH = 256, 48, 1
SHARES = (0.05, 0.1, 0.3, 0.6, 1.0)
BUSY = 0.4  # The share of the cores that others may use.
PICTURED = 2  # The number of the share in the picture.


@dataclasses.dataclass
class Time:
    """Medians in microseconds of calls that took turns."""

    density: float
    dense_us: float
    masked_us: float


@dataclasses.dataclass
class Demonstration:
    layer: str
    threads: int | None  # None on a GPU.
    has_polykernel: bool
    mask: list[list[list[bool]]]  # [1, H, W], the one of the picture.
    times: list[Time]
    largest_error: float  # At active pixels, relative to the largest result.
    load: float  # How many programs ran on the machine before, on average of a minute.


def blob(share: float) -> torch.Tensor:
    """A mask [1, H, W] that looks like two things in an image, with this share of active pixels."""
    y, x = (torch.arange(SIZE) / SIZE for _ in range(2))
    large = ((x[None, :] - 0.36) ** 2) * 1.6 + (y[:, None] - 0.55) ** 2
    small = ((x[None, :] - 0.8) ** 2 + (y[:, None] - 0.25) ** 2) * 2.5
    distance = torch.minimum(large, small)
    return (distance <= distance.flatten().sort().values[round(share * SIZE**2) - 1])[None]


@torch.no_grad()  # On a GPU, weights made in inference mode are packed at each call.
def demonstrate(device: str = "cpu", seconds: float = 0.5) -> Demonstration:
    """Times one layer for some masks, each dense and masked call in turn for some seconds."""
    layer = MaskedConv2d(CHANNELS, CHANNELS, 3, padding=1, activation="relu", device=device)
    layer = layer.to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, CHANNELS, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
    load = os.getloadavg()[0]
    masks = [blob(share).to(device) for share in SHARES]
    with polykernels.recording() as missing:
        error = _largest_error(layer, x, masks[PICTURED])
    return Demonstration(
        f"3x3 convolution, {CHANNELS} to {CHANNELS} channels, relu, of {BATCH} image of {SIZE}x{SIZE}, float32",
        torch.get_num_threads() if device == "cpu" else None,
        not missing,
        masks[PICTURED].tolist(),
        [_time(layer, x, mask, seconds) for mask in masks],
        error,
        load,
    )


def _largest_error(layer, x, mask) -> float:
    dense, masked = layer(x), layer(x, mask)
    return ((masked - dense) * mask[:, None]).abs().max().item() / dense.abs().max().item()


def _time(layer, x, mask, seconds: float) -> Time:
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < 4 or time.perf_counter() < end:
        for given, own in zip((None, mask), times):
            start = time.perf_counter()
            layer(x, given)
            if x.is_cuda:
                torch.cuda.synchronize()
            own.append((time.perf_counter() - start) * 1e6)
    dense, masked = (statistics.median(own[1:]) for own in times)  # The first call makes what the others find.
    return Time(mask.float().mean().item(), dense, masked)


def text(found: Demonstration) -> str:
    """The times as a table."""
    where = "on the GPU, with the wait for it" if found.threads is None else f"on {found.threads} threads"
    lines = [f"{found.layer}, {where}:", "", "active pixels   PyTorch, dense   distile, masked   gain"]
    for row in found.times:
        gain = row.dense_us / row.masked_us
        lines.append(
            f"{row.density:12.0%}   {row.dense_us / 1e3:11.2f} ms   {row.masked_us / 1e3:12.2f} ms   {gain:5.2f}"
            + ("   slower than dense" if gain < 0.95 else "")
        )
    lines += ["", f"The largest error at active pixels is {found.largest_error:.1e} of the largest result."]
    if found.load > BUSY * len(os.sched_getaffinity(0)):
        lines.append(
            f"Other programs used this machine (load {found.load:.1f}), so the times are too long and uncertain."
        )
    if not found.has_polykernel:
        lines.append("No PolyKernel computes this layer here: it ran dense, and the mask after it.")
    return "\n".join(lines)
