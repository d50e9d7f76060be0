"""SIGE: the GauGAN generator for street scenes of 256 x 512 pixels, on a map of classes and its edit.

Weights are random. The leaky ReLUs of the original are ReLUs here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from common import nhwc, randomise, real_mask
from distile.nn import MaskedBatchNorm2d, MaskedConv2d
from editing import EditedNetwork


class Spade(nn.Module):
    """A batch norm whose factors and summands come from the map of classes, and a ReLU."""

    def __init__(self, channels, classes, hidden):
        super().__init__()
        self.norm = MaskedBatchNorm2d(channels, affine=False)
        self.shared = MaskedConv2d(classes, hidden, 3, padding=1, activation="relu")
        self.factor = MaskedConv2d(hidden, channels, 3, padding=1)
        self.summand = MaskedConv2d(hidden, channels, 3, padding=1)

    def forward(self, editor, x, classes, activation):
        classes = classes[size_of(x)]
        hidden = editor.conv(self.shared, classes)
        product = editor.multiply((self, "*"), editor.batch_norm(self.norm, x), editor.conv(self.factor, hidden))
        return editor.add((self, "+"), product, editor.conv(self.summand, hidden), activation)


class SpadeBlock(nn.Module):
    """shortcut + convolution(spade(convolution(spade)))"""

    def __init__(self, channels, out, classes, hidden):
        super().__init__()
        middle = min(channels, out)
        self.first, self.second = Spade(channels, classes, hidden), Spade(middle, classes, hidden)
        self.conv1, self.conv2 = MaskedConv2d(channels, middle, 3, padding=1), MaskedConv2d(middle, out, 3, padding=1)
        self.norm = Spade(channels, classes, hidden) if channels != out else None
        self.shortcut = MaskedConv2d(channels, out, 1, bias=False) if channels != out else None

    def forward(self, editor, x, classes):
        shortcut = x
        if self.shortcut is not None:
            shortcut = editor.conv(self.shortcut, self.norm(editor, x, classes, "none"))
        h = editor.conv(self.conv1, self.first(editor, x, classes, "relu"))
        return editor.conv(self.conv2, self.second(editor, h, classes, "relu"), shortcut)


class GauGAN(EditedNetwork):
    bound = 1e-4

    def __init__(self, size=(256, 512), channels=64, classes=36, hidden=128, seed=0):
        super().__init__()
        self.widths = [16 * channels] * 3 + [channels * multiple for multiple in (8, 4, 2, 1)]
        self.enter = MaskedConv2d(classes, self.widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(
            SpadeBlock(before, after, classes, hidden)
            for before, after in zip([self.widths[0], *self.widths[:-1]], self.widths)
        )
        self.leave = MaskedConv2d(channels, 3, 3, padding=1)
        randomise(self, seed)
        with torch.no_grad():
            self.leave.weight.mul_(0.3)
            for layer in self.modules():
                if isinstance(layer, Spade):
                    layer.factor.weight.mul_(0.3)
                    layer.factor.bias.add_(1)  # GauGAN multiplies by 1 + factor.
        self.to(memory_format=torch.channels_last).eval()
        self.mask = real_mask("sige_sd_inpaint_512x1024", *size)
        street = street_scene(*size, classes)
        edited = torch.where(self.mask, classes // 2, street)
        self.start((one_hot(street, classes),), (one_hot(edited, classes),))

    def inputs(self):
        return (*self.edited, *self.original)

    def edit_mask(self):
        return (self.edited[0] != self.original[0]).any(1)

    def graph(self, classes):
        editor = self.editor
        resolutions = [classes]
        for _ in range(5):
            resolutions.append(F.interpolate(resolutions[-1], scale_factor=0.5, mode="nearest"))
        by_size = {size_of(resolution): resolution for resolution in resolutions}
        x = editor.conv(self.enter, resolutions[-1])
        for number, block in enumerate(self.blocks):
            x = block(editor, x, by_size)
            if number != 1 and number < len(self.blocks) - 1:
                x = editor.upsampled((block, "upsampled"), x)
        editor.read_around(x)  # By the convolution, past the ReLU.
        return torch.tanh(editor.conv(self.leave, F.relu(x)))

    def pictures(self):
        classes = self.edited[0].shape[1]
        return {
            "edited classes": self.edited[0][0].argmax(0) / classes,
            "mask of the edit": self.edit_mask()[0].float(),
            "output": torch.tanh(self.editor.kept[self.leave][0]) / 2 + 0.5,
        }


def size_of(images: torch.Tensor) -> tuple[int, int]:
    """Height and width, as numbers also for an exporter that traces shapes."""
    return int(images.shape[2]), int(images.shape[3])


def one_hot(classes: torch.Tensor, count: int) -> torch.Tensor:
    return nhwc(F.one_hot(classes, count).permute(0, 3, 1, 2).float())


def street_scene(height: int, width: int, classes: int) -> torch.Tensor:
    """A drawn map of classes [1, height, width]: sky, houses, a road, and things on it."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    scene = torch.full((height, width), 1 % classes)
    for number in range(9):
        inside = (x > number / 9) & (x < (number + 0.9) / 9) & (y > 0.2 + 0.03 * (number * 5 % 7)) & (y < 0.6)
        scene[inside] = (2 + number % 4) % classes
    scene[(y > 0.6) & ((x - 0.5).abs() < y - 0.35)] = 7 % classes
    scene[((x - 0.42) ** 2 + (y - 0.75) ** 2) < 0.004] = 8 % classes
    return scene[None]
