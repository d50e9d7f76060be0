"""Edits as SIGE itself computes them: its package `sige`, with its modules where its models have them.

A network's blocks become blocks of SIGE's modules with the same weights, and the graph stays. The masks are ours. The
block sizes, and which layers stay dense, are those of SIGE's models. Images are in its layout, [N, C, H, W] in memory.
Attention is PyTorch's, which SIGE's models are too old for.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from sige.nn import Gather, Scatter, ScatterGather, ScatterWithBlockResidual, SIGEConv2d, SIGEModel, SIGEModule
from torch import nn

from common import Network, layer_norm, linear, where
from distile.dense import ACTIVATIONS
from distile.masks import SharedMask
from distile.nn import MaskedConv2d, MaskedUpsampleConv2d
from editing import DownConv2d, Editor
from sige_ddpm import DDPM, AttentionBlock, ResBlock
from sige_gaugan import GauGAN, Spade, SpadeBlock, size_of
from sige_stable_diffusion import StableDiffusion, Transformer

BLOCK, POINTS = 6, 4  # What a block of 3x3 convolutions reads, and one of 1x1 convolutions.


def sparse_layers(network: Network):
    """Which layers SIGE's model computes by blocks: a function of their names."""
    if isinstance(network, StableDiffusion):
        return lambda name: name.startswith(("down", "up"))
    if isinstance(network, GauGAN):
        return lambda name: name.startswith("blocks") and int(name.split(".")[1]) >= 2
    if not isinstance(network, DDPM):
        raise NotImplementedError("SIGE has no such model")
    size, last = network.photos[0].shape[2], len(network.down) - 1

    def sparse(name):  # At 64 pixels and more, and after every upsampling.
        kind, level, part = (*name.split("."), "", "")[:3]
        if kind not in ("down", "up"):
            return False
        number = int(level) if kind == "down" else last - int(level)
        return size >> number >= 64 or (kind, part) == ("up", "change")

    return sparse


def block_size(layer: nn.Conv2d) -> int:
    """What a block of a layer reads, as SIGE's Gather rounds it."""
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    return POINTS if kernel == 1 else (BLOCK - kernel) // stride * stride + kernel


# ---- Blocks of SIGE's modules, made of ours -------------------------------------------------------


def _conv(sparse: bool, *layers: nn.Conv2d) -> nn.Conv2d:
    """One convolution with the outputs of several, one after the other."""
    first, outputs = layers[0], sum(layer.out_channels for layer in layers)
    window = dict(kernel_size=first.kernel_size, stride=first.stride, padding=first.padding)
    with torch.device("meta"):
        made = (SIGEConv2d if sparse else nn.Conv2d)(first.in_channels, outputs, bias=first.bias is not None, **window)
    for name in ("weight", "bias") if first.bias is not None else ("weight",):
        values = torch.cat([getattr(layer, name).detach() for layer in layers])
        setattr(made, name, nn.Parameter(values.clone(memory_format=torch.contiguous_format), requires_grad=False))
    return made


class _Norm(SIGEModule):
    """A norm with the statistics of the original, and an activation; a Gather or ScatterGather computes both."""

    def __init__(self, norm, link=None, activation="none"):
        super().__init__()
        if isinstance(norm, nn.GroupNorm):
            mean, variance = (each.repeat_interleave(norm.num_channels // norm.num_groups) for each in norm.statistics)
        else:
            mean, variance = norm.running_mean, norm.running_var
        scale = torch.rsqrt(variance + norm.eps) * (1 if norm.weight is None else norm.weight)
        shift = (0 if norm.bias is None else norm.bias) - mean * scale
        self.scale, self.shift = (each.detach().view(1, -1, 1, 1) for each in (scale, shift))
        self.link, self.activation = link, ACTIVATIONS[activation]

    def add(self, summand):
        """From now on, it is the norm of its input plus this."""
        self.shift = self.shift + summand * self.scale

    def forward(self, x):
        if self.link is not None and self.mode == "sparse":
            return self.link(x, self.scale, self.shift)
        x = x if self.link is None else self.link(x)
        return self.activation(x * self.scale + self.shift)


class _ResBlock(SIGEModule):
    def __init__(self, block, sparse):
        super().__init__()
        self.time, self.shortcut, self.points = block.time, None, None
        self.conv1, self.conv2 = _conv(sparse, block.conv1), _conv(sparse, block.conv2)
        gather = Gather(self.conv1, BLOCK, activation_name="swish") if sparse else None
        between = ScatterGather(gather, activation_name="swish") if sparse else None
        self.norm1, self.norm2 = _Norm(block.norm1, gather, "silu"), _Norm(block.norm2, between, "silu")
        self.scatter = Scatter(gather) if sparse else torch.add
        if block.shortcut is not None:
            self.shortcut = _conv(sparse, block.shortcut)
            if sparse:
                self.points = Gather(self.shortcut, POINTS)
                self.scatter = ScatterWithBlockResidual(gather, self.points)

    def forward(self, editor, x, time):
        if self.time is not None:  # In the pass over the original.
            self.norm2.add(self.time(F.silu(time))[:, :, None, None])
            self.time = None
        shortcut = x if self.points is None else self.points(x)
        shortcut = shortcut if self.shortcut is None else self.shortcut(shortcut)
        return self.scatter(self.conv2(self.norm2(self.conv1(self.norm1(x)))), shortcut)


class _AttentionBlock(SIGEModule):
    def __init__(self, block, sparse):
        super().__init__()
        self.qkv, self.proj = _conv(sparse, block.qkv), _conv(sparse, block.proj)
        gather = Gather(self.qkv, POINTS) if sparse else None
        self.norm = _Norm(block.norm, gather)
        self.gather = Gather(self.proj, POINTS) if sparse else nn.Identity()
        self.scatter1 = Scatter(gather) if sparse else nn.Identity()
        self.scatter2 = Scatter(self.gather) if sparse else torch.add

    def forward(self, editor, x):
        qkv = self.scatter1(self.qkv(self.norm(x))).flatten(2).transpose(1, 2)
        found = F.scaled_dot_product_attention(*(part[:, None] for part in qkv.chunk(3, 2)))[:, 0]
        return self.scatter2(self.proj(self.gather(found.transpose(1, 2).reshape(x.shape))), x)


class _Transformer(SIGEModule):
    """The tokens of the blocks attend to those of the whole image, whose keys and values are computed again."""

    def __init__(self, block, sparse):
        super().__init__()
        self.block, self.text = block, None
        self.enter, self.leave = _conv(sparse, block.enter), _conv(sparse, block.leave)
        gather = Gather(self.enter, POINTS) if sparse else None
        self.norm = _Norm(block.norm, gather)
        self.scatter1 = Scatter(gather) if sparse else nn.Identity()
        self.scatter2 = Scatter(gather) if sparse else torch.add

    def forward(self, editor, x, context):
        block, found = self.block, self.enter(self.norm(x))
        whole = self.scatter1(found)  # `found` itself, if that is the image already.
        of_query, of_key, of_value = block.qkv.weight.chunk(3)
        tokens, normal = _tokens(found, len(x)), layer_norm(block.norm1, _tokens(whole, len(x)))
        query = F.linear(normal if whole is found else layer_norm(block.norm1, tokens), of_query)
        attended = self._attend(query, F.linear(normal, of_key), F.linear(normal, of_value))
        tokens = linear(block.proj1, attended, tokens)
        if self.text is None:
            self.text = block.key_value(context).chunk(2, 2)
        query = linear(block.query, layer_norm(block.norm2, tokens))
        tokens = linear(block.proj2, self._attend(query, *self.text), tokens)
        wide, gate = linear(block.up, layer_norm(block.norm3, tokens)).chunk(2, 2)
        tokens = linear(block.down, wide * F.gelu(gate), tokens)
        tokens = tokens.reshape(len(found), -1, tokens.shape[2]).transpose(1, 2)
        return self.scatter2(self.leave(tokens.reshape(found.shape)), x)

    def _attend(self, *parts):
        heads = (part.unflatten(2, (self.block.heads, -1)).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)


def _tokens(blocks: torch.Tensor, batch: int) -> torch.Tensor:
    """Images, or blocks of images, as tokens [batch, T, C]."""
    return blocks.flatten(2).transpose(1, 2).reshape(batch, -1, blocks.shape[1])


class _Spade(SIGEModule):
    """The factors and summands of a Spade, by one convolution, and the norm that they follow."""

    def __init__(self, spade, link=None, blocks=None):
        super().__init__()
        self.conv, self.norm = _conv(blocks is not None, spade.factor, spade.summand), _Norm(spade.norm, link)
        self.blocks = nn.Identity() if blocks is None else blocks

    def forward(self, x, hidden):
        factor, summand = self.blocks(self.conv(hidden)).chunk(2, 1)
        return self.norm(x) * factor + summand


class _SpadeBlock(SIGEModule):
    def __init__(self, block, sparse):
        super().__init__()
        spades = [spade for spade in (block.first, block.second, block.norm) if spade is not None]
        self.shared, self.shortcut = _conv(sparse, *(spade.shared for spade in spades)), None
        self.conv1, self.conv2 = _conv(sparse, block.conv1), _conv(sparse, block.conv2)
        if block.shortcut is not None:
            self.shortcut = _conv(sparse, block.shortcut)
        if not sparse:
            self.gather = self.between = nn.Identity()
            self.spades = nn.ModuleList(map(_Spade, spades))
            self.scatter = torch.add
            return
        self.gather, main = Gather(self.shared, BLOCK), Gather(self.conv1, BLOCK)
        self.between, self.scatter = ScatterGather(self.gather), Scatter(main)
        links = [(main, ScatterGather(self.gather)), (ScatterGather(main), ScatterGather(self.gather))]
        if self.shortcut is not None:
            points = Gather(self.shortcut, POINTS)
            links.append((points, nn.Sequential(Scatter(self.gather), points)))
            self.scatter = ScatterWithBlockResidual(main, points)
        self.spades = nn.ModuleList(_Spade(spade, *link) for spade, link in zip(spades, links))

    def forward(self, editor, x, classes):
        hidden = self.between(F.relu(self.shared(self.gather(classes[size_of(x)])))).chunk(len(self.spades), 1)
        first, second, *last = self.spades
        shortcut = self.shortcut(last[0](x, hidden[2])) if last else x
        h = self.conv1(F.relu(first(x, hidden[0])))
        return self.scatter(self.conv2(F.relu(second(h, hidden[1]))), shortcut)


class _Resample(SIGEModule):
    """A convolution with stride 2, or after nearest upsampling."""

    def __init__(self, layer, sparse):
        super().__init__()
        self.conv, self.upsample = _conv(sparse, layer), isinstance(layer, MaskedUpsampleConv2d)
        self.pads, self.sparse = isinstance(layer, DownConv2d), sparse
        self.gather = Gather(self.conv, block_size(layer)) if sparse else nn.Identity()
        self.scatter = Scatter(self.gather) if sparse else nn.Identity()

    def forward(self, x):
        x = self.gather(F.interpolate(x, scale_factor=2.0, mode="nearest") if self.upsample else x)
        if self.pads and not (self.sparse and self.mode == "sparse"):  # There the Gather pads.
            x = F.pad(x, (0, 1, 0, 1))
        return self.scatter(self.conv(x))


FORMS = {
    ResBlock: _ResBlock,
    AttentionBlock: _AttentionBlock,
    Transformer: _Transformer,
    SpadeBlock: _SpadeBlock,
    DownConv2d: _Resample,
    MaskedUpsampleConv2d: _Resample,
    MaskedConv2d: lambda layer, sparse: _Resample(layer, sparse) if sparse else _conv(False, layer),
}


def _take_forms(module: nn.Module, sparse, path: str = "") -> None:
    for name, child in module.named_children():
        form = FORMS.get(type(child))
        if form is None:
            _take_forms(child, sparse, f"{path}{name}.")
        else:
            module._modules[name] = form(child, sparse(path + name))


# ---- What surrounds the blocks, and what the whole must compute -----------------------------------


def _own_norm(layer, x):
    return ACTIVATIONS[layer.activation](F.group_norm(x, layer.num_groups, layer.weight, layer.bias, layer.eps))


class _Around:
    """Stands for an Editor: calls the blocks, and computes what is around them dense, as SIGE's models do."""

    def __init__(self):
        self._kept: dict[object, torch.Tensor] = {}

    def unedited(self, key, compute):
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    def conv(self, layer, x):
        return layer(x)

    down = upsampled_conv = conv

    def read_around(self, *_):
        pass

    def group_norm(self, layer, x):
        return _own_norm(layer, x)

    def join(self, key, tensors):
        return torch.cat(tensors, 1)

    def upsampled(self, key, x):
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


class _Expected(Editor):
    """Runs all layers of our network dense; those that SIGE computes by blocks keep what is outside of the blocks."""

    def __init__(self, network, sparse):
        super().__init__()
        self.mode, self.kept, self.constants = "expected", network.editor.kept, network.editor.constants
        named = network.named_modules()
        self._blocks = {layer for name, layer in named if isinstance(layer, nn.Conv2d) and sparse(name)}
        self._last = getattr(network, "norm", None)  # It takes statistics of its own.

    def _run(self, key, dense, masked, keep=None):
        if key not in self._blocks:
            return dense()
        kept, stride = self.kept[key], key.stride[0]
        edited = self.shared.at(*(stride * extent for extent in kept.shape[2:]))
        return where(computed(edited, key, block_size(key))[:, : kept.shape[2], : kept.shape[3]], dense(), kept)

    def group_norm(self, layer, x):
        return _own_norm(layer, x) if layer is self._last else super().group_norm(layer, x)


def computed(edited: torch.Tensor, layer: nn.Conv2d, block: int) -> torch.Tensor:
    """The outputs of a layer, [N, H, W] and a bit more, in the blocks that read an edited pixel."""
    kernel, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding[0]
    outputs = (block - kernel) // stride + 1
    found = F.max_pool2d(F.pad(edited.float(), (padding, block, padding, block)), block, outputs * stride) > 0
    return found.repeat_interleave(outputs, 1).repeat_interleave(outputs, 2)


class Sige:
    """A network by SIGE's package. It has weights and state of its own."""

    def __init__(self, network: Network):
        sparse = sparse_layers(network)
        if network.original[0].dtype != torch.float32:
            raise NotImplementedError("SIGE computes in float32 alone")
        self.network, self._expected, self._model = network, _Expected(network, sparse), SIGEModel()
        shared = {id(parameter): parameter for parameter in network.parameters()}
        own = copy.deepcopy(network, {**shared, id(network.editor): _Around()})
        _take_forms(own, sparse)
        self._model.network = own
        own.graph(*(tensor.contiguous() for tensor in network.original))
        self._sizes = {tuple(module.input_res) for module in own.modules() if isinstance(module, Gather)}
        self._model.set_mode("sparse")
        self.prepare()

    def prepare(self) -> None:
        """Brings the edited input in SIGE's layout, outside the timed step."""
        self._inputs = [tensor.contiguous() for tensor in self.network.edited]

    def __call__(self, *_):
        shared = SharedMask(self.network.edit_mask())
        self._model.set_masks({size: shared.at(*size)[0] for size in self._sizes})
        return self._model.network.graph(*self._inputs)

    def expected(self):
        editor, self.network.editor = self.network.editor, self._expected
        self._expected.edit(self.network.edit_mask())
        try:
            return self.network.graph(*self.network.edited)
        finally:
            self.network.editor = editor
