"""Edits with cached activations, as SIGE makes them: the network computes the edited region, and keeps the rest.

A graph calls its layers through an Editor, so that it is written once. In the pass over the original input the Editor
keeps every result. For an edited input it computes each layer at the pixels, or tokens, of the edit's mask at the
layer's resolution, into what it kept. Group norms take the statistics of the original input.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

from common import Network, conv, linear, nhwc, where
from distile import masks
from distile.dense import ACTIVATIONS
from distile.nn import MaskedBatchNorm2d, MaskedConv2d, MaskedGroupNorm

ops = torch.ops.distile
# The most channels of a head in attention on the tensor cores of GPUs. Other code is slower there than all rows in
# PyTorch.
MOST_CHANNELS = 128


class DownConv2d(MaskedConv2d):
    """A 3x3 convolution with stride 2 and zeros only below and to the right, as in diffusion networks."""

    def __init__(self, channels, out):
        super().__init__(channels, out, 3, stride=2)

    def forward(self, input, mask, *, out):
        window = dict(stride=self.stride, padding=(0, 1, 0, 1), place=self._place.number)
        return ops.conv2d.out(input, self.weight, self.bias, mask, None, **window, out=out)


class Masks:
    """The mask of an edit at each resolution, as a compiler can trace it and join it with other work."""

    def __init__(self, mask: torch.Tensor):
        self._mask, self._made = mask, {tuple(mask.shape[1:]): mask}

    def at(self, height: int, width: int) -> torch.Tensor:
        size = (height, width)
        if size not in self._made:
            blocks = self._mask.unflatten(2, (width, -1)).unflatten(1, (height, -1))
            self._made[size] = blocks.any(4).any(2)
        return self._made[size]


class Editor:
    """Runs layers, by its mode: "dense"; "full", dense, keeping each result; "masked", into what was kept; "selected",
    dense, and then masked into what was kept, where a layer could tell; or "expected", dense and then masked."""

    def __init__(self):
        self.mode = "dense"
        self.kept: dict[object, torch.Tensor] = {}
        self.shared: masks.SharedMask | Masks | None = None
        self.constants: dict[object, torch.Tensor] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self.used: dict[object, torch.Tensor] = {}  # The mask of each layer in the last masked run.
        # The results that are read outside the mask: by windows and as keys of attention, and the output. What others
        # hold there makes no difference.
        self.around: set = set()
        self.joined: dict[object, list] = {}  # The results that are the parts of a joined one.

    @contextlib.contextmanager
    def running(self, mode: str):
        before, self.mode = self.mode, mode
        try:
            yield self
        finally:
            self.mode = before

    def edit(self, mask: torch.Tensor) -> None:
        """Takes the mask of an edit, [N, H, W]."""
        self.shared = masks.SharedMask(mask)

    def tokens_of(self, height: int, width: int) -> None:
        """Says the resolution of as many tokens, for networks without images."""
        self._sizes[height * width] = (height, width)

    def bytes(self) -> int:
        kept = (tensor.untyped_storage() for tensor in (*self.kept.values(), *self.constants.values()))
        return sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values())

    def _mask(self, kept: torch.Tensor) -> torch.Tensor:
        """The mask of a result: images [N, C, H, W], tokens [N, T, C], or heads of tokens [N, heads, T, C]."""
        tokens = kept.shape[1] if kept.dim() == 3 else kept.shape[2] if kept.stride(1) != 1 else None
        if tokens is None:
            self.tokens_of(*kept.shape[2:])
            return self.shared.at(*kept.shape[2:])
        return self.shared.at(*self._sizes[tokens]).flatten(1)

    def read_around(self, *tensors: torch.Tensor) -> None:
        """Notes, in the pass over the original, that a layer reads these outside its own mask."""
        if self.mode == "full":
            storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
            self.around |= {key for key, kept in self.kept.items() if kept.untyped_storage().data_ptr() in storages}

    def _run(self, key, dense, masked, keep=lambda result: result):
        if self.mode == "dense" or self.mode == "selected" and key not in self.around:
            return dense()
        if self.mode == "full":
            self.kept[key] = keep(dense())
            return self.kept[key]
        kept = self.kept[key]
        mask = self._mask(kept)
        if self.mode == "masked":
            self.used[key] = mask
            masked(mask, kept)
            return kept
        result = dense()
        spread = mask[:, None, :, None] if kept.dim() == 4 and mask.dim() == 2 else None
        result = where(mask, result, kept) if spread is None else torch.where(spread, result, kept)
        return kept.copy_(result) if self.mode == "selected" else result

    def tie(self) -> None:
        """Brings results that are joined into the memory of that, so that joining them is no step."""
        for key, parts in self.joined.items():
            first = 0
            for part in parts:
                kept = self.kept[part]
                place = self.kept[key][:, first : first + kept.shape[1]]
                if kept.data_ptr() != place.data_ptr():
                    self.kept[part] = place.copy_(kept)
                first += kept.shape[1]

    def unedited(self, key, compute):
        """What no edit changes, such as what depends on the time alone: kept from the pass over the original."""
        if self.mode in ("dense", "full"):
            result = compute()
            if self.mode == "full":
                self.constants[key] = result
            return result
        return self.constants[key]

    def conv(self, layer, x, residual=None, shift=None):
        """A convolution; then a sum with a residual, or with one pixel."""
        if (*layer.kernel_size, *layer.stride) != (1, 1, 1, 1):
            self.read_around(x)

        if shift is not None and self.mode == "full":  # One pixel, so it is as good as a bias.
            self.constants[(layer, "bias")] = layer.bias + shift.flatten()

        def masked(mask, out):
            if shift is None:
                return layer(x, mask, residual, out=out)
            (top, left), bias = layer.padding, self.constants[(layer, "bias")]
            more = dict(padding=(top, top, left, left), activation=layer.activation, place=layer._place.number)
            return ops.conv2d.out(x, layer.weight, bias, mask, residual, stride=layer.stride, **more, out=out)

        return self._run(layer, lambda: _add(conv(layer, x, residual), shift), masked, nhwc)

    def down(self, layer: DownConv2d, x):
        self.read_around(x)
        return self._run(
            layer,
            lambda: F.conv2d(F.pad(x, (0, 1, 0, 1)), layer.weight, layer.bias, 2),
            lambda mask, out: layer(x, mask, out=out),
            nhwc,
        )

    def upsampled_conv(self, layer, x):
        """A convolution after nearest upsampling."""
        self.read_around(x)
        return self._run(
            layer,
            lambda: conv(layer, F.interpolate(x, scale_factor=2.0, mode="nearest")),
            lambda mask, out: layer(x, mask, out=out),
            nhwc,
        )

    def upsampled(self, key, x):
        return self._run(
            key,
            lambda: F.interpolate(x, scale_factor=2.0, mode="nearest"),
            lambda mask, out: ops.upsample_nearest.out(x, mask, scale=(2, 2), out=out),
            nhwc,
        )

    def group_norm(self, layer: MaskedGroupNorm, x):
        """A group norm with an activation."""
        if self.mode == "full":
            layer.keep_statistics(x)

        def dense():
            if self.mode == "selected":
                return _normalised(layer, x)
            if self.mode == "expected":  # With the statistics that it keeps.
                return layer(x)
            result = F.group_norm(x, layer.num_groups, layer.weight, layer.bias, layer.eps)
            return ACTIVATIONS[layer.activation](result)

        return self._run(layer, dense, lambda mask, out: layer(x, mask, out=out), nhwc)

    def batch_norm(self, layer: MaskedBatchNorm2d, x):
        """A batch norm. Without training, its statistics are those of the original input."""
        if self.mode == "full":
            layer.running_mean.copy_(x.mean((0, 2, 3)))
            layer.running_var.copy_(x.var((0, 2, 3)))
        return self._run(
            layer,
            lambda: F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, eps=layer.eps),
            lambda mask, out: layer(x, mask, out=out),
            nhwc,
        )

    def join(self, key, tensors):
        """Results one after the other by channels."""
        result = self._run(key, lambda: torch.cat(tensors, 1), lambda mask, out: None, nhwc)
        if self.mode == "full":
            known = {id(kept): one for one, kept in self.kept.items()}
            self.joined[key] = [known[id(tensor)] for tensor in tensors]
        return result

    def add(self, key, x, y, activation="none"):
        return self._run(
            key,
            lambda: ACTIVATIONS[activation](x + y),
            lambda mask, out: ops.add.out(x, y, mask, activation=activation, out=out),
        )

    def multiply(self, key, x, y, other_activation="none"):
        return self._run(
            key,
            lambda: x * ACTIVATIONS[other_activation](y),
            lambda mask, out: ops.multiply.out(x, y, mask, other_activation=other_activation, out=out),
        )

    def linear(self, layer, x, residual=None):
        return self._run(layer, lambda: linear(layer, x, residual), lambda mask, out: layer(x, mask, residual, out=out))

    def layer_norm(self, layer, x, scale=None, shift=None):
        """A layer norm of tokens, with the layer's factors and summands, or with given ones."""
        factors, summands = (layer.weight, layer.bias) if scale is None else (scale, shift)

        def masked(mask, out):
            if scale is None:
                return layer(x, mask, out=out)
            return ops.layer_norm.out(x, mask, scale, shift, epsilon=layer.eps, out=out)

        return self._run(
            layer, lambda: F.layer_norm(x, layer.normalized_shape, factors, summands, layer.eps), masked
        )

    def attention(self, key, query, keys, values):
        """Attention of the tokens to all keys, [N, heads, T, C]."""
        self.read_around(keys, values)

        def masked(mask, out):
            if query.is_cuda and query.dtype != torch.float32 and query.shape[3] > MOST_CHANNELS:
                result = F.scaled_dot_product_attention(query, keys, values)
                rows, to = (tensor.transpose(1, 2).flatten(2) for tensor in (result, out))
                return ops.activate.out(rows, mask, out=to)
            return ops.attention.out(query, keys, values, mask, None, out=out)

        return self._run(
            key,
            lambda: F.scaled_dot_product_attention(query, keys, values),
            masked,
            lambda result: result.transpose(1, 2).contiguous().transpose(1, 2),
        )


def _add(result, shift):
    return result if shift is None else result + shift


def _normalised(layer: MaskedGroupNorm, x: torch.Tensor) -> torch.Tensor:
    """A group norm with the statistics that it keeps, and its activation, as a product and a sum for each channel."""
    mean, variance = (each.reshape(-1, layer.num_groups, 1) for each in layer.statistics)
    shape, channels = (1, layer.num_groups, -1), (-1, layer.num_channels, 1, 1)
    factor = torch.rsqrt(variance + layer.eps) * layer.weight.float().view(shape)
    summand = layer.bias.float().view(shape) - mean * factor
    result = x.float() * factor.view(channels) + summand.view(channels)
    return ACTIVATIONS[layer.activation](result).to(x.dtype)


def as_tokens(images: torch.Tensor) -> torch.Tensor:
    """Images [N, C, H, W] with channels innermost as tokens [N, H * W, C], without a copy."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


def as_images(tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Tokens [N, H * W, C] as images of the size of `like`, without a copy."""
    return tokens.unflatten(1, like.shape[2:]).permute(0, 3, 1, 2)


class EditedNetwork(Network):
    """A network that computes an edit. Subclasses have `graph(*inputs)`, which calls layers by `self.editor`, and call
    `start` with the inputs before and after the edit."""

    keeps = True

    def __init__(self):
        super().__init__()
        self.editor = Editor()
        self.original: tuple[torch.Tensor, ...] = ()
        self.edited: tuple[torch.Tensor, ...] = ()

    def graph(self, *inputs):
        raise NotImplementedError

    @torch.no_grad()
    def start(self, original, edited):
        """Computes the original input, and keeps all results."""
        self.original, self.edited = original, edited
        with self.editor.running("full"):
            self.graph(*original)
        self.editor.around.add(next(reversed(self.editor.kept)))  # The output's.
        self.editor.tie()

    def edit_mask(self) -> torch.Tensor:
        """The mask of the edit, [N, H, W]: a part of each step."""
        raise NotImplementedError

    def plain_edit_mask(self) -> torch.Tensor:
        """What edit_mask() gives, by PyTorch alone."""
        return self.edit_mask()

    def masked(self):
        if not torch.compiler.is_compiling():
            self.editor.tie()  # It may have moved.
        with self.editor.running("masked"), masks.fixed():
            self.editor.edit(self.edit_mask())
            with self.editor.shared.fixed():
                return self.graph(*self.edited)

    def dense_inputs(self):
        return self.edited

    def dense(self, *inputs):
        return self.graph(*inputs)

    def dense_masked(self, *inputs):
        """Group norms have the statistics that they keep: so a compiler joins all between two convolutions."""
        shared = self.editor.shared
        with self.editor.running("selected"):
            self.editor.shared = Masks(self.plain_edit_mask())
            result = self.graph(*inputs[: len(self.edited)])
        self.editor.shared = shared
        return result

    def expected(self):
        with self.editor.running("expected"):
            self.editor.edit(self.edit_mask())
            return self.graph(*self.edited)

    def densities(self):
        return [mask.float().mean().item() for mask in self.editor.used.values()]

    def cached_bytes(self):
        return self.editor.bytes()
