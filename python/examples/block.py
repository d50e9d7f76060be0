"""A residual block that computes only where a mask says so, and what it gives up: nothing where the mask is active."""

import torch
from torch import nn

import distile
from distile.nn import MaskedConv2d


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = MaskedConv2d(channels, channels, 3, padding=1, activation="relu")
        self.second = MaskedConv2d(channels, channels, 3, padding=1, activation="relu")

    def forward(self, x):
        return x + self.second(self.first(x))


block = Block(256).to(memory_format=torch.channels_last)
x = torch.randn(1, 256, 40, 40).to(memory_format=torch.channels_last)
mask = torch.zeros(1, 40, 40, dtype=torch.bool)
mask[:, 10:22, 8:24] = True

with torch.inference_mode():
    dense = block(x)  # Without a mask: the dense block.
    with distile.mask(distile.masks.dilate(mask, 1)):  # The second convolution reads a pixel around the mask.
        masked = block(x)

active = mask[:, None].expand_as(masked)
print(f"active: {mask.float().mean():.0%}, largest error there: {(masked - dense)[active].abs().max():.1e}")
