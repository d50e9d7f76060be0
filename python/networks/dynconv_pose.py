"""DynConv's pose network: four hourglasses of MobileNetV2 blocks, 57 in all, each with a mask unit.

Weights are random, except those of the mask units: these select regions, of DynConv's published densities.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import nn

from common import Buffers, Functional, Network, conv, image, mask_of, profile, randomise, train, visible, where
from distile import masks
from distile.nn import MaskedConv2d, MaskUnit


class InvertedResidual(nn.Module):
    """x + masked branch: expand by 1x1, depthwise 3x3, project by 1x1. Batch norms are in the weights."""

    def __init__(self, channels, buffers, expansion=6):
        super().__init__()
        wide = channels * expansion
        self.unit = MaskUnit(channels)
        self.expand = MaskedConv2d(channels, wide, 1, activation="relu6")
        self.depthwise = MaskedConv2d(wide, wide, 3, padding=1, groups=wide, activation="relu6")
        self.project = MaskedConv2d(wide, channels, 1)
        self.buffers, self.mask = buffers, None

    def forward(self, x, keep=False):
        """Changes x unless it is to be kept."""
        with masks.fixed():
            self.mask = self.unit(x)
            return self._compute(x, self.mask, keep)

    def _compute(self, x, mask, keep):
        size, wide = tuple(x.shape[2:]), self.expand.out_channels
        border = 1 if x.is_cuda else 0  # A stage reads zeros outside of images there.
        expanded = self.buffers.images("expanded", x, wide, *size, border, scratch=True)
        self.expand(x, masks.dilate(mask, 1), out=expanded)
        filtered = self.depthwise(expanded, mask, out=self.buffers.images("filtered", x, wide, *size, scratch=True))
        out = x.clone() if keep else x
        return self.project(filtered, mask, residual=out, out=out)

    def functional(self) -> nn.Module:
        return Block(self)

    def plain(self, x, mask=None):
        """Dense, and then a mask, or that of a function of x."""
        branch = conv(self.project, conv(self.depthwise, conv(self.expand, x)))
        return x + where(mask(x) if callable(mask) else mask, branch, 0.0)


class Block(nn.Module):
    """An inverted residual block that writes into no buffers."""

    def __init__(self, block: InvertedResidual):
        super().__init__()
        self.unit, self.expand, self.depthwise, self.project = block.unit, block.expand, block.depthwise, block.project

    def forward(self, x):
        mask = self.unit(x)
        filtered = self.depthwise(self.expand(x, masks.dilate(mask, 1)), mask)
        return self.project(filtered, mask, residual=x, out=x.clone())


class Hourglass(nn.Module):
    """Features at several resolutions, joined by sums: 3 blocks a level and one more at the bottom."""

    def __init__(self, levels, channels, buffers):
        super().__init__()
        self.side, self.down, self.up = (InvertedResidual(channels, buffers) for _ in range(3))
        inner = Hourglass(levels - 1, channels, buffers) if levels > 1 else InvertedResidual(channels, buffers)
        self.inner = inner

    def run(self, x, block):
        """`block` computes a block, and may change its input unless `keep`."""
        smaller = block(self.down, F.max_pool2d(x, 2))
        smaller = self.inner.run(smaller, block) if isinstance(self.inner, Hourglass) else block(self.inner, smaller)
        larger = F.interpolate(block(self.up, smaller), scale_factor=2.0, mode="nearest")
        return block(self.side, x, keep=True) + larger


class PoseNetwork(Network):
    bound = 1e-4

    def __init__(self, size=256, density=0.383, batch=1, stacks=4, levels=4, channels=96, joints=16, seed=0):
        super().__init__()
        self.buffers = Buffers()
        self.stem = nn.Conv2d(3, channels, 7, stride=4, padding=3)
        self.first = InvertedResidual(channels, self.buffers)
        self.hourglasses = nn.ModuleList(Hourglass(levels, channels, self.buffers) for _ in range(stacks))
        self.after = nn.ModuleList(InvertedResidual(channels, self.buffers) for _ in range(stacks))
        self.heatmaps = nn.Conv2d(channels, joints, 1)
        randomise(self, seed)
        with torch.no_grad():
            for block in self.modules():
                if isinstance(block, InvertedResidual):
                    block.project.weight.mul_(0.3)
        self.to(memory_format=torch.channels_last)
        self.image = image(size, batch=batch)
        self.order: list[InvertedResidual] = []
        self._calibrate(density)

    def _run(self, x, block):
        x = block(self.first, torch.relu(conv(self.stem, x)))
        for hourglass, after in zip(self.hourglasses, self.after):
            x = x + block(after, hourglass.run(x, block))
        return self.heatmaps(x)

    @torch.no_grad()
    def _calibrate(self, density):
        blocks = [block for block in self.modules() if isinstance(block, InvertedResidual)]
        densities = iter(profile(len(blocks), density))

        def calibrated(block, x, keep=False):
            self.order.append(block)
            return block.plain(x, train(block.unit, x, next(densities)))

        self._run(self.image, calibrated)

    def masked(self):
        with self.buffers.stage():
            return self._run(self.image, lambda block, x, keep=False: block(x, keep))

    def functional(self):
        return Functional(self, InvertedResidual, self._run)

    def dense_inputs(self):
        return (self.image,)

    def dense(self, x):
        return self._run(x, lambda block, x, keep=False: block.plain(x))

    def dense_masked(self, x):
        return self._run(x, lambda block, x, keep=False: block.plain(x, functools.partial(mask_of, block.unit)))

    def expected(self):
        return self._run(self.image, lambda block, x, keep=False: block.plain(x, block.mask))

    def densities(self):
        return [block.mask.float().mean().item() for block in self.order]

    def cached_bytes(self):
        return self.buffers.bytes()

    def pictures(self):
        return {
            "input": self.image[0] / 2 + 0.5,
            "mask of a block": self.after[0].mask[0].float(),
            "output": visible(self.expected()[0].amax(0)),
        }
