"""A chain of masked 3x3 convolutions on ranks of torch.distributed against the same chain on one of their devices:

    torchrun --nproc-per-node 2 bench/python/ranks.py --out rows.json
    torchrun --nnodes 2 --nproc-per-node 1 ... bench/python/ranks.py --devices 8 --out rows.json

A row has medians in milliseconds: t_one_ms of one device, t_ranks_ms of ranks that keep the images, t_input_ms of an input
that all have and a result that the first gets. Every result is compared with the bits of one device."""

import argparse
import os
import statistics
import time

import distile
import json_rows
import torch
from distile.nn import MaskedConv2d
from torch import distributed


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--types", nargs="+", default=["float16", "float32"])
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--devices", type=int, default=1, help="of each rank")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--overlap", nargs="+", default=["auto", "never"])
    parser.add_argument("--out", help="a file for the rows")
    return parser.parse_args()


def blobs(size, density):
    noise = torch.rand(1, 1, size, size)
    for _ in range(3):
        noise = torch.nn.functional.avg_pool2d(noise, 9, 1, 4)
    order = noise.flatten().argsort()
    mask = torch.zeros(size * size, dtype=torch.bool)
    mask[order[: round(density * size * size)]] = True
    return mask.view(1, size, size)


def median_ms(call, runs):
    """Ranks begin at once; a run returns when its result is there."""
    times = []
    for _ in range(runs):
        distributed.barrier()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def measure(options, devices, name, size, density, overlap):
    device = devices[0]
    torch.manual_seed(0)
    dtype = getattr(torch, name)
    with torch.inference_mode(False):
        layers = [MaskedConv2d(options.channels, options.channels, 3, padding=1, activation="relu")
                  .to(device, dtype) for _ in range(options.layers)]  # fmt: skip
    x = torch.randn(1, options.channels, size, size).to(device, dtype).contiguous(memory_format=torch.channels_last)
    mask = blobs(size, density).to(device)
    first = distributed.get_rank() == 0
    out = torch.zeros_like(x) if first else torch.empty_like(x, device="meta")
    alone = distile.parallel.Group([device])
    group = distile.parallel.Group(devices, process_group=distributed.group.WORLD, overlap=overlap)
    with alone, group:
        one, several = alone.chain(layers), group.chain(layers)
        several(x, mask, out=out)
        same_bits = not first or torch.equal(out, one(x, mask, out=torch.zeros_like(x)))
        one.keep(x, mask)
        several.keep(x, mask)
        t_one = median_ms(lambda: one.step(mask), options.runs)
        t_ranks = median_ms(lambda: several.step(mask), options.runs)
        t_input = median_ms(lambda: several(x, mask, out=out), options.runs)
        images = several.images()
        same_bits = same_bits and torch.equal(images, one.images())
        info = several.info()
    ranks = distributed.get_world_size()
    count = f"{ranks}" if len(devices) == 1 else f"{ranks}x{len(devices)}"
    return {
        "row": f"ranks/{name}/{size}/{density}/{count}/{overlap}",
        "device": torch.cuda.get_device_name(device) if device != "cpu" else "cpu",
        "ranks": ranks, "devices": info.devices, "t_one_ms": t_one, "t_ranks_ms": t_ranks, "t_input_ms": t_input,
        "same_bits": same_bits, "imbalance": info.imbalance, "halo_bytes": info.halo_bytes, "row_bytes": info.row_bytes,
    }  # fmt: skip


def main():
    options = read_options()
    distributed.init_process_group()
    devices = ["cpu"] * options.devices
    if torch.cuda.is_available():
        first = int(os.environ["LOCAL_RANK"]) * options.devices
        devices = [f"cuda:{first + i}" for i in range(options.devices)]
        torch.cuda.set_device(devices[0])
    rows = []
    for name in options.types:
        for size in options.sizes:
            for density in options.densities:
                for overlap in options.overlap:
                    with torch.inference_mode():
                        rows.append(measure(options, devices, name, size, density, overlap))
                    if distributed.get_rank() == 0:
                        print(json_rows.flat(rows[-1]), flush=True)
                        if options.out:
                            json_rows.write(options.out, {"results": rows})
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
