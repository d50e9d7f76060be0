"""Modules of what a block has beside its convolutions. Without a mask, their own or a context's, they are PyTorch's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import dense, layers, masks
from ._library import ops
from .forms import form, into
from .nn_base import Activated, Masked
from .shapes import convolved
from .vectors import float32_of


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _run(name, tensors, keywords, out, zero):
    if out is None:
        return form(name)(*tensors, **keywords)
    into(name)(*tensors, **keywords, zero=zero, into=out)
    return out


def _finish(result, out):
    return result if out is None else out.copy_(result)


class _Elementwise(Masked):
    channels = None

    def _mask_of(self, mask, tensor):
        """The mask of a result: an image [N, C, H, W] or tokens [N, T, C]."""
        return self._mask(mask, tensor.shape[0], *(tensor.shape[2:] if tensor.dim() == 4 else tensor.shape[1:-1]))


class _Pool(Masked):
    """What the masked pools share."""

    def _prepare(self):
        if self.ceil_mode:
            raise ValueError("masked pooling has no ceil_mode")
        if getattr(self, "return_indices", False):
            raise ValueError("masked pooling has no return_indices")
        if getattr(self, "divisor_override", None) is not None:
            raise ValueError("masked pooling has no divisor_override")

    def _pool(self, name, input, mask, out, zero, **more):
        self._prepare()
        kernel, stride, padding = _pair(self.kernel_size), _pair(self.stride), _pair(self.padding)
        dilation = more.get("dilation", (1, 1))
        size = [
            convolved(input.shape[axis - 2], padding[axis], padding[axis], dilation[axis], kernel[axis], stride[axis])
            for axis in (0, 1)
        ]
        mask = self._mask(mask, input.shape[0], *size) if min(size) > 0 else None  # PyTorch says what is wrong.
        if mask is None:
            return None
        return _run(name, (input, mask), dict(kernel=kernel, stride=stride, padding=padding, **more), out, zero)


class MaskedMaxPool2d(_Pool, nn.MaxPool2d):
    """nn.MaxPool2d at the active pixels of a mask of the output, [N, H, W]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        result = self._pool("max_pool2d", input, mask, out, zero, dilation=_pair(self.dilation))
        return _finish(super().forward(input), out) if result is None else result


class MaskedAvgPool2d(_Pool, nn.AvgPool2d):
    """nn.AvgPool2d at the active pixels of a mask of the output, [N, H, W]."""

    def forward(self, input, mask=None, *, out=None, zero=False):
        result = self._pool("avg_pool2d", input, mask, out, zero, count_padding=self.count_include_pad)
        return _finish(super().forward(input), out) if result is None else result


class MaskedGlobalPool(Masked, nn.Module):
    """The mean, or the maximum, of each image's active pixels, or of all without a mask: [N, C, 1, 1]."""

    masks_input = True

    def __init__(self, maximum=False):
        super().__init__()
        self.maximum = maximum

    @classmethod
    def from_dense(cls, layer: nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d):
        """Pooling by the active pixels instead of an adaptive pool to one pixel."""
        if layer.output_size not in (1, (1, 1)) or getattr(layer, "return_indices", False):
            raise ValueError("a masked adaptive pool is to one pixel, without indices")
        return cls(maximum=isinstance(layer, nn.AdaptiveMaxPool2d))

    def forward(self, input, mask=None):
        return ops.global_pool(input, self._mask(mask, input.shape[0], *input.shape[2:]), maximum=self.maximum)


class MaskedAdd(_Elementwise, nn.Module):
    """activation(input + other). `other` may be one pixel for each image, [N, C, 1, 1]."""

    def __init__(self, activation="none"):
        super().__init__()
        self.activation = activation

    def forward(self, input, other, mask=None, *, out=None, zero=False):
        mask = self._mask_of(mask, input)
        if mask is None:
            return _finish(dense.ACTIVATIONS[self.activation](input + other), out)
        return _run("add", (input, other, mask), dict(activation=self.activation), out, zero)


class MaskedMultiply(_Elementwise, nn.Module):
    """activation(input * other_activation(other)). `other` may be one pixel for each image, [N, C, 1, 1]."""

    def __init__(self, other_activation="none", activation="none"):
        super().__init__()
        self.other_activation, self.activation = other_activation, activation

    def forward(self, input, other, mask=None, *, out=None, zero=False):
        mask = self._mask_of(mask, input)
        if mask is None:
            result = input * dense.ACTIVATIONS[self.other_activation](other)
            return _finish(dense.ACTIVATIONS[self.activation](result), out)
        keywords = dict(other_activation=self.other_activation, activation=self.activation)
        return _run("multiply", (input, other, mask), keywords, out, zero)


class MaskedActivation(_Elementwise, nn.Module):
    """An activation of the active pixels; with "none", a copy of them."""

    def __init__(self, activation="none"):
        super().__init__()
        self.activation = activation

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = self._mask_of(mask, input)
        if mask is None:
            return _finish(dense.ACTIVATIONS[self.activation](input), out)
        return _run("activate", (input, mask), dict(activation=self.activation), out, zero)


class MaskedConcat(_Elementwise, nn.Module):
    """Tensors one after the other by channels. Better, let the operators before write into channels of one tensor."""

    def forward(self, inputs, mask=None, *, out=None, zero=False):
        mask = self._mask_of(mask, inputs[0])
        if mask is None:
            return _finish(torch.cat(tuple(inputs), 1), out)
        differentiates = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        if out is None and (differentiates or torch.compiler.is_compiling()):  # Neither takes slices as `out`.
            return form("activate")(torch.cat(tuple(inputs), 1), mask)
        if out is None:
            channels = sum(tensor.shape[1] for tensor in inputs)
            sizes, like = (inputs[0].shape[0], channels, *inputs[0].shape[2:]), inputs[0]
            out = torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
            zero = True
        first = 0
        for tensor in inputs:
            into("activate")(tensor, mask, zero=zero, into=out[:, first : first + tensor.shape[1]])
            first += tensor.shape[1]
        return out


class MaskedSqueezeExcite(Masked, nn.Module):
    """Squeeze-excite: channels times a gate from the mean of each image's active pixels."""

    def __init__(self, channels, squeezed, activation="relu", gate="sigmoid"):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.pool = activation, MaskedGlobalPool()
        self.excite = MaskedMultiply(other_activation=gate)

    def forward(self, input, mask=None, *, out=None, zero=False):
        squeezed = dense.ACTIVATIONS[self.activation](self.reduce(self.pool(input, mask)))
        return self.excite(input, self.expand(squeezed), mask, out=out, zero=zero)


class MaskedGroupNorm(Activated, nn.GroupNorm):
    """nn.GroupNorm of the active pixels, and an activation.

    Statistics are those of the active pixels; or, after `keep_statistics(input)`, those of all pixels of that input, as
    SIGE keeps them. `forget_statistics()` ends that.
    """

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def _prepare(self, activation="none"):
        super()._prepare(activation)
        self.statistics = None

    def keep_statistics(self, input, mask=None):
        """Keeps the mean and the variance of an input's active pixels, or of all without a mask."""
        self.statistics = ops.group_statistics(_channels_last(input), mask, groups=self.num_groups)

    def forget_statistics(self):
        self.statistics = None

    def forward(self, input, mask=None, *, out=None, zero=False):
        """`input` [N, C, H, W], or tokens as nn.GroupNorm takes them, [N, C, T]."""
        mask = self._mask(mask, input.shape[0], *input.shape[2:])
        if mask is None:
            return _finish(dense.ACTIVATIONS[self.activation](self._dense(input)), out)
        parameters = (*float32_of(self, "weight", "bias"), *(self.statistics or ()))
        keywords = dict(groups=self.num_groups, epsilon=self.eps, activation=self.activation)
        into = None if out is None else _channels_last(out)
        return _channels_last(_run("group_norm", (_channels_last(input), mask, *parameters), keywords, into, zero))

    def _dense(self, input):
        if self.statistics is None:
            return super().forward(input)
        everywhere = input.new_ones((input.shape[0], *input.shape[2:]), dtype=torch.bool)
        return _channels_last(layers.group_norm(
            _channels_last(input), everywhere, self.weight, self.bias, *self.statistics, groups=self.num_groups,
            epsilon=self.eps,
        ))  # fmt: skip


def _channels_last(tensor):
    """Tokens [N, C, T] as [N, T, C], and back."""
    return tensor.transpose(1, 2) if tensor.dim() == 3 else tensor


class MaskedBatchNorm2d(Activated, nn.BatchNorm2d):
    """nn.BatchNorm2d in eval mode at the active pixels, and an activation. Directly after a convolution, fold it into
    the weights instead."""

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        super()._prepare(activation)

    def _prepare(self, activation="none"):
        super()._prepare(activation)
        if self.running_mean is None:
            raise ValueError("it has no running statistics")

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = self._mask(mask, input.shape[0], *input.shape[2:])
        if mask is None:
            return _finish(dense.ACTIVATIONS[self.activation](super().forward(input)), out)
        if self.training or self.running_mean is None:
            raise RuntimeError("a masked batch norm has no training mode: call eval(), or give it running statistics")
        weight, bias, mean, variance = float32_of(self, "weight", "bias", "running_mean", "running_var")
        tensors = (input, mask, weight, bias, mean.float(), variance.float())
        keywords = dict(groups=self.num_features, epsilon=self.eps, activation=self.activation)
        return _run("group_norm", tensors, keywords, out, zero)


class MaskedFrozenBatchNorm2d(MaskedBatchNorm2d):
    """One that training leaves as it is, with buffers for parameters."""

    def train(self, mode=True):
        return super().train(False)


class MaskedUpsample(Masked, nn.Module):
    """Nearest upsampling by `scale`. If a convolution follows, MaskedUpsampleConv2d does both at once."""

    def __init__(self, scale=2):
        super().__init__()
        self.scale = _pair(scale)

    @classmethod
    def from_dense(cls, layer: nn.Upsample):
        """Masked upsampling for a dense one by whole numbers."""
        scale = layer.scale_factor
        scale = scale if isinstance(scale, tuple) else (scale, scale)
        whole = len(scale) == 2 and all(factor and float(factor).is_integer() for factor in scale)
        if layer.mode != "nearest" or not whole:
            raise ValueError("masked upsampling is to the nearest pixel, by a whole scale_factor")
        return cls(tuple(map(int, scale)))

    def forward(self, input, mask=None, *, out=None, zero=False):
        mask = self._mask(mask, input.shape[0], input.shape[2] * self.scale[0], input.shape[3] * self.scale[1])
        if mask is None:
            return _finish(F.interpolate(input, scale_factor=tuple(map(float, self.scale)), mode="nearest"), out)
        return _run("upsample_nearest", (input, mask), dict(scale=self.scale), out, zero)


class MaskUnit(nn.Module):
    """A mask from an image: a 1x1 convolution to one channel, and a threshold. [N, H, W], at every stride-th pixel.

    `bias` and `threshold` are numbers, so that nothing waits for a GPU.
    """

    def __init__(self, channels, bias=0.0, threshold=0.0, stride=1):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels).uniform_(-1, 1) / channels**0.5)
        self.bias, self.threshold, self.stride = bias, threshold, stride

    @classmethod
    def from_conv(cls, conv: nn.Conv2d, threshold=0.0):
        """A mask unit with the weights of a 1x1 convolution to one channel."""
        if conv.kernel_size != (1, 1) or conv.out_channels != 1 or conv.groups != 1 or any(conv.padding):
            raise ValueError("a mask unit is a 1x1 convolution to one channel, without padding")
        unit = cls(conv.in_channels, 0.0 if conv.bias is None else conv.bias.item(), threshold, conv.stride[0])
        unit.weight = nn.Parameter(conv.weight.detach().flatten().clone())
        return unit

    def scores(self, input):
        """What is compared with the threshold, [N, H, W], in PyTorch."""
        return F.conv2d(input[..., :: self.stride, :: self.stride], self.weight[None, :, None, None])[:, 0] + self.bias

    def forward(self, input):
        input = input.detach()[..., :: self.stride, :: self.stride]
        return masks.make(ops.mask_scores, input, *float32_of(self, "weight"), bias=self.bias, threshold=self.threshold)
