"""SIGE: the DDPM UNet for churches of 256 x 256 pixels, on a photo and its edit.

The mask is the difference of the two photos, dilated. Weights are random.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from common import image, nhwc, randomise, visible
from distile import masks
from distile.nn import MaskedConv2d, MaskedGroupNorm, MaskedUpsampleConv2d
from editing import DownConv2d, EditedNetwork, as_images, as_tokens


def norm(channels, activation="silu", epsilon=1e-6):
    return MaskedGroupNorm(min(32, channels // 4), channels, eps=epsilon, activation=activation)


class ResBlock(nn.Module):
    """x + conv(norm(conv(norm(x)) + time)); each norm ends in a silu."""

    def __init__(self, channels, out, time, epsilon=1e-6):
        super().__init__()
        self.norm1, self.conv1 = norm(channels, epsilon=epsilon), MaskedConv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2, self.conv2 = norm(out, epsilon=epsilon), MaskedConv2d(out, out, 3, padding=1)
        self.shortcut = MaskedConv2d(channels, out, 1) if channels != out else None

    def forward(self, editor, x, time):
        shift = editor.unedited(self.time, lambda: self.time(F.silu(time))[:, :, None, None])
        h = editor.conv(self.conv1, editor.group_norm(self.norm1, x), shift=shift)
        shortcut = x if self.shortcut is None else editor.conv(self.shortcut, x)
        return editor.conv(self.conv2, editor.group_norm(self.norm2, h), shortcut)


class AttentionBlock(nn.Module):
    """x + projection(attention(norm(x))), with one head. The edited pixels attend to all."""

    def __init__(self, channels):
        super().__init__()
        self.norm = norm(channels, "none")
        self.qkv, self.proj = MaskedConv2d(channels, 3 * channels, 1), MaskedConv2d(channels, channels, 1)

    def forward(self, editor, x):
        qkv = as_tokens(editor.conv(self.qkv, editor.group_norm(self.norm, x)))
        query, key, value = (part[:, None] for part in qkv.chunk(3, 2))
        attended = editor.attention(self, query, key, value)
        return editor.conv(self.proj, as_images(attended[:, 0], x), x)


class Level(nn.Module):
    """The blocks of one resolution, and its change to the next one."""

    def __init__(self, blocks, attentions, change):
        super().__init__()
        self.blocks, self.attentions, self.change = nn.ModuleList(blocks), nn.ModuleList(attentions), change


class DDPM(EditedNetwork):
    bound = 1e-4

    def __init__(self, size=256, channels=128, multiples=(1, 1, 2, 2, 4, 4), attention_at=(16,), seed=0):
        super().__init__()
        time = 4 * channels
        self.time1, self.time2 = nn.Linear(channels, time), nn.Linear(time, time)
        self.enter = MaskedConv2d(3, channels, 3, padding=1)
        widths, skips, resolution = [channels * multiple for multiple in multiples], [channels], size
        self.down, self.up, wide = nn.ModuleList(), nn.ModuleList(), channels
        for number, width in enumerate(widths):
            blocks = [ResBlock(wide if block == 0 else width, width, time) for block in range(2)]
            attend = [AttentionBlock(width) for _ in range(2 if resolution in attention_at else 0)]
            last, wide = number == len(widths) - 1, width
            self.down.append(Level(blocks, attend, None if last else DownConv2d(width, width)))
            skips += [width, width] if last else [width, width, width]
            resolution = resolution if last else resolution // 2
        self.middle = nn.ModuleList([ResBlock(wide, wide, time), AttentionBlock(wide), ResBlock(wide, wide, time)])
        for number, width in reversed(list(enumerate(widths))):
            blocks = []
            for _ in range(3):
                blocks.append(ResBlock(wide + skips.pop(), width, time))
                wide = width
            attend = [AttentionBlock(width) for _ in range(3 if resolution in attention_at else 0)]
            self.up.append(Level(blocks, attend, MaskedUpsampleConv2d(width, width, 3, padding=1) if number else None))
            resolution *= 2
        self.norm, self.leave = norm(wide), MaskedConv2d(wide, 3, 3, padding=1)
        randomise(self, seed)
        self.to(memory_format=torch.channels_last)
        noise = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))
        self.photos = [image(size, name=f"sige_church_{name}") for name in ("original", "edited")]
        self.start(*((nhwc(0.8 * photo + 0.6 * noise),) for photo in self.photos))

    def inputs(self):
        return (*self.edited, *self.photos)

    def edit_mask(self):
        """The pixels that differ by more than .01 of the range of values, dilated by 5."""
        return masks.dilate(masks.difference(*self.photos, 0.02), self._radius())

    def plain_edit_mask(self):
        before, after = (photo.float() for photo in self.photos)
        radius = self._radius()
        changed = ((before - after).abs() > 0.02).any(1).float()
        for axis in (1, 2):  # The compiler makes a kernel of each.
            window = [1, 1]
            window[axis - 1] = 2 * radius + 1
            changed = F.max_pool2d(changed, window, 1, [extent // 2 for extent in window])
        return changed > 0

    def _radius(self):
        return 5 * self.photos[0].shape[2] // 256

    def graph(self, x):
        editor, half = self.editor, self.time1.in_features // 2

        def embedded():
            angles = 400 * torch.exp(torch.arange(half, device=x.device) * (-9.21 / (half - 1)))
            return self.time2(F.silu(self.time1(torch.cat([angles.sin(), angles.cos()])[None].to(x.dtype))))

        time = editor.unedited(self.time2, embedded)
        x = editor.conv(self.enter, x)
        skips = [x]
        for level in self.down:
            for number, block in enumerate(level.blocks):
                x = block(editor, x, time)
                x = level.attentions[number](editor, x) if level.attentions else x
                skips.append(x)
            if level.change is not None:
                x = editor.down(level.change, x)
                skips.append(x)
        first, attention, second = self.middle
        x = second(editor, attention(editor, first(editor, x, time)), time)
        for level in self.up:
            for number, block in enumerate(level.blocks):
                x = block(editor, editor.join((block, "join"), [x, skips.pop()]), time)
                x = level.attentions[number](editor, x) if level.attentions else x
            if level.change is not None:
                x = editor.upsampled_conv(level.change, x)
        return editor.conv(self.leave, editor.group_norm(self.norm, x))

    def pictures(self):
        return {
            "edited input": self.photos[1][0] / 2 + 0.5,
            "mask of the edit": self.edit_mask()[0].float(),
            "output": visible(self.editor.kept[self.leave][0]),
        }
