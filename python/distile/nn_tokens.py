"""Modules for tokens: linear layers, norms over the channels, and attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import masks
from .forms import form, into
from .nn_base import Masked, Place, Weighted, finish_dense, wide_as
from .operators import why_heads_not_built
from .vectors import float32_of


def _token_mask(layer, mask, shape):
    """The mask of tokens, [N, T], of a tensor [..., C]. One of [N, C] has no positions that a context's mask could be
    for, as after global pooling, and takes only a mask of its own."""
    mask = layer._mask(mask, *shape[:-1])
    return mask if mask is None or mask.dim() == 2 < len(shape) else mask.reshape(*_folded(shape[:-1]))


def _folded(leading):
    """Leading dimensions as [N, T]."""
    return (1, leading[0]) if len(leading) == 1 else (leading[0], math.prod(leading[1:]))


class MaskedLinear(Weighted, nn.Linear):
    """nn.Linear at the active tokens of a mask, whose dimensions are those of the input without the last.

    An input [N, C] has no tokens: the mask of a context does not apply to it.
    """

    channels = -1

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        shape = input.shape
        mask, leading = _token_mask(self, mask, shape), shape[:-1]
        if mask is None:
            result = F.linear(input, *wide_as(input, self.weight, self.bias))
            return finish_dense(result, residual, self.activation, out)
        if len(shape) != 3:
            input = input.reshape(*_folded(leading), shape[-1])
            residual = None if residual is None else residual.reshape(*_folded(leading), self.out_features)
        tokens = out if out is None or len(leading) == 2 else out.view(*_folded(leading), self.out_features)
        result = self._call("linear", input, mask, residual, tokens, zero)
        return out if out is not None else result if len(leading) == 2 else result.view(*leading, self.out_features)


def _check_norm(layer):
    if len(layer.normalized_shape) != 1:
        count = len(layer.normalized_shape)
        raise ValueError(f"it normalizes {count} dimensions, but a masked norm is over the last only")


def _normalized(layer, name, input, mask, parameters, epsilon, out, zero):
    """A norm of the active tokens."""
    _check_norm(layer)
    shape = (*_folded(input.shape[:-1]), input.shape[-1])
    tensors = (input.reshape(shape), mask, *parameters)
    if out is None:
        return form(name)(*tensors, epsilon=epsilon).view(input.shape)
    into(name)(*tensors, epsilon=epsilon, zero=zero, into=out if out.shape == shape else out.view(shape))
    return out


class _Norm(Masked):
    channels = -1

    def _prepare(self):
        _check_norm(self)


class MaskedLayerNorm(_Norm, nn.LayerNorm):
    """nn.LayerNorm over the channels of the active tokens, [N, T, C]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = _token_mask(self, mask, input.shape)
        if mask is None:
            return finish_dense(super().forward(input), None, "none", out)
        return _normalized(self, "layer_norm", input, mask, float32_of(self, "weight", "bias"), self.eps, out, zero)


class _ImageNorm(_Norm):
    """A norm over the channels of an image's pixels, [N, C, H, W]."""

    channels = 1

    def _image(self, name, input, mask, parameters, epsilon, out, zero):
        mask = self._mask(mask, input.shape[0], *input.shape[2:])
        if mask is None:
            return finish_dense(super().forward(input.movedim(1, -1)).movedim(-1, 1), None, "none", out)
        if out is None:
            return form(name)(input, mask, *parameters, epsilon=epsilon)
        into(name)(input, mask, *parameters, epsilon=epsilon, zero=zero, into=out)
        return out


class MaskedLayerNorm2d(_ImageNorm, nn.LayerNorm):
    """nn.LayerNorm over the channels of the active pixels, [N, C, H, W]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        return self._image("layer_norm", input, mask, float32_of(self, "weight", "bias"), self.eps, out, zero)


class MaskedRMSNorm(_Norm, nn.RMSNorm):
    """nn.RMSNorm over the channels of the active tokens, [N, T, C]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = _token_mask(self, mask, input.shape)
        if mask is None:
            return finish_dense(super().forward(input), None, "none", out)
        epsilon = torch.finfo(input.dtype).eps if self.eps is None else self.eps
        return _normalized(self, "rms_norm", input, mask, float32_of(self, "weight"), epsilon, out, zero)


class MaskedRMSNorm2d(_ImageNorm, nn.RMSNorm):
    """nn.RMSNorm over the channels of the active pixels, [N, C, H, W]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        epsilon = torch.finfo(input.dtype).eps if self.eps is None else self.eps
        return self._image("rms_norm", input, mask, float32_of(self, "weight"), epsilon, out, zero)


def _attend(layer, qkv, mask, keys, causal):
    """Attention by queries, keys and values side by side, [N, T, 3C]. The result is [N, T, C]."""
    parts = qkv.view(*qkv.shape[:2], 3, layer.num_heads, -1)
    query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
    if mask is None:
        result = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    else:
        result = form("attention")(query, key, value, mask, keys, causal=causal)
    return result.transpose(1, 2).flatten(2)


class MaskedAttention(Masked, nn.Module):
    """Self-attention of a transformer: the active tokens attend to the active ones, or to those of `key_mask`.

    The parameters are those of timm's Attention: `qkv` and `proj`.
    """

    channels = -1

    def __init__(self, dim, num_heads=8, qkv_bias=False, causal=False):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide {dim} channels")
        self.num_heads, self.causal = num_heads, causal
        self.qkv = MaskedLinear(dim, 3 * dim, bias=qkv_bias)
        self.proj = MaskedLinear(dim, dim)

    @classmethod
    def from_dense(cls, layer):
        """Masked attention that shares the parameters of timm's Attention, or of a module like it: with linear layers
        `qkv` and `proj`, and `num_heads`."""
        masked = cls.__new__(cls)
        nn.Module.__init__(masked)
        masked.num_heads, masked.causal = layer.num_heads, False
        masked.qkv, masked.proj = MaskedLinear.from_dense(layer.qkv), MaskedLinear.from_dense(layer.proj)
        return masked.train(layer.training)

    def why_dense(self):
        return why_heads_not_built(self.proj.in_features // self.num_heads)

    def forward(
        self, input, mask=None, key_mask=None, residual=None, *, attn_mask=None, is_causal=False, out=None, zero=False
    ):
        """`input` [N, T, C]; masks [N, T]. timm's blocks give `attn_mask`, which must be None. `residual` is added
        after the projection, which writes `out`."""
        if attn_mask is not None:
            raise ValueError("masked attention takes no attn_mask: give it a key_mask, or leave it dense by a rule")
        mask = _token_mask(self, mask, input.shape)
        keys = mask if key_mask is None else masks.as_mask(key_mask)
        if mask is None and keys is not None:
            mask = torch.ones_like(keys)
        # Keys beyond the active rows need their keys and values too.
        needed = mask if key_mask is None else mask | keys
        if mask is None:
            with masks.mask(None):
                attended = _attend(self, self.qkv(input), None, None, self.causal or is_causal)
                return self.proj(attended, None, residual, out=out)
        attended = _attend(self, self.qkv(input, needed), mask, keys, self.causal or is_causal)
        return self.proj(attended, mask, residual, out=out, zero=zero)


class MaskedMultiheadAttention(Masked, nn.MultiheadAttention):
    """nn.MultiheadAttention with `batch_first` for the queries that a mask [N, T] selects.

    In self-attention they attend to the active tokens only, in other attention to all keys. Only self-attention without
    weights (pass need_weights=False) and `attn_mask` takes less time; the rest is computed dense, and then masked.
    """

    channels = -1

    def __init__(self, *args, batch_first=True, **keywords):
        super().__init__(*args, batch_first=batch_first, **keywords)
        self._prepare()

    def _prepare(self):
        if not self.batch_first:
            raise ValueError("its tokens are [T, N, C], but masked attention has batch_first=True")
        self._place = Place()
        self._modules = {**self._modules, "out_proj": MaskedLinear.from_dense(self.out_proj)}

    def why_dense(self):
        return why_heads_not_built(self.head_dim)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
                average_attn_weights=True, is_causal=False, *, mask=None):  # fmt: skip
        """What the base class gives, with 0 for inactive queries."""
        mask = _token_mask(self, mask, query.shape)
        if mask is None:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        mask = mask.bool()
        own = key is query and value is query
        padded = key_padding_mask is not None
        plain = self.bias_k is None and not self.add_zero_attn and not (self.training and self.dropout)
        if own and plain and not need_weights and (attn_mask is None or is_causal) and (
            not padded or key_padding_mask.dtype == torch.bool
        ):
            keys = mask & ~key_padding_mask if padded else mask
            qkv = form("linear")(query, self.in_proj_weight, self.in_proj_bias, mask, None, place=self._place.number)
            return self.out_proj(_attend(self, qkv, mask, keys, is_causal), mask), None
        if own:
            query = key = value = torch.where(mask[..., None], query, 0)
            hidden = ~mask
            if not padded:
                key_padding_mask = hidden
            elif key_padding_mask.dtype == torch.bool:
                key_padding_mask = key_padding_mask | hidden
            else:
                key_padding_mask = key_padding_mask.masked_fill(hidden, -torch.inf)
        result, weights = super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
        result = torch.where(mask[..., None], result, 0)
        if weights is None:
            return result, None
        rows = mask[:, :, None] if average_attn_weights else mask[:, None, :, None]
        return result, torch.where(rows, weights, 0)
