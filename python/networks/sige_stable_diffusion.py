"""SIGE: the UNet of Stable Diffusion 1, on 64 x 64 latents and an edited region. Weights are random."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from common import nhwc, randomise, real_mask, visible
from distile.nn import MaskedConv2d, MaskedLayerNorm, MaskedLinear, MaskedUpsampleConv2d
from editing import EditedNetwork, as_images, as_tokens
from sige_ddpm import ResBlock, norm


class Transformer(nn.Module):
    """Self-attention to all pixels, attention to the text, and a gated linear unit. Each adds to its input."""

    def __init__(self, channels, heads, context):
        super().__init__()
        self.heads = heads
        self.norm, self.enter = norm(channels, "none"), MaskedConv2d(channels, channels, 1)
        self.norm1, self.norm2, self.norm3 = (MaskedLayerNorm(channels) for _ in range(3))
        self.qkv, self.proj1 = MaskedLinear(channels, 3 * channels, bias=False), MaskedLinear(channels, channels)
        self.query, self.proj2 = MaskedLinear(channels, channels, bias=False), MaskedLinear(channels, channels)
        self.key_value = nn.Linear(context, 2 * channels, bias=False)
        self.up, self.down = MaskedLinear(channels, 8 * channels), MaskedLinear(4 * channels, channels)
        self.leave = MaskedConv2d(channels, channels, 1)

    def _heads(self, tokens):
        return tokens.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, editor, x, context):
        tokens = as_tokens(editor.conv(self.enter, editor.group_norm(self.norm, x)))
        parts = editor.linear(self.qkv, editor.layer_norm(self.norm1, tokens)).chunk(3, 2)
        attended = editor.attention((self, "self"), *(self._heads(part) for part in parts))
        tokens = editor.linear(self.proj1, attended.transpose(1, 2).flatten(2), tokens)
        query = editor.linear(self.query, editor.layer_norm(self.norm2, tokens))
        key, value = editor.unedited(self.key_value, lambda: self.key_value(context)).chunk(2, 2)
        attended = editor.attention((self, "text"), *(self._heads(part) for part in (query, key, value)))
        tokens = editor.linear(self.proj2, attended.transpose(1, 2).flatten(2), tokens)
        wide, gate = editor.linear(self.up, editor.layer_norm(self.norm3, tokens)).chunk(2, 2)
        tokens = editor.linear(self.down, editor.multiply((self, "*"), wide, gate, "gelu"), tokens)
        return editor.conv(self.leave, as_images(tokens, x), x)


class StableDiffusion(EditedNetwork):
    bound = 1e-4

    def __init__(self, size=64, channels=320, multiples=(1, 2, 4, 4), heads=8, context=768, text=77, seed=0):
        super().__init__()
        time, widths = 4 * channels, [channels * multiple for multiple in multiples]
        self.time1, self.time2 = nn.Linear(channels, time), nn.Linear(time, time)
        self.enter = MaskedConv2d(4, channels, 3, padding=1)
        self.down, self.up, skips, wide = nn.ModuleList(), nn.ModuleList(), [channels], channels

        def stage(before, width, last):
            blocks = [ResBlock(wide, width, time, 1e-5) for wide in before]
            attend = [] if last else [Transformer(width, heads, context) for _ in before]
            return nn.ModuleDict({"blocks": nn.ModuleList(blocks), "attentions": nn.ModuleList(attend)})

        for number, width in enumerate(widths):
            last = number == len(widths) - 1
            self.down.append(stage([wide, width], width, last))
            if not last:
                self.down[-1]["change"] = MaskedConv2d(width, width, 3, stride=2, padding=1)
            skips += [width, width] if last else [width, width, width]
            wide = width
        self.middle = nn.ModuleList(
            [ResBlock(wide, wide, time, 1e-5), Transformer(wide, heads, context), ResBlock(wide, wide, time, 1e-5)]
        )
        for number, width in reversed(list(enumerate(widths))):
            before = []
            for _ in range(3):
                before.append(wide + skips.pop())
                wide = width
            self.up.append(stage(before, width, number == len(widths) - 1))
            if number:
                self.up[-1]["change"] = MaskedUpsampleConv2d(width, width, 3, padding=1)
        self.norm, self.leave = norm(wide, epsilon=1e-5), MaskedConv2d(wide, 4, 3, padding=1)
        randomise(self, seed)
        self.to(memory_format=torch.channels_last)
        generator = torch.Generator().manual_seed(seed)
        latents = torch.randn(1, 4, size, size, generator=generator)
        self.text = torch.randn(1, text, context, generator=generator)
        self.mask = real_mask("sige_church_256", size, size)
        edited = torch.where(self.mask[:, None], torch.randn(latents.shape, generator=generator), latents)
        self.start((nhwc(latents), self.text), (nhwc(edited), self.text))

    def inputs(self):
        return (*self.edited, self.mask)

    def edit_mask(self):
        return self.mask

    def graph(self, x, text):
        editor, half = self.editor, self.time1.in_features // 2

        def embedded():
            angles = 400 * torch.exp(torch.arange(half, device=x.device) * (-9.21 / half))
            return self.time2(F.silu(self.time1(torch.cat([angles.cos(), angles.sin()])[None].to(x.dtype))))

        time = editor.unedited(self.time2, embedded)
        x = editor.conv(self.enter, x)
        skips = [x]

        def block(stage, number, x):
            x = stage["blocks"][number](editor, x, time)
            return stage["attentions"][number](editor, x, text) if len(stage["attentions"]) else x

        for stage in self.down:
            for number in range(2):
                x = block(stage, number, x)
                skips.append(x)
            if "change" in stage:
                x = editor.conv(stage["change"], x)
                skips.append(x)
        first, attention, second = self.middle
        x = second(editor, attention(editor, first(editor, x, time), text), time)
        for stage in self.up:
            for number in range(3):
                x = block(stage, number, editor.join((stage["blocks"][number], "join"), [x, skips.pop()]))
            if "change" in stage:
                x = editor.upsampled_conv(stage["change"], x)
        return editor.conv(self.leave, editor.group_norm(self.norm, x))

    def pictures(self):
        return {
            "edited latents": visible(self.edited[0][0, :3]),
            "mask of the edit": self.mask[0].float(),
            "output": visible(self.editor.kept[self.leave][0, :3]),
        }
