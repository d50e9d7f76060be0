"""Times one architecture, dense and masked, with its PolyKernels: compiles those that are missing first."""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time

import torch

import architectures
import distile
from check import settled
from masks import blobs

SIZE = (224, 224)
DENSITIES = (0.3, 1.0)


def medians(sides: dict, seconds: float) -> dict[str, float]:
    """The median time in milliseconds of each function, called in turn."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds
    while any(len(own) < 12 for own in found.values()) or time.perf_counter() < end:
        for name, run in sides.items():
            begin = time.perf_counter()
            run()
            found[name].append((time.perf_counter() - begin) * 1e3)
    return {name: round(statistics.median(own[2:]), 3) for name, own in found.items()}


@torch.inference_mode()
def times(name: str, seconds: float, threads: int) -> dict:
    """Milliseconds of one image: dense in PyTorch's faster layout, and masked at each density."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model = settled(architectures.NAMED[name].make())
    x = torch.randn(1, 3, *SIZE)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    x_last = x.to(memory_format=torch.channels_last)
    masked = distile.convert(copy.deepcopy(last), example=x_last)
    masks = {density: torch.from_numpy(blobs(SIZE, density, 1)) for density in DENSITIES}
    distile.build(masked, x_last, mask=masks[0.3])

    def at(density):
        with distile.mask(masks[density]):
            masked(x_last)

    sides = {"dense": lambda: model(x), "dense, channels last": lambda: last(x_last)}
    sides |= {str(density): (lambda density=density: at(density)) for density in DENSITIES}
    found = medians(sides, seconds)
    dense = min(found.pop("dense"), found.pop("dense, channels last"))
    return {"size": list(SIZE), "threads": threads, "dense": dense, "masked": found}


if __name__ == "__main__":
    print(json.dumps({"architecture": sys.argv[1], "times": times(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))}))
