"""What the networks share: the interface that the runner times, densities by layer, plain layers, buffers."""

from __future__ import annotations

import contextlib
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import distile
from distile.dense import ACTIVATIONS
from distile.nn import MaskedLayerNorm, MaskedLinear, MaskUnit, Weighted

ops = torch.ops.distile
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# The percentage of active pixels of each residual block of a trained DynConv pose network, in execution order:
# model s0125 on MPII, from the README of DynConv (Thomas Verelst, MIT licence).
DYNCONV_DENSITIES = (
    11, 6, 0, 58, 0, 75, 77, 72, 64, 63, 80, 97, 62, 37, 26, 1, 21, 25, 33, 42, 66, 31, 61, 46, 87, 97, 42, 31, 22, 1,
    14, 18, 27, 31, 32, 27, 59, 45, 95, 50, 34, 31, 21, 0, 4, 10, 28, 15, 29, 26, 51, 47, 58, 44, 20, 21, 13,
)  # fmt: skip


class Network(nn.Module):
    """A network with random weights that runs in three ways, on the input that it holds.

    `masked()` is a step of inference as an application makes it, masks included. `dense_inputs()` and `dense(*inputs)`
    are the same network without masks, in PyTorch alone: the peer. `expected()` is what the last masked() must have
    computed: every layer dense, and then the mask. The largest difference is at most `bound` times the largest value.
    """

    bound = 1e-4
    repeatable = True
    """Whether a second step with the same input computes as much as the first."""
    weight_zeros = 0.0
    """The share of the weights of pruned layers that are 0."""
    teams = False
    """Whether it has residual blocks that teams of a GPU's blocks compute (distile.stage_teams)."""
    keeps = False
    """Whether results stay from step to step, of which expected() takes what a step does not compute."""

    def prepare(self) -> None:
        """Brings the next input, outside the timed step."""

    def compile_between(self) -> None:
        """Compiles what PyTorch computes between the masked layers, if that takes time."""

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The tensors that masked() reads at each step, masks included. A CUDA graph of it reads what they hold when it
        is replayed."""
        return self.dense_inputs()

    def vary(self) -> None:
        """Brings other values into inputs(), and so other masks."""
        for tensor in self.inputs():
            shifted = tensor.roll(max(1, tensor.shape[1] // 7), 1) if tensor.dim() == 3 else tensor.roll((5, 5), (2, 3))
            tensor.copy_(shifted)

    def masked(self):
        raise NotImplementedError

    def functional(self) -> nn.Module:
        """A module of the same layers that computes a masked step of an image, and writes into nothing that it is given:
        distile.fuse takes it."""
        raise NotImplementedError("the network has no form without buffers")

    def dense_inputs(self) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def dense(self, *inputs):
        raise NotImplementedError

    def dense_masked(self, *inputs):
        """What masked() computes of inputs(), masks included, by dense layers: the network's dense form. What masked()
        keeps from step to step is then as if that had run, as far as it makes a difference."""
        raise NotImplementedError("the network has no dense form with masks of its own")

    def expected(self):
        raise NotImplementedError

    def densities(self) -> list[float]:
        """The share of active pixels in each block of the last masked()."""
        raise NotImplementedError

    def cached_bytes(self) -> int:
        """The memory that masked() keeps from step to step, without the weights."""
        return 0

    def pictures(self) -> dict[str, torch.Tensor]:
        """Images [3, H, W] or [H, W] from 0 to 1, by caption: input, mask, output."""
        raise NotImplementedError


def move(thing, device: str, dtype: torch.dtype | None = None):
    """Moves a network with all tensors that it holds, in place; a tensor, or a collection of them, as a copy. With a
    type, numbers become of that type; statistics of norms, which are buffers or are called so, stay float32."""
    if isinstance(thing, torch.Tensor):
        return thing.to(device, dtype if thing.is_floating_point() and dtype else thing.dtype)
    if isinstance(thing, (list, tuple)):
        return type(thing)(move(item, device, dtype) for item in thing)
    if isinstance(thing, dict):
        return {key: move(item, device, dtype) for key, item in thing.items()}
    if isinstance(thing, nn.Module):
        for parameter in thing.to(device).parameters():
            parameter.data = move(parameter.data, device, dtype)
        for module in thing.modules():
            held = {key: item for key, item in vars(module).items() if not key.startswith("_")}
            kept = {key: move(item, device, None if key == "statistics" else dtype) for key, item in held.items()}
            vars(module).update(kept)
    elif type(thing).__module__ in HOLDERS:
        vars(thing).update({key: move(item, device, dtype) for key, item in vars(thing).items()})
    return thing


HOLDERS = (__name__, "distile.changes", "editing")  # Objects of these modules hold tensors.


class Dense(nn.Module):
    """The dense form of a network, for compilers and exporters; with `masked`, that with its masks."""

    def __init__(self, network: Network, masked: bool = False):
        super().__init__()
        self.network, self._masked = network, masked

    def forward(self, *inputs):
        return self.network.dense_masked(*inputs) if self._masked else self.network.dense(*inputs)


class Functional(nn.Module):
    """The blocks of a network, in the form that each has without buffers, as one function of the input. `compute` is
    given the input and a function of a block and its input."""

    def __init__(self, network: Network, kind: type, compute):
        super().__init__()
        blocks = [block for block in network.modules() if isinstance(block, kind)]
        self.blocks = nn.ModuleList(block.functional() for block in blocks)
        self.network, self._compute, self._of = network, compute, dict(zip(blocks, self.blocks))

    def forward(self, x):
        return self._compute(x, lambda block, x, **_: self._of[block](x))


def tensors_of(result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def error(network: Network, result, expected) -> float:
    """The largest difference of two results, over the largest value expected."""
    largest = 0.0
    for actual, right in zip(tensors_of(result), tensors_of(expected), strict=True):
        scale = right.float().abs().max().clamp(min=1e-30)
        difference = (actual.float() - right.float()).abs().max() / scale
        largest = max(largest, math.inf if difference.isnan() else difference.item())
    return largest


def profile(blocks: int, mean: float) -> list[float]:
    """Densities of `blocks` blocks with this mean: DynConv's, interpolated to the number of blocks and bent."""
    if mean >= 1:
        return [1.0] * blocks
    given = torch.tensor(DYNCONV_DENSITIES, dtype=torch.float64) / 100
    drawn = F.interpolate(given[None, None], size=blocks, mode="linear", align_corners=True)[0, 0].clamp(0.002, 0.998)
    low, high = 1e-3, 1e3
    for _ in range(60):  # The exponent of the bend.
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (drawn**middle).mean() > mean else (low, middle)
    return (drawn**low).tolist()


def mask_of(unit: MaskUnit, x: torch.Tensor) -> torch.Tensor:
    """The mask of a unit in PyTorch, written as a sum, which compilers join with what comes before."""
    scored = x[..., :: unit.stride, :: unit.stride].float()
    return (scored * unit.weight.float()[:, None, None]).sum(1) + unit.bias > unit.threshold


def threshold(scores: torch.Tensor, density: float) -> float:
    """A threshold that the fraction `density` of the scores exceeds. It lies between two scores, so that rounding does
    not change the mask."""
    ordered = scores.flatten().sort(descending=True).values
    kept = round(density * len(ordered))
    if kept == len(ordered):
        return -math.inf
    return math.inf if kept == 0 else float((ordered[kept] + ordered[kept - 1]) / 2)


@torch.no_grad()
def train(unit: MaskUnit, x: torch.Tensor, density: float) -> torch.Tensor:
    """Sets a mask unit's weights and threshold, and returns its mask. The weights come from ridge regression to a smooth
    field, since trained units select regions and random weights scatter pixels; the threshold gives the density."""
    features = x[..., :: unit.stride, :: unit.stride].permute(0, 2, 3, 1)
    field = smooth_fields(*features.shape[:3]).flatten()
    features = features.flatten(0, 2).double()
    square = features.T @ features
    square.diagonal().add_(RIDGE * square.diagonal().mean())
    weight = torch.linalg.solve(square, features.T @ field)
    unit.weight.copy_(weight / weight.norm())
    scores = unit.scores(x)
    unit.threshold = threshold(scores, density)
    return scores > unit.threshold


RIDGE = 1e-3  # Relative to the mean square of a channel.


def smooth_fields(batch: int, height: int, width: int, waves: int = 3) -> torch.Tensor:
    """Sums of random waves, at most `waves` over an image, [batch, height, width]; the same field at each
    resolution."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, waves + 1, waves + 1)
    sizes, phases = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    field = torch.zeros(batch, height, width, dtype=torch.float64)
    down, across = ((torch.arange(size, dtype=torch.float64) + 0.5) / size for size in (height, width))
    for y in range(waves + 1):
        for x in range(waves + 1):
            angles = phases[:, y, x, None, None] + (y * down[:, None] + x * across) / 2
            field += sizes[:, y, x, None, None] * torch.cos(2 * math.pi * angles)
    return field - field.mean((1, 2), keepdim=True)


def image(size: int, batch: int = 1, name: str = "sige_church_original") -> torch.Tensor:
    """A photo of data/masks, [batch, 3, size, size] from -1 to 1. Without Pillow it is noise, with a part of its own in
    any other than the first photo."""
    try:
        import numpy
        from PIL import Image
    except ImportError:
        noise = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
        if name != "sige_church_original":
            noise[:, :, size // 3 : size // 2, size // 4 : size // 2] *= -1
        return nhwc(noise)
    photo = Image.open(REPOSITORY / "data" / "masks" / f"{name}.png").convert("RGB")
    if photo.size != (size, size):
        photo = photo.resize((size, size), Image.Resampling.BOX)
    pixels = torch.from_numpy(numpy.asarray(photo).copy()).permute(2, 0, 1).float() / 127.5 - 1
    return nhwc(torch.stack([pixels.roll(17 * number, 2) for number in range(batch)]))


def real_mask(name: str, *size: int) -> torch.Tensor:
    """A mask of data/masks, [1, height, width], at a fraction of its resolution."""
    import numpy

    mask = torch.from_numpy(numpy.load(REPOSITORY / "data" / "masks" / f"{name}.npy") != 0)[None]
    return F.adaptive_max_pool2d(mask.float(), size) > 0


def nhwc(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def visible(tensor: torch.Tensor) -> torch.Tensor:
    """A picture of values: from 0 to 1 between their 2nd and 98th percentile."""
    flat = tensor.detach().float().flatten()
    low, high = (flat.kthvalue(max(1, int(share * flat.numel()))).values for share in (0.02, 0.98))
    return ((tensor.float() - low) / (high - low + 1e-12)).clamp(0, 1)


def store_weights(network: Network, dtype: torch.dtype) -> None:
    """Stores the weights of masked layers in 16 bits. What PyTorch alone computes reads the same values in float32."""
    distile.cast_weights(network, dtype)
    for layer in network.modules():
        if isinstance(layer, Weighted):
            layer.wide = layer.weight.detach().float()


def weight_of(layer: nn.Module) -> torch.Tensor:
    return getattr(layer, "wide", layer.weight)


def conv(layer: nn.Conv2d, input: torch.Tensor, residual=None) -> torch.Tensor:
    """A masked convolution as PyTorch alone computes it, dense."""
    result = F.conv2d(input, weight_of(layer), layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    return ACTIVATIONS[getattr(layer, "activation", "none")](result if residual is None else result + residual)


def linear(layer: nn.Linear, input: torch.Tensor, residual=None) -> torch.Tensor:
    """A masked linear layer as PyTorch alone computes it, dense."""
    result = F.linear(input, weight_of(layer), layer.bias)
    return ACTIVATIONS[getattr(layer, "activation", "none")](result if residual is None else result + residual)


def layer_norm(layer: nn.LayerNorm, input: torch.Tensor) -> torch.Tensor:
    """A masked layer norm as PyTorch alone computes it, dense."""
    return F.layer_norm(input, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def where(mask: torch.Tensor | None, new: torch.Tensor, old) -> torch.Tensor:
    """The new values at active pixels or tokens, the old ones elsewhere; without a mask, the new ones."""
    return new if mask is None else torch.where(mask.unsqueeze(1 if new.dim() == 4 else -1), new, old)


class Buffers:
    """Tensors for results that the next layers consume, allocated once. Inactive pixels hold anything."""

    def __init__(self):
        self.dense_by_pytorch = False
        self._kept: dict[tuple, torch.Tensor] = {}

    def images(
        self, role: str, like: torch.Tensor, channels: int, height: int, width: int, border: int = 0, scratch: bool = False
    ) -> torch.Tensor:
        border = 0 if self.dense_by_pytorch else border  # Peers want their tensors contiguous.
        key = (role, like.shape[0], channels, height, width, border, like.dtype, like.device)
        if key not in self._kept:
            self._kept[key] = distile.bordered(like, channels, height, width, border, scratch)
        return self._kept[key]

    def stage(self):
        """A context in which our layers run in one launch where a device can; not those of peers, and none that
        torch.compile traces."""
        alone = self.dense_by_pytorch or torch.compiler.is_compiling()
        return contextlib.nullcontext() if alone else distile.stage()

    def tokens(self, role: str, like: torch.Tensor, channels: int, scratch: bool = False) -> torch.Tensor:
        """With `scratch`, a stage may compute other tokens, too, which spares it the wait for a new mask."""
        key = (role, *like.shape[:2], channels, like.dtype, like.device)
        if key not in self._kept:
            self._kept[key] = torch.zeros((*like.shape[:2], channels), dtype=like.dtype, device=like.device)
            distile.mark_scratch(self._kept[key], scratch)
        return self._kept[key]

    def everywhere(self, like: torch.Tensor, height: int, width: int) -> torch.Tensor | None:
        """A mask of every pixel, for dense layers; None if they are PyTorch's, as always on a GPU."""
        if like.is_cuda or self.dense_by_pytorch:
            return None
        key = ("everywhere", like.shape[0], height, width)
        if key not in self._kept:
            self._kept[key] = torch.ones((like.shape[0], height, width), dtype=torch.bool, device=like.device)
        return self._kept[key]

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._kept.values())


class TokenLayer(nn.Module):
    """The parts of a transformer's layer, whose active tokens attend to each other."""

    def __init__(self, channels: int, heads: int, buffers: Buffers, eps: float):
        super().__init__()
        self.heads, self.buffers = heads, buffers
        self.norm1, self.norm2 = MaskedLayerNorm(channels, eps=eps), MaskedLayerNorm(channels, eps=eps)
        self.qkv, self.proj = MaskedLinear(channels, 3 * channels), MaskedLinear(channels, channels)
        self.up = MaskedLinear(channels, 4 * channels, activation="gelu")
        self.down = MaskedLinear(4 * channels, channels)

    def attended(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What the active tokens see of each other, before the projection."""
        channels, tokens = x.shape[2], self.buffers.tokens
        query, key, value = self._split(self.qkv(x, mask, out=tokens("parts", x, 3 * channels, scratch=True)))
        attended = tokens("attended", x, channels)
        heads = attended.unflatten(2, (self.heads, -1)).transpose(1, 2)
        ops.attention_into(query, key, value, mask, mask, into=heads)
        return attended

    def attended_plain(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """What attended() makes, as PyTorch alone computes it; without a mask, of all tokens."""
        query, key, value = self._split(linear(self.qkv, x))
        keys = None if mask is None else mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=keys)
        return attended.transpose(1, 2).reshape(x.shape)

    def _split(self, qkv):
        batch, tokens, _ = qkv.shape
        return (part.transpose(1, 2) for part in qkv.view(batch, tokens, 3, self.heads, -1).unbind(2))


@torch.no_grad()
def randomise(network: nn.Module, seed: int) -> None:
    """Draws weights that keep the size of activations."""
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear, nn.ConvTranspose2d)):
            fan_in = layer.weight[0].numel()
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * math.sqrt(2 / fan_in))
            if layer.bias is not None:
                layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) * 0.02)
