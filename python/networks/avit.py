"""A-ViT: a vision transformer whose tokens halt, each at a layer of its own. Sizes T and S.

Weights are random. A score for each layer is shifted so that as many tokens go on as the profile says.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from common import Buffers, Network, TokenLayer, image, layer_norm, linear, randomise, where
import distile
from distile import masks
from distile.nn import MaskedAttention

SIZES = {"T": (192, 3), "S": (384, 6)}
HALTED = 0.99  # A token halts when its scores add up to this.


class Layer(TokenLayer):
    """x + attention(norm(x)), and then x + mlp(norm(x)), for the tokens of a mask, which attend to each other."""

    def __init__(self, channels, heads, buffers):
        super().__init__(channels, heads, buffers, eps=1e-6)
        self.shift = 0.0  # A summand of its scores.

    def forward(self, x, mask):
        """Changes the active tokens of x. What others hold is not read."""
        channels, tokens = x.shape[2], self.buffers.tokens
        normalized = self.norm1(x, mask, out=tokens("normalized before attention", x, channels, scratch=True))
        self.proj(self.attended(normalized, mask), mask, residual=x, out=x)
        normalized = self.norm2(x, mask, out=tokens("normalized", x, channels))
        wide = self.up(normalized, mask, out=tokens("wide", x, 4 * channels))
        return self.down(wide, mask, residual=x, out=x)

    def plain(self, x, mask=None):
        x = linear(self.proj, self.attended_plain(layer_norm(self.norm1, x), mask), x)
        return where(mask, linear(self.down, linear(self.up, layer_norm(self.norm2, x)), x), 0.0)


class Halting(nn.Module):
    """Layers, and what halts tokens behind each, as distile.fuse takes them. They share their parameters."""

    def __init__(self, layers, factors, limits):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict(self._parts(layer)) for layer in layers)
        self.shifts = [layer.shift for layer in layers]
        for name, tensor in (("factors", factors), ("limits", limits)):
            self.register_buffer(name, tensor, persistent=False)

    @staticmethod
    def _parts(layer):
        attention = MaskedAttention.__new__(MaskedAttention)
        nn.Module.__init__(attention)
        attention.num_heads, attention.causal = layer.heads, False
        attention.qkv, attention.proj = layer.qkv, layer.proj
        return {"norm1": layer.norm1, "attention": attention, "norm2": layer.norm2, "up": layer.up, "down": layer.down}

    def forward(self, x, mask):
        """The sums [N, 1, C] for the class token, and the masks of the tokens that went on behind each layer."""
        totals, sums = torch.zeros_like(x[:, :, 0], dtype=torch.float32), torch.zeros_like(x[:, :1])
        found = []
        for number, (layer, shift) in enumerate(zip(self.layers, self.shifts)):
            x = layer["attention"](layer["norm1"](x, mask), mask, residual=x, out=x.clone())
            x = layer["down"](layer["up"](layer["norm2"](x, mask), mask), mask, residual=x, out=x.clone())
            ends = {"bias": math.inf} if number == len(self.layers) - 1 else {"bias": shift, "limits": self.limits}
            mask = masks.halt(x, self.factors, totals, mask, threshold=HALTED, sums=sums, **ends)
            found.append(mask)
        return sums, found


def halt(x, shift, mask, total, rest, result, layers, last):
    """The tokens that go on after a layer, their scores so far, what is left of 1, and the sum for the result. A token
    comes closer to its halt by its score, from 0 to 1: the first channel, as in A-ViT."""
    if last:
        score = torch.ones_like(total)
    else:
        score = torch.sigmoid(x[:, :, 0] * 2 + shift)
        score = torch.cat([score[:, :1].clamp(max=0.9 / layers), score[:, 1:]], 1)  # The class token stays.
    total = torch.where(mask, total + score, total)
    going = mask & (total < HALTED)
    part = torch.where(going, score, rest)[:, :1, None]
    return going, total, torch.where(going, rest - score, rest), result + part * x[:, :1]


class AViT(Network):
    bound = 1e-4
    in_a_stage = False  # Layers one by one take less time on an H200.
    fuses = False  # Whether distile.fuse makes the stage, also on a CPU.

    def __init__(self, size="S", density=0.5, batch=1, layers=12, pixels=224, patch=16, classes=1000, seed=0):
        super().__init__()
        channels, heads = SIZES[size]
        self.patches = nn.Conv2d(3, channels, patch, stride=patch)
        self.tokens = (pixels // patch) ** 2 + 1
        self.first = nn.Parameter(torch.zeros(1, 1, channels))
        self.positions = nn.Parameter(torch.zeros(1, self.tokens, channels))
        self.buffers, self.halt = Buffers(), halt
        # What a stage halts by: the weights of a score, and that the class token stays.
        self.factors, self.limits = torch.zeros(channels), torch.ones(self.tokens)
        self.factors[0], self.limits[0] = 2, 0.9 / layers
        self.layers = nn.ModuleList(Layer(channels, heads, self.buffers) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, classes)
        randomise(self, seed)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            self.first.copy_(torch.randn(self.first.shape, generator=generator))
            self.positions.copy_(torch.randn(self.positions.shape, generator=generator) * 0.3)
        self.image = image(pixels, batch=batch)
        self.masks: list[torch.Tensor] = []
        self.halting: list[nn.Module] = []
        self._calibrate(density)

    def _start(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), patches], 1) + self.positions

    def compile_between(self):
        self.halt = torch.compile(halt)

    def _halt(self, number, x, *sums):
        count = len(self.layers)
        shift = x.new_full((), self.layers[number].shift)
        return self.halt(x, shift, *sums, count, number == count - 1)

    def _run(self, x, block):
        """`block` computes a layer for the tokens of a mask."""
        x = self._start(x)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        total, rest, result = torch.zeros_like(x[:, :, 0]), torch.ones_like(x[:, :, 0]), torch.zeros_like(x[:, :1])
        for number, layer in enumerate(self.layers):
            x = block(number, layer, x, mask)
            mask, total, rest, result = self._halt(number, x, mask, total, rest, result)
        return self.head(self.norm(result[:, 0]))

    @torch.no_grad()
    def _calibrate(self, density):
        """Shifts the scores so that the share of tokens falls from 1 and has the mean density."""
        count, last = len(self.layers), max(2 * density - 1, 0.05)
        bend = (1 - last) / (1 - density) - 1 if density < 1 else 1  # The mean of a power's curve.
        wanted = 1 - (1 - last) * torch.linspace(0, 1, count, dtype=torch.float64) ** bend

        def calibrated(number, layer, x, mask):
            x = layer.plain(x, mask)
            if number == count - 1 or density >= 1:
                layer.shift = -100.0
                return x
            low, high = -60.0, 60.0
            for _ in range(60):
                middle = (low + high) / 2
                layer.shift = middle
                going, *_ = self._halt(number, x, mask, calibrated.total, calibrated.total, x[:, :1])
                low, high = (middle, high) if going.double().mean() > wanted[number + 1] else (low, middle)
            calibrated.total = self._halt(number, x, mask, calibrated.total, calibrated.total, x[:, :1])[1]
            return x

        calibrated.total = torch.zeros(len(self.image), self.tokens)
        self._run(self.image, calibrated)

    def masked(self):
        self.masks = []
        if self.in_a_stage:
            return self._staged()
        if self.fuses:
            return self._fused()

        def block(number, layer, x, mask):
            self.masks.append(mask)
            with masks.fixed(mask):
                return layer(x, mask)

        return self._run(self.image, block)

    def _staged(self):
        """All layers, and what halts behind each, in a stage, on a GPU that has them."""
        x = self._start(self.image)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        totals, sums = torch.zeros_like(x[:, :, 0], dtype=torch.float32), torch.zeros_like(x[:, :1])
        with self.buffers.stage():
            for number, layer in enumerate(self.layers):
                self.masks.append(mask)
                with masks.fixed(mask):
                    x = layer(x, mask)
                ends = {"bias": math.inf} if number == len(self.layers) - 1 else {"bias": layer.shift, "limits": self.limits}
                mask = masks.halt(x, self.factors, totals, mask, threshold=HALTED, sums=sums, **ends)
        return self.head(self.norm(sums[:, 0]))

    def fuse(self):
        """The layers and halts, as distile.fuse has them."""
        x = self._start(self.image)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        halting = Halting(self.layers, self.factors.to(x.device), self.limits.to(x.device)).eval()
        return distile.fuse(halting, (x, mask))

    def _fused(self):
        x = self._start(self.image)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if not self.halting:
            self.halting.append(self.fuse())  # In a list, because it has the layers of this network.
        sums, found = self.halting[0](x, mask)
        self.masks = [mask, *found[:-1]]
        return self.head(self.norm(sums[:, 0]))

    def dense_inputs(self):
        return (self.image,)

    def dense(self, x):
        x = self._start(x)
        for layer in self.layers:
            x = layer.plain(x)
        return self.head(self.norm(x[:, 0]))

    def dense_masked(self, x):
        return self._run(x, lambda number, layer, x, mask: layer.plain(x, mask))

    def expected(self):
        return self._run(self.image, lambda number, layer, x, mask: layer.plain(x, self.masks[number]))

    def densities(self):
        return [mask.float().mean().item() for mask in self.masks]

    def cached_bytes(self):
        return self.buffers.bytes()

    def pictures(self):
        side = round((self.tokens - 1) ** 0.5)
        depth = torch.stack(self.masks).float().mean(0)[0, 1:].view(side, side)
        return {
            "input": self.image[0] / 2 + 0.5,
            "tokens of the middle layer": self.masks[len(self.masks) // 2][0, 1:].view(side, side).float(),
            "layers until the halt": depth,
        }
