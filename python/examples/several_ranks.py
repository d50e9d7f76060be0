"""A chain of masked convolutions on ranks, one device each: torchrun --nproc-per-node 2 several_ranks.py

Without torchrun, the same code runs on one device."""

import os

import torch
from torch import distributed

import distile
from distile.nn import MaskedConv2d

process_group = None
if distributed.is_torchelastic_launched():
    distributed.init_process_group()
    process_group = distributed.group.WORLD
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)  # All ranks have the same layers, input and mask.
layers = [MaskedConv2d(256, 256, 3, padding=1, activation="relu").to(device) for _ in range(4)]
x = torch.randn(1, 256, 64, 64).to(device, memory_format=torch.channels_last)
mask = torch.zeros(1, 64, 64, dtype=torch.bool, device=device)
mask[:, 10:50, 20:40] = True

with distile.parallel.Group([device], process_group=process_group) as group, torch.inference_mode():
    chain = group.chain(layers)
    y = chain(x, mask)  # The whole output, on every rank.

    chain.keep(x, mask)  # Each rank keeps its part of x, with the active pixels of y.
    for step in range(1, 4):
        chain.step(mask.roll(step, dims=2))
    first = process_group is None or distributed.get_rank() == 0
    images = chain.images(None if first else torch.empty_like(x, device="meta"))  # The first rank collects them.
    if first:
        print(f"{chain.info().devices} devices, an output of {y.norm():.4f}, images of {images.norm():.4f}")

if process_group:
    distributed.destroy_process_group()
