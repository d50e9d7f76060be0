"""A chain of masked convolutions on several devices: the GPUs of this machine, or else parts of its cores."""

import torch

import distile
from distile.nn import MaskedConv2d

count = torch.cuda.device_count()
devices = [f"cuda:{number}" for number in range(count)] if count > 1 else ["cpu", "cpu"]
layers = [MaskedConv2d(256, 256, 3, padding=1, activation="relu") for _ in range(4)]
x = torch.randn(1, 256, 64, 64, device=devices[0]).to(memory_format=torch.channels_last)
mask = torch.zeros(1, 64, 64, dtype=torch.bool, device=devices[0])
mask[:, 10:50, 20:40] = True

group = distile.parallel.Group(devices)
chain = group.chain(layers)
with torch.inference_mode():
    y = chain(x, mask)  # What the layers compute one after the other.

    chain.keep(x, mask)  # The devices keep x with the active pixels of y.
    for step in range(1, 4):
        chain.step(mask.roll(step, dims=2))
    images = chain.images()

info = chain.info()
print(f"{info.busy_devices} devices, an imbalance of {info.imbalance:.1%}")
