"""Video by differences: a ResNet-18 backbone that recomputes, in each frame, what the changed pixels reach.

Every layer keeps its activations. The difference of two frames is a mask; mask algebra carries it through the layers;
after a block, pixels whose value did not change leave it. The result is that of dense recomputation, of a frame in
which pixels that differ by no more than a threshold keep the value that they had when they were last computed.
Weights are random.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from common import Network, conv, nhwc, randomise, visible
from distile import Changes, Planner, masks
from distile.nn import MaskedConv2d, MaskedMaxPool2d

ops = torch.ops.distile


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
        self.layer, self.result, self.mask = layer, None, None

    def reached(self, changed, size):
        layer = self.layer
        return masks.affected_output(
            changed, size, kernel=layer.kernel_size, stride=layer.stride, padding=layer.padding
        )

    def forward(self, x, mask=None, residual=None):
        """All pixels without a mask."""
        more = () if residual is None else (residual,)
        if mask is None:
            everywhere = torch.ones(1, 1, 1, dtype=torch.bool, device=x.device)
            kernel, stride, padding = (
                _pair(getattr(self.layer, name)) for name in ("kernel_size", "stride", "padding")
            )
            size = [(x.shape[2 + i] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1)]
            everywhere = everywhere.expand(x.shape[0], *size).contiguous()
            self.mask, self.result = everywhere, self.layer(x, everywhere, *more)
        else:
            self.mask = mask
            self.layer(x, mask, *more, out=self.result)
        return self.result


def _pair(value):
    return (value, value) if isinstance(value, int) else value


class Block(nn.Module):
    """relu(shortcut + convolution(relu(convolution)))"""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = Kept(MaskedConv2d(channels, out, 3, stride=stride, padding=1, activation="relu"))
        self.second = Kept(MaskedConv2d(out, out, 3, padding=1, activation="relu"))
        needs_shortcut = stride != 1 or channels != out
        self.shortcut = Kept(MaskedConv2d(channels, out, 1, stride=stride)) if needs_shortcut else None

    def forward(self, x, changed=None, planner=None):
        """The result, and the mask of its changes."""
        if changed is None:
            shortcut = x if self.shortcut is None else self.shortcut(x)
            return self.second(self.first(x), residual=shortcut), None
        size = self.first.result.shape[2:]
        first = self.first.reached(changed, size)
        self.first(x, first)
        through = changed if self.shortcut is None else self.shortcut.reached(changed, size)
        if self.shortcut is not None:
            x = self.shortcut(x, through)
        second = self.second.reached(first, size) | through
        with masks.fixed(second):
            # The results of the frame before, where they are about to be computed again.
            before = planner.next(second, self.second.result.shape[1], dtype=x.dtype)
            ops.activate.out(self.second.result, second, out=before)
            result = self.second(self.first.result, second, x)
        return result, masks.difference(result, before) & second

    def plain(self, x):
        shortcut = x if self.shortcut is None else conv(self.shortcut.layer, x)
        return conv(self.second.layer, conv(self.first.layer, x), shortcut)


class VideoResNet(Network):
    repeatable = False

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
        self.number, self.changed, self.planner = 0, None, None
        self.frame = scene(size, 0, objects)
        self.changes = Changes(threshold)
        self.changes.update(self.frame)
        with torch.no_grad():
            self._run(self.changes.frame, None)

    def _run(self, frame, changed):
        if changed is None:
            x = self.pool(self.stem(frame))
        else:
            changed = self.stem.reached(changed, self.stem.result.shape[2:])
            x = self.stem(frame, changed)
            changed = self.pool.reached(changed, self.pool.result.shape[2:])
            x = self.pool(x, changed)
        for block in self.blocks:
            x, changed = block(x, changed, self.planner)
        return x

    def prepare(self):
        self.number += 1
        self.frame.copy_(scene(self.size, self.number, self.objects))

    def inputs(self):
        return (self.frame, self.changes.frame)

    def vary(self):
        self.prepare()

    def masked(self):
        if self.planner is None:  # On the device of the network, which may have moved.
            self.planner = Planner(buffers=2, device=self.frame.device)
        with masks.fixed():
            self.changed = self.changes.update(self.frame)
            return self._run(self.changes.frame, self.changed)

    def dense_inputs(self):
        return (self.frame,)

    def dense(self, x):
        pool = self.pool.layer
        x = nn.functional.max_pool2d(conv(self.stem.layer, x), pool.kernel_size, pool.stride, pool.padding)
        for block in self.blocks:
            x = block.plain(x)
        return x

    def expected(self):
        return self.dense(self.changes.frame)

    def densities(self):
        return [layer.mask.float().mean().item() for layer in self.modules() if isinstance(layer, Kept)]

    def cached_bytes(self):
        kept = [layer.result for layer in self.modules() if isinstance(layer, Kept)]
        buffers = 0 if self.planner is None else self.planner.nbytes
        return sum(tensor.numel() * tensor.element_size() for tensor in kept) + buffers

    def pictures(self):
        return {
            "frame": self.frame[0],
            "changed pixels": self.changed[0].float(),
            "output": visible(self.blocks[-1].second.result[0].mean(0)),
        }
