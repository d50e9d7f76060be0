"""Networks with pruned weights, under masks that are given: MobileNet v1 and the encoder of BERT-base.

Weights are random, and then those of least magnitude are set to 0, as distile.prune does it: all but those of the
first and the last layer, and of depthwise convolutions.
"""

from __future__ import annotations

import math

import torch
from torch import nn

import distile
from common import (
    Buffers, Network, TokenLayer, conv, image, layer_norm, linear, randomise, smooth_fields, threshold, visible, where,
)  # fmt: skip
from distile import masks
from distile.nn import MaskedConv2d

# The output channels and the stride of each pair of a depthwise and a pointwise convolution.
PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def smooth_mask(height: int, width: int, density: float) -> torch.Tensor:
    """A mask [1, height, width] of the largest values of a smooth field."""
    field = smooth_fields(1, height, width)
    return field > threshold(field, density)


def _conv(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> MaskedConv2d:
    return MaskedConv2d(
        channels, out, kernel, stride=stride, padding=kernel // 2, groups=groups, activation="relu"
    )


class MobileNet(Network):
    """Computes the pixels of a mask, whose size is half of the image's. A layer of fewer pixels computes those whose
    block has an active pixel."""

    def __init__(self, density=1.0, batch=1, zeros=0.9, pixels=224, width=32, pairs=PAIRS, classes=1000, seed=0):
        super().__init__()
        self.weight_zeros = zeros
        self.stem = _conv(3, width, 3, 2)
        self.pairs = nn.ModuleList()
        channels = width
        for out, stride in pairs:
            out = out * width // 32
            depthwise = _conv(channels, channels, 3, stride, channels)
            self.pairs.append(nn.ModuleList([depthwise, _conv(channels, out, 1)]))
            channels = out
        self.head = nn.Linear(channels, classes)
        randomise(self, seed)
        if zeros > 0:
            distile.prune(self.pairs, zeros)
        self.to(memory_format=torch.channels_last)
        self.buffers = Buffers()
        self.image = image(pixels, batch=batch)
        self.mask = smooth_mask(pixels // 2, pixels // 2, density).expand(batch, -1, -1).contiguous()
        self.masks: list[torch.Tensor] = []
        self.last: torch.Tensor | None = None

    def _masks(self):
        """The masks of the stem and of each pair."""
        found = [self.mask]
        for depthwise, _ in self.pairs:
            found.append(masks.pool(found[-1], 2) if depthwise.stride[0] == 2 else found[-1])
        return found

    def masked(self):
        self.masks = self._masks()
        with masks.fixed(*self.masks):
            x = self.stem(self.image, self.masks[0])
            for (depthwise, pointwise), mask in zip(self.pairs, self.masks[1:]):
                # Only active pixels of this are read.
                filtered = self.buffers.images("filtered", x, depthwise.out_channels, *mask.shape[1:])
                x = pointwise(depthwise(x, mask, out=filtered), mask)
        self.last = x
        return self.head(x.mean((2, 3)))

    def inputs(self):
        return (self.image, self.mask)

    def dense_inputs(self):
        return (self.image,)

    def _plain(self, x, given):
        x = where(given[0], conv(self.stem, x), 0.0)
        for pair, mask in zip(self.pairs, given[1:]):
            for layer in pair:
                x = where(mask, conv(layer, x), 0.0)
        return self.head(x.mean((2, 3)))

    def dense(self, x):
        return self._plain(x, [None] * (len(self.pairs) + 1))

    def expected(self):
        return self._plain(self.image, self.masks)

    def densities(self):
        return [mask.float().mean().item() for mask in self.masks]

    def cached_bytes(self):
        return self.buffers.bytes()

    def pictures(self):
        return {
            "input": self.image[0] / 2 + 0.5,
            "mask": self.mask[0].float(),
            "output": visible(self.last[0].mean(0)),
        }


class EncoderLayer(TokenLayer):
    """norm(x + attention(x)), and then norm(x + mlp(x)), for the tokens of a mask, which attend to each other."""

    def forward(self, x, mask):
        channels, tokens = x.shape[2], self.buffers.tokens
        sums = self.proj(self.attended(x, mask), mask, residual=x, out=tokens("sums", x, channels))
        x = self.norm1(sums, mask, out=tokens("between", x, channels))
        wide = self.up(x, mask, out=tokens("wide", x, 4 * channels))
        return self.norm2(self.down(wide, mask, residual=x, out=sums), mask, out=tokens("result", x, channels))

    def plain(self, x, mask=None):
        x = layer_norm(self.norm1, linear(self.proj, self.attended_plain(x, mask), x))
        return where(mask, layer_norm(self.norm2, linear(self.down, linear(self.up, x), x)), 0.0)


class Bert(Network):
    """The encoder. Its tokens that are not active are padding, or were dropped: the first ones are active."""

    def __init__(self, density=1.0, batch=1, zeros=0.8, tokens=128, channels=768, heads=12, layers=12, seed=0):
        super().__init__()
        self.weight_zeros = zeros
        self.buffers = Buffers()
        self.layers = nn.ModuleList(EncoderLayer(channels, heads, self.buffers, eps=1e-12) for _ in range(layers))
        randomise(self, seed)
        if zeros > 0:
            distile.prune(self.layers, zeros)
        generator = torch.Generator().manual_seed(seed + 1)
        self.tokens = torch.randn(batch, tokens, channels, generator=generator)
        self.mask = (torch.arange(tokens) < math.ceil(density * tokens)).expand(batch, -1).contiguous()

    def masked(self):
        x = self.tokens
        with masks.fixed(self.mask):
            for layer in self.layers:
                x = layer(x, self.mask)
        return torch.where(self.mask[..., None], x, 0.0)

    def inputs(self):
        return (self.tokens, self.mask)

    def vary(self):
        for tensor in self.inputs():
            tensor.copy_(tensor.roll(3, 1))

    def dense_inputs(self):
        return (self.tokens,)

    def dense(self, x):
        for layer in self.layers:
            x = layer.plain(x)
        return x

    def expected(self):
        x = self.tokens
        for layer in self.layers:
            x = layer.plain(x, self.mask)
        return x

    def densities(self):
        return [self.mask.float().mean().item()]

    def cached_bytes(self):
        return self.buffers.bytes()

    def pictures(self):
        side = self.tokens.shape[1]
        rows = self.mask[0].float()[None].expand(side // 4, side)
        return {"input": visible(self.tokens[0, :, :side].T), "tokens": rows}
