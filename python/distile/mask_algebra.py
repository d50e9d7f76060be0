"""Mask algebra on GPUs, by PyTorch's operators, without a wait: there the library takes masks as bytes, and has no
function that writes them. On a CPU the library does it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._library import ops  # noqa: F401 (defines the operators)

CONV, TRANSPOSED, UPSAMPLED = range(3)


def _fit(marks, top, left, height, width):
    """`marks` with so many rows and columns more, or fewer, at the top and the left, and of that size."""
    return F.pad(marks, (left, width - marks.shape[3] - left, top, height - marks.shape[2] - top))


def _images(mask):
    return mask.bool().float()[:, None]


def _gathered(marks, size, kernel, stride, dilation, padding):
    """The pixels i of an image of this size for which a mark is at i * stride + tap * dilation - padding."""
    reads = [(size[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 for axis in (0, 1)]
    return F.conv2d(_fit(marks, *padding, *reads), marks.new_ones(1, 1, *kernel), stride=stride, dilation=dilation)


def _spread(marks, size, kernel, stride, dilation, padding):
    """The pixels i * stride + tap * dilation - padding of an image of this size for which a mark is at i."""
    found = F.conv_transpose2d(marks, marks.new_ones(1, 1, *kernel), stride=stride, dilation=dilation)
    return _fit(found, -padding[0], -padding[1], *size)


def dilate(mask, radius_h, radius_w):
    """What torch.ops.distile.mask_dilate computes."""
    window, padding = (2 * radius_h + 1, 2 * radius_w + 1), (radius_h, radius_w)
    return _gathered(_images(mask), mask.shape[1:], window, (1, 1), (1, 1), padding)[:, 0] > 0


def pool(mask, factor_h, factor_w):
    """What torch.ops.distile.mask_pool computes."""
    return F.max_pool2d(_images(mask), (factor_h, factor_w), ceil_mode=True)[:, 0] > 0


def needed_input(mask, size, *, kernel, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=CONV):
    """What torch.ops.distile.mask_needed_input computes."""
    marks = _images(mask)
    if kind == TRANSPOSED:
        return _gathered(marks, size, kernel, stride, dilation, padding)[:, 0] > 0
    if kind == CONV:
        return _spread(marks, size, kernel, stride, dilation, padding)[:, 0] > 0
    larger = [size[axis] * stride[axis] for axis in (0, 1)]
    return F.max_pool2d(_spread(marks, larger, kernel, (1, 1), dilation, padding), stride)[:, 0] > 0


def affected_output(mask, size, *, kernel, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=CONV):
    """What torch.ops.distile.mask_affected_output computes."""
    marks = _images(mask)
    if kind == TRANSPOSED:
        return _spread(marks, size, kernel, stride, dilation, padding)[:, 0] > 0
    if kind == CONV:
        return _gathered(marks, size, kernel, stride, dilation, padding)[:, 0] > 0
    larger = marks.repeat_interleave(stride[0], 2).repeat_interleave(stride[1], 3)
    return _gathered(larger, size, kernel, (1, 1), dilation, padding)[:, 0] > 0


def difference(a, b, threshold=0.0):
    """What torch.ops.distile.mask_difference computes: a difference that is NaN counts."""
    return ~((a.float() - b.float()).abs() <= threshold).all(1 if a.dim() == 4 else -1)


def cumulative_lengths(mask):
    """What torch.ops.distile.cumulative_lengths computes."""
    lengths = mask.bool().flatten(1).sum(1).cumsum(0)
    return F.pad(lengths, (1, 0)).int()


ALGEBRA = {
    "mask_dilate": dilate,
    "mask_pool": pool,
    "mask_needed_input": needed_input,
    "mask_affected_output": affected_output,
    "mask_difference": difference,
    "cumulative_lengths": cumulative_lengths,
}
for _name, _function in ALGEBRA.items():
    torch.library.impl(f"distile::{_name}", "CUDA")(_function)
