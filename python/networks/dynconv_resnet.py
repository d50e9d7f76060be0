"""DynConv's ResNet-101: a mask unit in every residual block says where it computes; elsewhere it is the identity.

Weights are random, except those of the mask units: these select regions, as dense in each block as DynConv's profile
says.
"""

from __future__ import annotations

import copy
import functools

import torch
from torch import nn

from common import (
    Buffers, Functional, Network, conv, image, mask_of, nhwc, profile, randomise, train, visible, weight_of, where,
)  # fmt: skip
from distile import masks
from distile.nn import MaskedConv2d, MaskUnit

ops = torch.ops.distile


class Bottleneck(nn.Module):
    """relu(shortcut + masked branch of 1x1, 3x3 and 1x1 convolutions). Batch norms are in the weights."""

    def __init__(self, channels, width, stride, buffers):
        super().__init__()
        self.unit = MaskUnit(channels, stride=stride)
        self.reduce = MaskedConv2d(channels, width, 1, activation="relu")
        self.middle = MaskedConv2d(width, width, 3, stride=stride, padding=1, activation="relu")
        self.expand = MaskedConv2d(width, 4 * width, 1, activation="relu")
        self.shortcut = MaskedConv2d(channels, 4 * width, 1, stride=stride) if channels != 4 * width else None
        self.buffers, self.mask = buffers, None

    def forward(self, x):
        """Changes x, unless there is a shortcut."""
        with masks.fixed():
            self.mask = self.unit(x)
            return self._compute(x, self.mask)

    def _compute(self, x, mask):
        size, width = tuple(x.shape[2:]), self.reduce.out_channels
        read = masks.needed_input(mask, size, kernel=3, stride=self.middle.stride, padding=1)
        reduced = self.reduce(x, read, out=self.buffers.images("reduced", x, width, *size, border=1, scratch=True))
        middle = self.middle(reduced, mask, out=self.buffers.images("middle", x, width, *mask.shape[1:]))
        if self.shortcut is None:
            return self.expand(middle, mask, residual=x, out=x)
        result = self.shortcut(x, self.buffers.everywhere(x, *mask.shape[1:]))
        self.expand(middle, mask, residual=result, out=result)
        return ops.activate.out(result, ~mask, activation="relu", out=result)

    def functional(self) -> nn.Module:
        return Block(self)

    def plain(self, x, mask=None):
        """Dense, and then a mask, or that of a function of x."""
        branch = nn.functional.conv2d(
            conv(self.middle, conv(self.reduce, x)), weight_of(self.expand), self.expand.bias
        )
        shortcut = x if self.shortcut is None else conv(self.shortcut, x)
        return torch.relu(shortcut + where(mask(x) if callable(mask) else mask, branch, 0.0))


class Block(nn.Module):
    """A bottleneck that writes into no buffers."""

    def __init__(self, block: Bottleneck):
        super().__init__()
        self.unit, self.reduce, self.middle = block.unit, block.reduce, block.middle
        self.shortcut = None if block.shortcut is None else _unmasked(block.shortcut)
        self.expand = copy.copy(block.expand)
        self.expand.activation = "none"  # The sum has it, also where the mask is not active.

    def forward(self, x):
        mask = self.unit(x)
        read = masks.needed_input(mask, x.shape[2:], kernel=3, stride=self.middle.stride, padding=1)
        branch = self.expand(self.middle(self.reduce(x, read), mask), mask)
        return torch.relu((x if self.shortcut is None else self.shortcut(x)) + branch)


def _unmasked(layer: MaskedConv2d) -> nn.Conv2d:
    """A layer of the same parameters that knows no masks."""
    plain = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, device="meta")
    plain.weight, plain.bias = layer.weight, layer.bias
    return plain


class Bottlenecks(Network):
    """Bottlenecks and the buffers that they share, between a start and an end of the network."""

    bound = 1e-4

    def __init__(self):
        super().__init__()
        self.buffers, self.blocks = Buffers(), nn.ModuleList()

    def append(self, channels, width, count, stride=1) -> int:
        """Appends `count` bottlenecks, the first with this stride, and returns their output channels."""
        for number in range(count):
            self.blocks.append(Bottleneck(channels, width, 1 if number else stride, self.buffers))
            channels = 4 * width
        return channels

    @torch.no_grad()
    def finish(self, given, density, seed):
        """Draws all weights, and trains the mask units on this input for a mean density."""
        randomise(self, seed)
        for block in self.blocks:
            block.expand.weight.mul_(0.3)
        self.to(memory_format=torch.channels_last)
        self.image = given
        x = self._start(given)
        for block, share in zip(self.blocks, profile(len(self.blocks), density)):
            x = block.plain(x, train(block.unit, x, share))

    def _run(self, x, block):
        x = self._start(x)
        for one in self.blocks:
            x = block(one, x)
        return self._finish(x)

    def functional(self):
        return Functional(self, Bottleneck, self._run)

    def _start(self, x):
        return x

    def _finish(self, x):
        return x

    def dense_inputs(self):
        return (self.image,)

    def dense(self, x):
        return self._run(x, lambda block, x: block.plain(x))

    def dense_masked(self, x):
        return self._run(x, lambda block, x: block.plain(x, functools.partial(mask_of, block.unit)))

    def expected(self):
        return self._run(self.image, lambda block, x: block.plain(x, block.mask))

    def densities(self):
        return [block.mask.float().mean().item() for block in self.blocks]

    def cached_bytes(self):
        return self.buffers.bytes()


class ResNet(Bottlenecks):
    def __init__(self, size=640, density=0.3, batch=1, blocks=(3, 4, 23, 3), width=64, classes=1000, seed=0):
        super().__init__()
        self.stem = MaskedConv2d(3, width, 7, stride=2, padding=3, activation="relu")
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for stage, count in enumerate(blocks):
            channels = self.append(channels, width << stage, count, stride=2 if stage else 1)
        self.head = nn.Linear(channels, classes)
        self.teams = size <= 224
        self.compiled_start = None
        self.finish(image(size, batch=batch), density, seed)

    def _start(self, x):
        return self.pool(conv(self.stem, x))

    def compile_between(self):
        """A compiler joins the stem's activation and pool, which take longer than its convolution."""
        self.compiled_start = torch.compile(self._start, dynamic=False)

    def _finish(self, x):
        return x, self.head(x.mean((2, 3)))

    def masked(self):
        if self.compiled_start is None:
            height, width = ((size + 1) // 2 for size in self.image.shape[2:])
            x = self.pool(self.stem(self.image, self.buffers.everywhere(self.image, height, width)))
        else:
            x = self.compiled_start(self.image)
        with self.buffers.stage():
            for block in self.blocks:
                x = block(x)
        return self._finish(x)

    def pictures(self):
        middle = self.blocks[len(self.blocks) // 4]
        features = self._finish(self.expected()[0])[0]
        return {
            "input": self.image[0] / 2 + 0.5,
            "mask of a block": middle.mask[0].float(),
            "output": visible(features[0].mean(0)),
        }


class ThirdStage(Bottlenecks):
    """The 22 bottlenecks of ResNet-101's third stage that have no shortcut of their own, and one more of them, on random
    features."""

    def __init__(self, side=14, density=0.3, batch=1, count=23, width=256, seed=0):
        super().__init__()
        channels = self.append(4 * width, width, count)
        self.teams = side <= 14
        field = torch.randn(batch, channels, side, side, generator=torch.Generator().manual_seed(seed))
        self.finish(nhwc(field.relu()), density, seed)

    def masked(self):
        x = self.buffers.images("features", self.image, *self.image.shape[1:])
        x.copy_(self.image)
        with self.buffers.stage():
            for block in self.blocks:
                x = block(x)
        return x

    def pictures(self):
        middle = self.blocks[len(self.blocks) // 4]
        return {"mask of a block": middle.mask[0].float(), "output": visible(self.expected()[0].float().mean(0))}
