"""Modules: PyTorch's own layers, which take a mask. They have the same parameters, so they load the same weights.

Without a mask, given or of a context `distile.mask`, a module computes what its base class does. Inactive outputs are
0, or with `out` keep its values.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from .nn_base import Masked, Place, Weighted, finish_dense, wide_as  # noqa: F401
from .nn_layers import (  # noqa: F401
    MaskedActivation,
    MaskedAdd,
    MaskedAvgPool2d,
    MaskedBatchNorm2d,
    MaskedConcat,
    MaskedFrozenBatchNorm2d,
    MaskedGlobalPool,
    MaskedGroupNorm,
    MaskedMaxPool2d,
    MaskedMultiply,
    MaskedSqueezeExcite,
    MaskedUpsample,
    MaskUnit,
)
from .nn_tokens import (  # noqa: F401
    MaskedAttention,
    MaskedLayerNorm,
    MaskedLayerNorm2d,
    MaskedLinear,
    MaskedMultiheadAttention,
    MaskedRMSNorm,
    MaskedRMSNorm2d,
)
from .operators import why_groups_not_built
from .shapes import convolved


def padding_of(conv) -> tuple[int, int, int, int]:
    """The padding of a convolution: top, bottom, left, right."""
    if isinstance(conv.padding, str):
        if conv.padding == "valid":
            return 0, 0, 0, 0
        total = [conv.dilation[axis] * (conv.kernel_size[axis] - 1) for axis in (0, 1)]
        return total[0] // 2, total[0] - total[0] // 2, total[1] // 2, total[1] - total[1] // 2
    return conv.padding[0], conv.padding[0], conv.padding[1], conv.padding[1]


class _Convolution(Weighted):
    """What the masked convolutions share."""

    def _prepare(self, activation="none"):
        super()._prepare(activation)
        self._check_own()

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, *wide_as(input, weight, bias))

    def _check_own(self):
        """Raises ValueError for what masked convolutions do not do, which may be set after they were made."""
        if self.padding_mode != "zeros":
            raise ValueError(f"padding_mode is {self.padding_mode!r}, but masked convolutions pad with zeros only")
        if "_conv_forward" in self.__dict__:
            raise ValueError("its _conv_forward was replaced on the instance, which a masked convolution does not call")

    def _mask(self, mask, batch, *size):
        """None also for an output without pixels: PyTorch says what is wrong with it."""
        if min(size) < 1:
            return None
        mask = super()._mask(mask, batch, *size)
        if mask is not None:
            self._check_own()
        return mask

    def _window(self, **keywords) -> dict:
        """The window as keywords of an operator, without what is the default. The stride is 1 where a layer
        upsamples."""
        if self.stride != (1, 1):
            keywords["stride"] = self.stride
        if self.dilation != (1, 1):
            keywords["dilation"] = self.dilation
        if self.groups != 1:
            keywords["groups"] = self.groups
        return keywords


class MaskedConv2d(_Convolution, nn.Conv2d):
    """nn.Conv2d at the active pixels of a mask of the output, [N, H, W]. Then come bias, residual and activation."""

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        """`input` [N, C, H, W], best in torch.channels_last. `out` keeps its inactive pixels unless `zero`."""
        top, bottom, left, right = padding = padding_of(self)
        shape, dilation, kernel, stride = input.shape, self.dilation, self.kernel_size, self.stride
        height = convolved(shape[-2], top, bottom, dilation[0], kernel[0], stride[0])
        width = convolved(shape[-1], left, right, dilation[1], kernel[1], stride[1])
        mask = self._mask(mask, shape[0], height, width)
        if mask is None:
            return finish_dense(super().forward(input), residual, self.activation, out)
        return self._call("conv2d", input, mask, residual, out, zero, **self._window(padding=padding))


class MaskedConvTranspose2d(_Convolution, nn.ConvTranspose2d):
    """nn.ConvTranspose2d at the active pixels of a mask of the output, [N, H, W]."""

    def __init__(self, *args, activation="none", **keywords):
        super().__init__(*args, **keywords)
        self._prepare(activation)

    def why_dense(self):
        return why_groups_not_built(self.groups)

    def forward(self, input, mask=None, residual=None, *, output_size=None, out=None, zero=False):
        """`output_size` is that of nn.ConvTranspose2d, which takes it in the place of the mask too."""
        if isinstance(mask, (list, tuple)):
            mask, output_size = None, mask
        more = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation)
        size = [
            (input.shape[axis - 2] - 1) * self.stride[axis]
            + self.dilation[axis] * (self.kernel_size[axis] - 1)
            + 1
            + more[axis]
            - 2 * self.padding[axis]
            for axis in (0, 1)
        ]
        mask = self._mask(mask, input.shape[0], *size)
        if mask is None:
            weight, bias = wide_as(input, self.weight, self.bias)
            result = F.conv_transpose2d(input, weight, bias, self.stride, self.padding, more, self.groups, self.dilation)
            return finish_dense(result, residual, self.activation, out)
        window = self._window(padding=padding_of(self), output_padding=tuple(more))
        return self._call("conv_transpose2d", input, mask, residual, out, zero, **window)


class MaskedUpsampleConv2d(_Convolution, nn.Conv2d):
    """Nearest upsampling by `scale` and a convolution with stride 1, at the active pixels of a mask of the output."""

    def __init__(self, *args, scale=2, activation="none", **keywords):
        super().__init__(*args, **keywords)
        if self.stride != (1, 1):
            raise ValueError("a convolution after upsampling has stride 1")
        self.scale = (scale, scale) if isinstance(scale, int) else tuple(scale)
        self._prepare(activation)

    def why_dense(self):
        return why_groups_not_built(self.groups)

    def forward(self, input, mask=None, residual=None, *, out=None, zero=False):
        top, bottom, left, right = padding_of(self)
        height = convolved(input.shape[-2] * self.scale[0], top, bottom, self.dilation[0], self.kernel_size[0], 1)
        width = convolved(input.shape[-1] * self.scale[1], left, right, self.dilation[1], self.kernel_size[1], 1)
        mask = self._mask(mask, input.shape[0], height, width)
        if mask is None:
            larger = F.interpolate(input, scale_factor=self.scale, mode="nearest")
            return finish_dense(super().forward(larger), residual, self.activation, out)
        window = self._window(scale=self.scale, padding=(top, bottom, left, right))
        return self._call("upsample_conv2d", input, mask, residual, out, zero, **window)
