"""Video by differences: a ResNet-18 backbone that recomputes, in each frame, what the changed pixels reach.

Every layer keeps its activations. The difference of two frames is a mask, and mask algebra carries it through the layers.
The result is that of dense recomputation, of a frame in which pixels that differ by no more than a threshold keep the
value that they had when they were last computed. Weights are random.
"""

from __future__ import annotations

import math

import torch
from torch import nn

import distile
from common import Buffers, Network, conv, nhwc, randomise, visible, where
from distile import Changes, masks
from distile.nn import MaskedConv2d, MaskedMaxPool2d


def scene(size: int, number: int, objects: int = 4) -> torch.Tensor:
    """A frame [1, 3, size, size] from 0 to 1, in steps of 1/255: objects that move over a background that does not."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    frame = torch.stack([0.35 + 0.25 * y, 0.4 + 0.1 * torch.sin(9 * x + 4 * y), 0.55 - 0.2 * y * x])
    frame += 0.05 * torch.sin(61 * x) * torch.sin(53 * y)
    for index in range(objects):
        phase = number * (0.03 + 0.01 * index) + 2 * index
        at_x, at_y = 0.5 + 0.38 * math.cos(phase), 0.5 + 0.36 * math.sin(0.7 * phase + index)
        radius = 0.035 + 0.012 * index
        if index % 2:
            distance = torch.maximum((x - at_x).abs(), (y - at_y).abs())
        else:
            distance = ((x - at_x) ** 2 + (y - at_y) ** 2).sqrt()
        covered = ((radius - distance) * size + 0.5).clamp(0, 1)
        colour = torch.tensor([0.9, 0.2 + 0.2 * index, 0.15 * index])[:, None, None]
        frame = frame * (1 - covered) + colour * covered
    return nhwc(((frame * 255).round() / 255)[None])


class Kept(nn.Module):
    """A layer and its last result. It recomputes the pixels that a change reaches."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.result = layer, None
        self.changed, self.grown = None, 0

    def mask(self) -> torch.Tensor:
        """The pixels of the last step."""
        return masks.dilate(self.changed, self.grown)

    def forward(self, x, changed, residual=None, grown=0):
        """Computes the pixels that are at most `grown` rows and columns from those of a mask."""
        self.changed, self.grown = changed, grown
        more = () if residual is None else (residual,)
        if self.result is None:
            self.result = self.layer(x, changed, *more)
            return self.result
        mask = changed
        if grown:  # A stage finds these pixels itself.
            mask = masks.needed_input(changed, changed.shape[1:], kernel=2 * grown + 1, padding=grown)
        self.layer(x, mask, *more, out=self.result)
        return self.result

    def hold(self, border):
        """Brings the result into memory with a border of zeros, unless it is."""
        if getattr(self.result, "_distile_border", 0) != border:
            held = distile.bordered(self.result, *self.result.shape[1:], border)
            self.result = held.copy_(self.result)


class Block(nn.Module):
    """relu(shortcut + convolution(relu(convolution)))"""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = Kept(MaskedConv2d(channels, out, 3, stride=stride, padding=1, activation="relu"))
        self.second = Kept(MaskedConv2d(out, out, 3, padding=1, activation="relu"))
        needs_shortcut = stride != 1 or channels != out
        self.shortcut = Kept(MaskedConv2d(channels, out, 1, stride=stride)) if needs_shortcut else None

    def forward(self, x, changed, grown):
        """The pixels of the first convolution are those of a mask, grown; its successor's are one further."""
        with masks.fixed():
            first = self.first(x, changed, grown=grown)
            shortcut = x if self.shortcut is None else self.shortcut(x, changed, grown=grown)
            return self.second(first, changed, shortcut, grown + 1)

    def dense(self, x, compute):
        """`compute` is given a layer, its input and a residual."""
        shortcut = x if self.shortcut is None else compute(self.shortcut, x)
        return compute(self.second, compute(self.first, x), shortcut)


def _dense(kept: Kept, x, residual=None):
    layer = kept.layer
    if isinstance(layer, MaskedMaxPool2d):
        return nn.functional.max_pool2d(x, layer.kernel_size, layer.stride, layer.padding)
    return conv(layer, x, residual)


def _dense_and_kept(kept: Kept, x, residual=None):
    result = _dense(kept, x, residual)
    kept.result.copy_(result)
    return result


def _reached(changed: torch.Tensor, kernel: int, stride: int, padding: int) -> torch.Tensor:
    """The outputs that read a changed pixel."""
    size = [(extent + 2 * padding - kernel) // stride + 1 for extent in changed.shape[1:]]
    return masks.affected_output(changed, size, kernel=kernel, stride=stride, padding=padding)


def _first(pair) -> int:
    return pair if isinstance(pair, int) else pair[0]


class VideoResNet(Network):
    repeatable = False
    keeps = True

    def __init__(self, size=512, blocks=(2, 2, 2, 2), width=64, threshold=0.0, objects=4, seed=0):
        super().__init__()
        self.stem = Kept(MaskedConv2d(3, width, 7, stride=2, padding=3, activation="relu"))
        self.pool = Kept(MaskedMaxPool2d(3, stride=2, padding=1))
        self.blocks = nn.ModuleList()
        channels = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                self.blocks.append(Block(channels, width << stage, 2 if stage and number == 0 else 1))
                channels = width << stage
        randomise(self, seed)
        self.to(memory_format=torch.channels_last)
        self.size, self.objects = size, objects
        self.number, self.changed, self.buffers = 0, None, Buffers()
        self.frame = scene(size, 0, objects)
        self.changes = Changes(threshold)
        with torch.no_grad():
            self._run()

    def _run(self):
        """Computes what the changed pixels of the frame reach."""
        with masks.fixed():
            self.changed = changed = self.changes.update(self.frame)
            layer = self.stem.layer
            changed = _reached(changed, layer.kernel_size[0], layer.stride[0], layer.padding[0])
            x = self.stem(self.changes.frame, changed)
            layer = self.pool.layer
            changed = _reached(changed, *(_first(n) for n in (layer.kernel_size, layer.stride, layer.padding)))
            x = self.pool(x, changed)
            # Where the first convolution of each resolution computes. What they read comes from there, grown by a pixel
            # with each convolution.
            starts, grown = [], 0
            for block in self.blocks:
                stride = block.first.layer.stride[0]
                if not starts or stride > 1:
                    changed = _reached(changed, 3 + 2 * grown, stride, 1 + grown)
                    starts.append((changed, 0))
                    grown = 1
                else:
                    starts.append((changed, grown + 1))
                    grown += 2
            with self.buffers.stage():
                for block, start in zip(self.blocks, starts):
                    x = block(x, *start)
        return x

    def prepare(self):
        self.number += 1
        self.frame.copy_(scene(self.size, self.number, self.objects))

    def inputs(self):
        return (self.frame, self.changes.frame)

    def vary(self):
        self.prepare()

    def masked(self):
        for layer in self._layers():  # Where the network is now: it may have moved.
            layer.hold(0 if self.buffers.dense_by_pytorch else 1)
        return self._run()

    def _layers(self):
        return [layer for layer in self.modules() if isinstance(layer, Kept)]

    def dense_inputs(self):
        return (self.frame,)

    def dense(self, x, compute=_dense):
        x = compute(self.pool, compute(self.stem, x))
        for block in self.blocks:
            x = block.dense(x, compute)
        return x

    def dense_masked(self, frame, kept):
        changed = ((frame.float() - kept.float()).abs() > self.changes.threshold).any(1)
        kept.copy_(where(changed, frame, kept))
        return self.dense(kept, _dense_and_kept)

    def expected(self):
        return self.dense(self.changes.frame)

    def densities(self):
        return [layer.mask().float().mean().item() for layer in self._layers()]

    def cached_bytes(self):
        return sum(layer.result.numel() * layer.result.element_size() for layer in self._layers())

    def pictures(self):
        return {
            "frame": self.frame[0],
            "changed pixels": self.changed[0].float(),
            "output": visible(self.blocks[-1].second.result[0].mean(0)),
        }
