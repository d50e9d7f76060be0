"""The masked convolution in mmcv's signature: `from distile.mmcv import MaskedConv2d` in place of mmcv.ops."""

from __future__ import annotations

import torch
from torch import nn

from . import nn as masked


class MaskedConv2d(masked.MaskedConv2d):
    """mmcv.ops.MaskedConv2d: computes where `mask`, [1, H, W] of the output's size, is above 0, and gives 0 elsewhere.

    Unlike mmcv's, it takes batches ([N, H, W]), groups, dilation and any stride, runs on CPUs, and empty masks are no
    error.
    """

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)

    def forward(self, input: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            return nn.Conv2d.forward(self, input)
        return super().forward(input, mask > 0)


def masked_conv2d(features, mask, weight, bias, padding=0, stride=1):
    """mmcv.ops.masked_conv2d."""
    vertical, horizontal = (padding, padding) if isinstance(padding, int) else padding
    stride = (stride, stride) if isinstance(stride, int) else stride
    return torch.ops.distile.conv2d(
        features, weight, bias, mask > 0, stride=stride, padding=(vertical, vertical, horizontal, horizontal)
    )
