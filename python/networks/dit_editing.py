"""Region editing in a diffusion transformer: the tokens of the edit run through all blocks and attend to all tokens,
whose keys and values are kept from the original. Weights are random.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from common import randomise, real_mask, visible
from distile.nn import MaskedLayerNorm, MaskedLinear
from editing import EditedNetwork


class Block(nn.Module):
    """x + gate * attention(norm(x)), and then x + gate * mlp(norm(x)). The condition gives norms and gates."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(channels, 6 * channels)
        self.norm1, self.norm2 = (MaskedLayerNorm(channels, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = MaskedLinear(channels, 3 * channels), MaskedLinear(channels, channels)
        self.up, self.down = (
            MaskedLinear(channels, 4 * channels, activation="gelu"),
            MaskedLinear(4 * channels, channels),
        )

    def forward(self, editor, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, 1)
        normalized = editor.layer_norm(self.norm1, x, 1 + scale1[0], shift1[0])
        parts = editor.linear(self.qkv, normalized).chunk(3, 2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = editor.attention((self, "attention"), query, key, value).transpose(1, 2).flatten(2)
        change = editor.multiply((self, "gate1"), editor.linear(self.proj, attended), gate1[:, None])
        x = editor.add((self, "sum1"), change, x)
        wide = editor.linear(self.up, editor.layer_norm(self.norm2, x, 1 + scale2[0], shift2[0]))
        change = editor.multiply((self, "gate2"), editor.linear(self.down, wide), gate2[:, None])
        return editor.add((self, "sum2"), change, x)


class DiT(EditedNetwork):
    """A transformer over side * side tokens, each a patch of 2 x 2 latents with 16 channels."""

    def __init__(self, side=64, channels=1536, heads=24, blocks=24, device="cpu", dtype=torch.float32, seed=0):
        super().__init__()
        self.bound = 1e-4 if dtype == torch.float32 else 5e-2
        self.enter = nn.Linear(64, channels)
        self.positions = nn.Parameter(torch.zeros(1, side * side, channels))
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(blocks))
        self.leave = MaskedLinear(channels, 64)
        randomise(self, seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.positions.copy_(torch.randn(self.positions.shape, generator=generator))
            for block in self.blocks:
                block.modulation.weight.mul_(0.3)
        self.condition = torch.randn(1, channels, generator=generator).to(device, dtype)
        self.to(device, dtype)
        self.side = side
        self.mask = real_mask("sige_church_256", side, side).to(device)
        latents = torch.randn(1, side * side, 64, generator=generator)
        edited = torch.where(self.mask.flatten(1)[..., None].cpu(), torch.randn(latents.shape, generator=generator), latents)
        self.editor.tokens_of(side, side)
        self.start((latents.to(device, dtype),), (edited.to(device, dtype),))

    def inputs(self):
        return (*self.edited, self.mask)

    def edit_mask(self):
        return self.mask

    def graph(self, latents):
        editor, condition = self.editor, F.silu(self.condition)
        x = self.enter(latents) + self.positions
        for block in self.blocks:
            x = block(editor, x, condition)
        return editor.linear(self.leave, x)

    def pictures(self):
        def patches(tokens):
            return visible(tokens[0, :, :3].T.unflatten(1, (self.side, self.side)).cpu())

        return {
            "edited latents": patches(self.edited[0]),
            "mask of the edit": self.mask[0].float().cpu(),
            "output": patches(self.editor.kept[self.leave]),
        }
