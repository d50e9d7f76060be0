"""Modules: PyTorch's own layers, which take a mask. They have the same parameters, so they load the same weights.

Without a mask, given or of a context `distile.mask`, a module computes what its base class does. Inactive outputs are
0, or with `out` keep its values.
"""

from __future__ import annotations

import random
import weakref

import torch
import torch.nn.functional as F
from torch import nn

from . import dense, masks
from ._library import ops
from .forms import form
from .nn_layers import (  # noqa: F401
    MaskedActivation,
    MaskedAdd,
    MaskedAvgPool2d,
    MaskedBatchNorm2d,
    MaskedConcat,
    MaskedGlobalPool,
    MaskedGroupNorm,
    MaskedMaxPool2d,
    MaskedMultiply,
    MaskedSqueezeExcite,
    MaskedUpsample,
    MaskUnit,
)
from .shapes import convolved
from .vectors import float32_of


class Place:
    """Where the library keeps a module's packed weights. Frees them with it; a copy of a module gets another."""

    def __init__(self):
        self.number = random.SystemRandom().randrange(1, 2**62)
        weakref.finalize(self, ops._free_weights, self.number).atexit = False

    def __deepcopy__(self, _):
        return Place()

    def __reduce__(self):
        return Place, ()


def _padding_of(conv) -> tuple[int, int, int, int]:
    if isinstance(conv.padding, str):
        if conv.padding == "valid":
            return 0, 0, 0, 0
        total = [conv.dilation[axis] * (conv.kernel_size[axis] - 1) for axis in (0, 1)]
        return total[0] // 2, total[0] - total[0] // 2, total[1] // 2, total[1] - total[1] // 2
    return conv.padding[0], conv.padding[0], conv.padding[1], conv.padding[1]


class _Convolution:
    """What the masked convolutions share."""

    def _prepare(self, activation):
        if activation not in dense.ACTIVATIONS:
            raise ValueError(f"there is no activation {activation!r}; there are {', '.join(dense.ACTIVATIONS)}")
        if getattr(self, "padding_mode", "zeros") != "zeros":
            raise ValueError(f"padding_mode is {self.padding_mode!r}, but masked convolutions pad with zeros only")
        self.activation = activation
        self._place = Place()

    def extra_repr(self):
        text = super().extra_repr()
        return text if self.activation == "none" else f"{text}, activation={self.activation}"

    @classmethod
    def from_dense(cls, layer, activation="none"):
        """A masked layer that shares the parameters of a dense one."""
        masked = cls.__new__(cls)
        masked.__dict__.update(layer.__dict__)
        masked._parameters, masked._buffers = dict(layer._parameters), dict(layer._buffers)
        masked._prepare(activation)
        return masked


def _finish_dense(result, residual, activation, out):
    if residual is not None:
        result = result + residual
    result = dense.ACTIVATIONS[activation](result)
    return result if out is None else out.copy_(result)


class MaskedConv2d(_Convolution, nn.Conv2d):
    """nn.Conv2d at the active pixels of a mask of the output, [N, H, W]. Then come bias, residual and activation."""

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        """`input` [N, C, H, W], best in torch.channels_last. `out` keeps its inactive pixels unless `zero`."""
        top, bottom, left, right = _padding_of(self)
        height = convolved(input.shape[2], top, bottom, self.dilation[0], self.kernel_size[0], self.stride[0])
        width = convolved(input.shape[3], left, right, self.dilation[1], self.kernel_size[1], self.stride[1])
        mask = masks.resolve(mask, height, width)
        if mask is None:
            return _finish_dense(super().forward(input), residual, self.activation, out)
        keywords = dict(
            stride=self.stride,
            padding=(top, bottom, left, right),
            dilation=self.dilation,
            groups=self.groups,
            activation=self.activation,
            place=self._place.number,
        )
        if out is None:
            return form("conv2d")(input, self.weight, self.bias, mask, residual, **keywords)
        return ops.conv2d.out(input, self.weight, self.bias, mask, residual, **keywords, zero=zero, out=out)


class MaskedConvTranspose2d(_Convolution, nn.ConvTranspose2d):
    """nn.ConvTranspose2d at the active pixels of a mask of the output, [N, H, W]."""

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        size = [
            (input.shape[2 + axis] - 1) * self.stride[axis]
            + self.dilation[axis] * (self.kernel_size[axis] - 1)
            + 1
            + self.output_padding[axis]
            - 2 * self.padding[axis]
            for axis in (0, 1)
        ]
        mask = masks.resolve(mask, *size)
        if mask is None:
            return _finish_dense(super().forward(input), residual, self.activation, out)
        keywords = dict(
            stride=self.stride,
            padding=_padding_of(self),
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
            activation=self.activation,
            place=self._place.number,
        )
        if out is None:
            return form("conv_transpose2d")(input, self.weight, self.bias, mask, residual, **keywords)
        return ops.conv_transpose2d.out(input, self.weight, self.bias, mask, residual, **keywords, zero=zero, out=out)


class MaskedUpsampleConv2d(_Convolution, nn.Conv2d):
    """Nearest upsampling by `scale` and a convolution with stride 1, at the active pixels of a mask of the output."""

    def __init__(self, *args, scale=2, activation="none", **keywords):
        super().__init__(*args, **keywords)
        if self.stride != (1, 1):
            raise ValueError("a convolution after upsampling has stride 1")
        self.scale = (scale, scale) if isinstance(scale, int) else tuple(scale)
        self._prepare(activation)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        top, bottom, left, right = _padding_of(self)
        height = convolved(input.shape[2] * self.scale[0], top, bottom, self.dilation[0], self.kernel_size[0], 1)
        width = convolved(input.shape[3] * self.scale[1], left, right, self.dilation[1], self.kernel_size[1], 1)
        mask = masks.resolve(mask, height, width)
        if mask is None:
            larger = F.interpolate(input, scale_factor=self.scale, mode="nearest")
            return _finish_dense(super().forward(larger), residual, self.activation, out)
        keywords = dict(
            scale=self.scale,
            padding=(top, bottom, left, right),
            dilation=self.dilation,
            groups=self.groups,
            activation=self.activation,
            place=self._place.number,
        )
        if out is None:
            return form("upsample_conv2d")(input, self.weight, self.bias, mask, residual, **keywords)
        return ops.upsample_conv2d.out(input, self.weight, self.bias, mask, residual, **keywords, zero=zero, out=out)


def _token_mask(mask, shape):
    """The mask of tokens, [N, T], of a tensor [..., C]."""
    mask = masks.resolve(mask, *shape[1:-1]) if len(shape) > 2 else masks.resolve(mask, shape[0])
    return mask if mask is None or mask.dim() == 2 < len(shape) else mask.reshape(*_folded(shape[:-1]))


def _folded(leading):
    """Leading dimensions as [N, T]."""
    return (1, leading[0]) if len(leading) == 1 else (leading[0], leading[1:].numel())


class MaskedLinear(_Convolution, nn.Linear):
    """nn.Linear at the active tokens of a mask, whose dimensions are those of the input but for the last."""

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        mask = _token_mask(mask, input.shape)
        if mask is None:
            return _finish_dense(super().forward(input), residual, self.activation, out)
        leading = input.shape[:-1]
        if input.dim() != 3:
            input = input.reshape(*_folded(leading), input.shape[-1])
            residual = None if residual is None else residual.reshape(*_folded(leading), self.out_features)
        keywords = dict(activation=self.activation, place=self._place.number)
        if out is not None:
            tokens = out if len(leading) == 2 else out.view(*_folded(leading), self.out_features)
            ops.linear.out(input, self.weight, self.bias, mask, residual, **keywords, zero=zero, out=tokens)
            return out
        result = form("linear")(input, self.weight, self.bias, mask, residual, **keywords)
        return result if len(leading) == 2 else result.view(*leading, self.out_features)


def _normalized(layer, name, input, mask, parameters, epsilon, out, zero):
    """A norm of the active tokens."""
    if len(layer.normalized_shape) != 1:
        raise ValueError("a masked norm is over the last dimension only")
    shape = (*_folded(input.shape[:-1]), input.shape[-1])
    tensors = (input.reshape(shape), mask, *parameters)
    if out is None:
        return form(name)(*tensors, epsilon=epsilon).view(input.shape)
    getattr(ops, name).out(*tensors, epsilon=epsilon, zero=zero, out=out.view(shape))
    return out


class MaskedLayerNorm(nn.LayerNorm):
    """nn.LayerNorm over the channels of the active tokens, [N, T, C]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = _token_mask(mask, input.shape)
        if mask is None:
            return _finish_dense(super().forward(input), None, "none", out)
        return _normalized(self, "layer_norm", input, mask, float32_of(self, "weight", "bias"), self.eps, out, zero)


class MaskedRMSNorm(nn.RMSNorm):
    """nn.RMSNorm over the channels of the active tokens, [N, T, C]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = _token_mask(mask, input.shape)
        if mask is None:
            return _finish_dense(super().forward(input), None, "none", out)
        epsilon = torch.finfo(input.dtype).eps if self.eps is None else self.eps
        return _normalized(self, "rms_norm", input, mask, float32_of(self, "weight"), epsilon, out, zero)


class MaskedAttention(nn.Module):
    """Self-attention of a transformer: the active tokens attend to the active ones, or to those of `key_mask`.

    The parameters are those of timm's Attention: `qkv` and `proj`.
    """

    def __init__(self, dim, num_heads=8, qkv_bias=False, causal=False):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide {dim} channels")
        self.num_heads, self.causal = num_heads, causal
        self.qkv = MaskedLinear(dim, 3 * dim, bias=qkv_bias)
        self.proj = MaskedLinear(dim, dim)

    def forward(self, input, mask=None, key_mask=None):
        """`input` [N, T, C]; masks [N, T]."""
        batch, tokens, channels = input.shape
        mask = _token_mask(mask, input.shape)
        if mask is None:
            mask = torch.ones(batch, tokens, dtype=torch.bool, device=input.device)
        keys = mask if key_mask is None else masks.as_mask(key_mask)
        # Keys beyond the active rows need their keys and values too.
        needed = mask if key_mask is None else mask | keys
        qkv = self.qkv(input, needed).view(batch, tokens, 3, self.num_heads, -1)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        result = form("attention")(query, key, value, mask, keys, causal=self.causal)
        return self.proj(result.transpose(1, 2).reshape(batch, tokens, channels), mask)
