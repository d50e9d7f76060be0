"""Masked layers as DynConv and SIGE compute them, in PyTorch: gather, a dense layer on what was gathered, scatter.

DynConv gathers the active pixels, and for larger kernels the pixels around each; the layer is a matrix product. SIGE
gathers tiles of output pixels, with the pixels around them that a convolution reads. Both run the same networks as
distile, with the masks that distile makes. Indices of a mask are made once a step, and every layer gathers and scatters.
"""

from __future__ import annotations

import contextlib
import sys
import types

import torch
import torch.nn.functional as F

from common import Buffers, Network, nhwc
from distile import forms
from distile.dense import ACTIVATIONS
from distile.masks import SharedMask
from editing import EditedNetwork

TILE = 4  # SIGE's: convolutions of 3x3 pixels read 6x6.


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Images or tokens as [pixels, C]; a copy if channels are not innermost."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).reshape(-1, _channels(tensor))


def _channels(tensor: torch.Tensor) -> int:
    return tensor.shape[1] if tensor.dim() == 4 else tensor.shape[-1]


def _list(outside: torch.Tensor) -> torch.Tensor:
    return outside.flatten().nonzero()[:, 0]


def _zeros(x, weight, bias, mask, *_):
    """Images for the result of a convolution."""
    return nhwc(x.new_zeros(len(mask), len(weight), *mask.shape[1:]))


class _Operator:
    """The form `out` of an operator; and the functional one, if networks call it."""

    def __init__(self, out, empty=None):
        self.out, self._empty = out, empty

    def into(self, *tensors, into, **keywords):
        self.out(*tensors, **keywords, out=into)

    def __call__(self, input, *others, **keywords):
        if self._empty is None:
            raise NotImplementedError(f"{self.out.__name__[1:]} without `out` has no gathered form")
        return self.out(input, *others, **keywords, out=self._empty(input, *others))


class Operators:
    """Stands for torch.ops.distile: the operators that networks call, by gathering. The others are distile's."""

    def __init__(self, tile: int):
        self.tile = tile
        self._made: dict[tuple, tuple] = {}  # In a step, of a mask.
        self._tables: dict[tuple, tuple] = {}
        self._callers = None  # Modules that call distile's operators, each with the names by which it does.
        self.conv2d, self.upsample_conv2d = _Operator(self._conv2d, _zeros), _Operator(self._upsample_conv2d)
        self.max_pool2d, self.upsample_nearest = _Operator(self._max_pool2d), _Operator(self._upsample_nearest)
        self.add, self.multiply = _Operator(self._add), _Operator(self._multiply)
        self.activate, self.group_norm = _Operator(self._activate), _Operator(self._group_norm)
        self.linear = _Operator(self._linear, lambda x, weight, *_: x.new_zeros(*x.shape[:-1], len(weight)))
        self.layer_norm = _Operator(self._layer_norm, lambda x, *_: torch.zeros_like(x))
        # [N, heads, T, C] in the order of [N, T, heads, C] in memory, as ours.
        self.attention = _Operator(self._attention, lambda x, *_: x.new_zeros(x.transpose(1, 2).shape).transpose(1, 2))
        self.attention_inference = self.attention

    def __getattr__(self, name):
        ours = self.__dict__.get(name.removesuffix("_into"))
        return getattr(torch.ops.distile, name) if ours is None else ours.into

    @contextlib.contextmanager
    def in_place_of_ours(self):
        """A step of a network in this context calls these operators."""
        if self._callers is None:
            distiles = {"ops": torch.ops.distile, "form": forms.form, "into": forms.into}
            modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
            self._callers = [
                (module, names) for module in modules if module is not forms
                and (names := {name: thing for name, thing in distiles.items() if vars(module).get(name) is thing})
            ]
        ours = {"ops": self, "form": lambda name: getattr(self, name), "into": lambda name: getattr(self, name).into}
        for module, names in self._callers:
            vars(module).update((name, ours[name]) for name in names)
        self._made.clear()
        try:
            yield
        finally:
            for module, names in self._callers:
                vars(module).update(names)

    # ---- Indices, made once for each mask of a step ---------------------------------------------

    def _once(self, make, mask, *key):
        place = (make.__name__, mask.data_ptr(), mask.shape, *key)
        if place not in self._made:
            self._made[place] = mask, make(mask, *key)  # The mask stays, so no other gets its memory.
        return self._made[place][1]

    def _pixels(self, mask):
        return mask.flatten().nonzero()[:, 0]

    def _tiles(self, mask):
        """Image, row and column of the active tiles."""
        tile = self.tile
        return (mask if tile == 1 else F.max_pool2d(mask.float(), tile, ceil_mode=True)).nonzero().unbind(1)

    def _written(self, mask):
        """The pixels of the tiles, one tile after the other; and which of a tile's pixels the image has, if not all."""
        if self.tile == 1:
            return self._once(self._pixels, mask), None
        image, row, column = self._once(self._tiles, mask)
        height, width = mask.shape[1:]
        inner = torch.arange(self.tile, device=mask.device)
        rows, columns = (row[:, None] * self.tile + inner)[:, :, None], (column[:, None] * self.tile + inner)[:, None]
        index = ((image[:, None, None] * height + rows) * width + columns).flatten()
        inside = ((rows < height) & (columns < width)).flatten()
        return (index, None) if inside.all() else (index[inside], inside)

    def _read(self, mask, *window):
        """The pixels of an image that the tiles read, one after the other; those outside it, if there are any: a list of
        their places, or on a GPU, where the length of a list is waited for, a mask; and [tiles, rows, columns]."""
        if self.tile > 1:
            index, outside = self._places(self._once(self._tiles, mask), mask.device, *window)
            return index.flatten(), _list(outside), index.shape
        pixels = self._once(self._pixels, mask)
        key = (mask.shape, mask.device, *window)
        if key not in self._tables:  # Tables of all pixels, made once for all masks.
            index, outside = self._places(self._tiles(torch.ones_like(mask)), mask.device, *window)
            same = index.shape[1:] == (1, 1) and bool((index.flatten() == torch.arange(len(index)).to(index)).all())
            self._tables[key] = None if same else index, outside if outside.any() else None
        index, outside = self._tables[key]
        if index is None:
            return pixels, None, (len(pixels), 1, 1)
        if outside is not None:
            outside = outside.index_select(0, pixels)
            outside = outside.view(-1, 1) if mask.is_cuda else _list(outside)
        return index.index_select(0, pixels).flatten(), outside, (len(pixels), *index.shape[1:])

    def _places(self, tiles, device, height, width, kernel, stride, padding, dilation, scale):
        """The pixels that tiles read, [tiles, rows, columns], of an image as if upsampled before; and which of them are
        outside it."""
        image, *origins = tiles
        places, inside = [], []
        for axis, extent in ((0, height), (1, width)):
            if self.tile == 1:
                taps = torch.arange(kernel[axis], device=device) * dilation[axis]
            else:
                reach = (self.tile - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1
                taps = torch.arange(reach, device=device)
            place = (origins[axis] * self.tile * stride[axis] - padding[axis])[:, None] + taps
            inside.append((place >= 0) & (place < extent * scale[axis]))
            places.append((place // scale[axis]).clamp(0, extent - 1))
        index = (image[:, None, None] * height + places[0][:, :, None]) * width + places[1][:, None]
        return index, ~(inside[0][:, :, None] & inside[1][:, None])

    # ---- The operators --------------------------------------------------------------------------

    def _gather(self, input, mask, fill, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), scale=(1, 1)):
        """What the tiles read, [tiles, rows, columns, C], with `fill` outside of the image."""
        window = (tuple(pair) for pair in (kernel, stride, padding, dilation, scale))
        index, outside, shape = self._once(self._read, mask, *input.shape[2:], *window)
        rows = _rows(input).index_select(0, index)
        if outside is not None and outside.dtype == torch.bool:
            rows.masked_fill_(outside, fill)
        elif outside is not None and len(outside):
            rows.index_fill_(0, outside, fill)
        return rows.view(*shape, input.shape[1])

    def _scatter(self, rows, index, residual, activation, out):
        if residual is not None:
            rows = rows + _rows(residual).index_select(0, index)
        target = (out.permute(0, 2, 3, 1) if out.dim() == 4 else out).view(-1, _channels(out))
        target.index_copy_(0, index, ACTIVATIONS[activation](rows).to(target.dtype))
        return out

    def _conv2d(
        self, input, weight, bias, mask, residual=None, *, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1),
        groups=1, activation="none", place=0, zero=False, scale=(1, 1), out,
    ):  # fmt: skip
        kernel = weight.shape[2:]
        tiles = self._gather(input, mask, 0, kernel, stride, padding[::2], dilation, scale)
        index, inside = self._once(self._written, mask)
        if len(tiles) == 0:
            return out
        if self.tile == 1 and groups == 1:
            rows = F.linear(tiles.flatten(1), weight.permute(0, 2, 3, 1).flatten(1), bias)
        elif self.tile == 1 and groups == weight.shape[0] == input.shape[1]:
            rows = (tiles.flatten(1, 2) * weight.flatten(1).t()).sum(1)
            rows = rows if bias is None else rows + bias
        else:
            step = (1, 1) if self.tile == 1 else stride
            spread = (1, 1) if self.tile == 1 else dilation
            done = F.conv2d(tiles.permute(0, 3, 1, 2), weight, bias, step, 0, spread, groups)
            rows = _rows(done)
            rows = rows if inside is None else rows[inside]
        return self._scatter(rows, index, residual, activation, out)

    def _upsample_conv2d(self, *tensors, scale=(2, 2), **keywords):
        return self._conv2d(*tensors, scale=scale, **keywords)

    def _max_pool2d(
        self, input, mask, *, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), zero=False, out
    ):  # fmt: skip
        if self.tile > 1:
            raise NotImplementedError("pooling by tiles")
        pixels = self._gather(input, mask, -torch.inf, kernel, stride, padding, dilation).flatten(1, 2)
        return self._scatter(pixels.amax(1), self._once(self._pixels, mask), None, "none", out)

    def _upsample_nearest(self, input, mask, *, scale=(2, 2), zero=False, out):
        index = self._once(self._pixels, mask)
        height, width = mask.shape[1:]
        image, row, column = index // (height * width), index // width % height, index % width
        source = (image * input.shape[2] + row // scale[0]) * input.shape[3] + column // scale[1]
        return self._scatter(_rows(input).index_select(0, source), index, None, "none", out)

    def _linear(self, input, weight, bias, mask, residual=None, *, activation="none", place=0, zero=False, out):
        index = self._once(self._pixels, mask)
        rows = F.linear(_rows(input).index_select(0, index), weight, bias)
        return self._scatter(rows, index, residual, activation, out)

    def _attention(self, query, key, value, mask, key_mask=None, *, scale=0, causal=False, zero=False, out):
        if causal:
            raise NotImplementedError("causal attention")
        for image in range(len(mask)):
            rows = mask[image].nonzero()[:, 0]
            keys = slice(None) if key_mask is None else key_mask[image].nonzero()[:, 0]
            parts = query[image][:, rows], key[image][:, keys], value[image][:, keys]
            found = F.scaled_dot_product_attention(*(part[None] for part in parts), scale=scale or None)
            out[image].index_copy_(1, rows, found[0])
        return out

    def _layer_norm(self, input, mask, weight, bias, *, epsilon=1e-5, zero=False, out):
        index = self._once(self._pixels, mask)
        rows = _rows(input).index_select(0, index)
        factors = (factor if factor is None else factor.to(rows.dtype) for factor in (weight, bias))  # Ours are float32.
        return self._scatter(F.layer_norm(rows, rows.shape[1:], *factors, epsilon), index, None, "none", out)

    def _group_norm(
        self, input, mask, weight, bias, mean=None, variance=None, *, groups, epsilon=1e-5, activation="none",
        zero=False, out,
    ):  # fmt: skip
        if mean is None:
            mean, variance = torch.ops.distile.group_statistics(input, mask, groups=groups)
        factor = torch.rsqrt(variance + epsilon)
        summand = -mean * factor
        factor, summand = (each.repeat_interleave(input.shape[1] // groups, -1) for each in (factor, summand))
        if weight is not None:
            factor, summand = factor * weight, summand * weight
        summand = summand if bias is None else summand + bias
        index = self._once(self._pixels, mask)
        rows = _rows(input).index_select(0, index)
        if factor.dim() == 2 and len(factor) > 1:
            image = index // mask[0].numel()
            factor, summand = factor[image], summand[image]
        return self._scatter(torch.addcmul(summand, rows, factor), index, None, activation, out)

    def _second(self, other, index, mask):
        """The rows of a second operand, which may have one pixel, or token, for each image."""
        rows = _rows(other)
        if len(rows) == mask.numel():
            return rows.index_select(0, index)
        return rows if len(rows) == 1 else rows[index // mask[0].numel()]

    def _add(self, input, other, mask, *, activation="none", zero=False, out):
        index = self._once(self._pixels, mask)
        rows = _rows(input).index_select(0, index) + self._second(other, index, mask)
        return self._scatter(rows, index, None, activation, out)

    def _multiply(self, input, other, mask, *, other_activation="none", activation="none", zero=False, out):
        index = self._once(self._pixels, mask)
        second = ACTIVATIONS[other_activation](self._second(other, index, mask))
        return self._scatter(_rows(input).index_select(0, index) * second, index, None, activation, out)

    def _activate(self, input, mask, *, activation="none", zero=False, out):
        index = self._once(self._pixels, mask)
        return self._scatter(_rows(input).index_select(0, index), index, None, activation, out)


class TiledMask(SharedMask):
    """Masks whose tiles are active or not, as a whole, at each resolution."""

    def __init__(self, mask: torch.Tensor, tile: int):
        super().__init__(mask)
        self._tile, self._tiled = tile, {}

    def at(self, *size: int) -> torch.Tensor:
        if size not in self._tiled:
            tiles = F.max_pool2d(super().at(*size).float(), self._tile, ceil_mode=True) > 0
            rows = tiles.repeat_interleave(self._tile, 1)[:, : size[0]]
            self._tiled[size] = rows.repeat_interleave(self._tile, 2)[:, :, : size[1]]
        return self._tiled[size]


class Gathered:
    """A network that shares its parameters with another, has its state for itself, and gathers and scatters."""

    def __init__(self, network: Network, tile: int = 1):
        if tile > 1 and not isinstance(network, EditedNetwork):
            raise NotImplementedError("tiles are for edits with cached activations")
        self.network = own_copy(network)
        self.operators = Operators(tile)
        if isinstance(self.network.buffers, Buffers):  # Other modules have a method of this name.
            self.network.buffers.dense_by_pytorch = True
        if tile > 1:  # All pixels of its tiles change, so all layers compute them.
            editor = self.network.editor
            editor.edit = lambda mask: setattr(editor, "shared", TiledMask(mask, tile))

    def prepare(self) -> None:
        self.network.prepare()

    def __call__(self, *_):
        with self.operators.in_place_of_ours():
            return self.network.masked()

    def expected(self):
        return self.network.expected()
