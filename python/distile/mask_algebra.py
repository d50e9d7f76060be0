"""What mask algebra computes, in plain PyTorch, for the tests. On a GPU this also runs where the library would have to
wait for the host."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._library import ops  # noqa: F401 (defines the operators)

CONV, TRANSPOSED, UPSAMPLED = range(3)


def _fit(marks, top, left, height, width):
    """`marks` with `top` rows and `left` columns more (fewer if negative) before the first, and of size height x
    width."""
    return F.pad(marks, (left, width - marks.shape[3] - left, top, height - marks.shape[2] - top))


def _images(mask):
    return mask.bool().float()[:, None]


def _gathered(marks, size, kernel, stride, dilation, padding):
    """The pixels i of an image of this size for which a mark is at i * stride + tap * dilation - padding."""
    reads = [(size[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 for axis in (0, 1)]
    more = [marks.shape[2 + axis] + 2 * padding[axis] - reads[axis] for axis in (0, 1)]
    if all(0 <= more[axis] < stride[axis] and 0 <= 2 * padding[axis] <= kernel[axis] for axis in (0, 1)):
        return F.max_pool2d(marks, kernel, stride, padding, dilation)
    return F.max_pool2d(_fit(marks, *padding, *reads), kernel, stride, 0, dilation)


def _spread(marks, size, kernel, stride, dilation, padding):
    """The pixels i * stride + tap * dilation - padding of an image of this size for which a mark is at i."""
    if tuple(stride) == (1, 1):  # Read from the other side.
        opposite = [(kernel[axis] - 1) * dilation[axis] - padding[axis] for axis in (0, 1)]
        return _gathered(marks, size, kernel, stride, dilation, opposite)
    found = F.conv_transpose2d(marks, marks.new_ones(1, 1, *kernel), stride=stride, dilation=dilation)
    return _fit(found, -padding[0], -padding[1], *size)


def dilate(mask, radius_h, radius_w):
    """What torch.ops.distile.mask_dilate computes."""
    window, padding = (2 * radius_h + 1, 2 * radius_w + 1), (radius_h, radius_w)
    return _gathered(_images(mask), mask.shape[1:], window, (1, 1), (1, 1), padding)[:, 0] > 0


def pool(mask, factor_h, factor_w):
    """What torch.ops.distile.mask_pool computes."""
    return F.max_pool2d(_images(mask), (factor_h, factor_w), ceil_mode=True)[:, 0] > 0


def needed_input(mask, size, kernel, *, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=CONV):
    """What torch.ops.distile.mask_needed_input computes."""
    marks = _images(mask)
    if kind == TRANSPOSED:
        return _gathered(marks, size, kernel, stride, dilation, padding)[:, 0] > 0
    if kind == CONV:
        return _spread(marks, size, kernel, stride, dilation, padding)[:, 0] > 0
    larger = [size[axis] * stride[axis] for axis in (0, 1)]
    return F.max_pool2d(_spread(marks, larger, kernel, (1, 1), dilation, padding), stride)[:, 0] > 0


def affected_output(mask, size, kernel, *, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=CONV):
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


def from_indices(indices, height, width):
    """What torch.ops.distile.mask_from_indices computes."""
    mask = torch.zeros(len(indices), height * width, dtype=torch.bool, device=indices.device)
    return mask.scatter_(1, indices.long(), True).view(-1, height, width)


def from_bits(words, width):
    """What torch.ops.distile.mask_from_bits computes."""
    return (words[..., None] >> torch.arange(32, device=words.device) & 1).flatten(2)[..., :width].bool()


def to_bits(mask):
    """What torch.ops.distile.mask_to_bits computes."""
    bits = F.pad(mask.bool(), (0, -mask.shape[2] % 32)).unflatten(2, (-1, 32))
    return (bits.long() << torch.arange(32, device=mask.device)).sum(3).int()


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
    "mask_from_indices": from_indices,
    "mask_from_bits": from_bits,
    "mask_to_bits": to_bits,
    "cumulative_lengths": cumulative_lengths,
}


def _on_gpus(name):
    algebra = ALGEBRA[name]
    torch.library.impl(f"distile::{name}", "CUDA")(algebra)

    # A decorated function may be None: PyTorch's decorator returns nothing before 2.12.
    def write(mask, out):
        result = algebra(mask)
        if out.shape != result.shape or out.dtype != result.dtype:
            raise ValueError(f"distile: `out` must be a tensor {list(result.shape)} of type {result.dtype}")
        return out.copy_(result)

    @torch.library.impl(f"distile::{name}.out", "CUDA")
    def to(mask, *, out):
        return write(mask, out)

    @torch.library.impl(f"distile::{name}_into", "CUDA")
    def without_result(mask, *, into):
        write(mask, into)


_on_gpus("mask_to_bits")
_on_gpus("cumulative_lengths")
