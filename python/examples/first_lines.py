"""A network that computes only where a mask says so: the README's first lines."""

import torch
from torch import nn

import distile

model = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=4, padding=3), nn.ReLU(), nn.Conv2d(64, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 32, 1)
)
x = torch.randn(1, 3, 224, 224)
mask = torch.zeros(1, 224, 224, dtype=torch.bool)
mask[:, 60:140, 80:150] = True

model = distile.convert(model.eval(), example=x)  # PyTorch's: every layer that has a masked form
distile.set_build("background")  # compiles code for other shapes than those that ship, beside the program
with distile.mask(mask):  # bool, [N, H, W]: where the result is needed
    y = model(x)

print(f"{(y != 0).any(1).float().mean():.0%} of the result was computed, for a mask of {mask.float().mean():.0%}")
