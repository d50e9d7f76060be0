"""What a block has beside its convolutions: pooling, sums, products, group norm, masks from scores.

For each operator: what it computes, in plain PyTorch, for the tests; the shape of its result, for torch.compile and
torch.export; and its gradients, which are exact: an inactive output pixel is the constant 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .autograd import _activate, wide
from .dense import ACTIVATIONS, _spread, finish
from .forms import gradients
from .shapes import _images, _like, convolved, register_out

# ---- What they compute ------------------------------------------------------------------------


def max_pool2d(input, mask, kernel, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """What torch.ops.distile.max_pool2d computes."""
    return finish(F.max_pool2d(input, kernel, stride, padding, dilation), mask, None, "none")


def avg_pool2d(input, mask, kernel, *, stride=(1, 1), padding=(0, 0), count_padding=True):
    """What torch.ops.distile.avg_pool2d computes."""
    return finish(F.avg_pool2d(input, kernel, stride, padding, False, count_padding), mask, None, "none")


def global_pool(input, mask=None, *, maximum=False):
    """What torch.ops.distile.global_pool computes: [N, C, 1, 1], 0 for an image without an active pixel."""
    if mask is None:
        mask = torch.ones(input.shape[0], *input.shape[2:], dtype=torch.bool, device=input.device)
    seen = _spread(mask, input)
    count = mask.bool().sum((1, 2)).view(-1, 1, 1, 1)
    if maximum:
        return torch.where(count > 0, input.masked_fill(~seen, -torch.inf).amax((2, 3), keepdim=True), 0)
    return torch.where(seen, input, 0).sum((2, 3), keepdim=True) / count.clamp(min=1)


def add(input, other, mask, *, activation="none"):
    """What torch.ops.distile.add computes."""
    return finish(input + other, mask, None, activation)


def multiply(input, other, mask, *, other_activation="none", activation="none"):
    """What torch.ops.distile.multiply computes."""
    return finish(input * ACTIVATIONS[other_activation](other), mask, None, activation)


def activate(input, mask, *, activation="none"):
    """What torch.ops.distile.activate computes; without an activation, a copy of the active pixels."""
    return finish(input, mask, None, activation)


def _groups_last(input, groups):
    """[N, pixels, groups, channels of a group]"""
    rows = input.flatten(2).transpose(1, 2) if input.dim() == 4 else input
    return rows.unflatten(2, (groups, -1))


def group_statistics(input, mask=None, *, groups):
    """What torch.ops.distile.group_statistics computes: mean and variance, [N, groups], 0 without an active pixel."""
    rows = wide(_groups_last(input, groups))
    seen = torch.ones(rows.shape[:2], dtype=torch.bool, device=input.device) if mask is None else mask.bool().flatten(1)
    seen = seen[:, :, None, None]
    count = (seen.sum((1, 2, 3)) * rows.shape[3]).clamp(min=1)[:, None]
    mean = torch.where(seen, rows, 0).sum((1, 3)) / count
    differences = torch.where(seen, rows - mean[:, None, :, None], 0)
    return mean, differences.square().sum((1, 3)) / count


def group_norm(input, mask, weight, bias, mean=None, variance=None, *, groups, epsilon=1e-5, activation="none"):
    """What torch.ops.distile.group_norm computes: with the statistics of the active pixels, or with given ones."""
    if mean is None:
        mean, variance = group_statistics(input, mask, groups=groups)
    rows = wide(_groups_last(input, groups))
    shape = (-1, 1, groups, 1)
    rows = ((rows - mean.view(shape)) * torch.rsqrt(variance + epsilon).view(shape)).flatten(2)
    rows = rows if weight is None else rows * weight
    rows = rows if bias is None else rows + bias
    rows = rows.transpose(1, 2).reshape(input.shape) if input.dim() == 4 else rows
    return finish(rows, mask, None, activation).to(input.dtype)


def upsample_nearest(input, mask, *, scale=(2, 2)):
    """What torch.ops.distile.upsample_nearest computes."""
    larger = input.repeat_interleave(scale[0], 2).repeat_interleave(scale[1], 3)
    return finish(larger, mask, None, "none")


def mask_scores(input, weight=None, *, bias=0.0, threshold=0.0):
    """What torch.ops.distile.mask_scores computes."""
    channels_last = input.movedim(1, -1) if input.dim() == 4 else input
    scores = channels_last.float().sum(-1) if weight is None else channels_last.float() @ weight.float()
    return (scores + bias if bias else scores) > threshold


# ---- Shapes -----------------------------------------------------------------------------------


def _fake(name, function):
    torch.library.register_fake(f"distile::{name}", function)
    torch.library.register_fake(f"distile::{name}_inference", function)
    register_out(name)


def _pooled(input, mask, kernel, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1), count_padding=True):
    extents = [
        convolved(input.shape[2 + axis], padding[axis], padding[axis], dilation[axis], kernel[axis], stride[axis])
        for axis in (0, 1)
    ]
    return _images(input, *input.shape[:2], *extents)


def _combined(input, *_, **__):
    return _like(input)


_fake("max_pool2d", _pooled)
_fake("avg_pool2d", _pooled)
for _name in ("add", "multiply", "activate", "group_norm"):
    _fake(_name, _combined)


def _upsampled(input, mask, *, scale=(2, 2)):
    return _images(input, *input.shape[:2], input.shape[2] * scale[0], input.shape[3] * scale[1])


_fake("upsample_nearest", _upsampled)


@torch.library.register_fake("distile::global_pool")
def _(input, mask=None, *, maximum=False):
    return _images(input, *input.shape[:2], 1, 1)


@torch.library.register_fake("distile::group_statistics")
def _(input, mask=None, *, groups):
    return tuple(input.new_empty((input.shape[0], groups), dtype=torch.float32) for _ in range(2))


@torch.library.register_fake("distile::mask_scores")
def _(input, weight=None, *, bias=0.0, threshold=0.0):
    shape = (input.shape[0], *input.shape[2:]) if input.dim() == 4 else input.shape[:2]
    return input.new_empty(shape, dtype=torch.bool)


# ---- Gradients --------------------------------------------------------------------------------


def _register(name, backward, tensors=None):
    """`tensors`: how many of the positional arguments are tensors, if others follow."""

    def setup(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(*inputs[:tensors])
        ctx.others = () if tensors is None else inputs[tensors:]
        ctx.keywords = keyword_only_inputs

    torch.library.register_autograd(f"distile::{name}", backward, setup_context=setup, lib=gradients)


def _active(gradient, mask):
    return torch.where(_spread(mask, gradient), gradient, 0)


def _where_active(tensor, mask):
    """Inactive pixels may hold anything: 0 keeps it out of products."""
    return torch.where(_spread(mask, tensor), tensor, 0)


def _folded_to(gradient, other):
    """The gradient of an operand that may be one pixel, or token, for each image."""
    if other.shape == gradient.shape:
        return gradient
    return gradient.sum((2, 3) if gradient.dim() == 4 else 1, keepdim=True)


def _of_add(ctx, gradient):
    input, other, mask = ctx.saved_tensors
    before = _where_active(input + other, mask)
    change = _activate(ctx.keywords["activation"], before, _active(gradient, mask))
    return change, _folded_to(change, other), None


def _of_multiply(ctx, gradient):
    input, other, mask = ctx.saved_tensors
    input = _where_active(input, mask)
    one_pixel = other.shape != input.shape
    other = other if one_pixel else _where_active(other, mask)
    factor = ACTIVATIONS[ctx.keywords["other_activation"]](other)
    change = _activate(ctx.keywords["activation"], input * factor, _active(gradient, mask))
    for_other = _activate(ctx.keywords["other_activation"], other, _folded_to(change * input, other))
    return _active(change * factor, mask), for_other, None


def _of_activate(ctx, gradient):
    input, mask = ctx.saved_tensors
    return _activate(ctx.keywords["activation"], _where_active(input, mask), _active(gradient, mask)), None


def _of_max_pool(ctx, gradient):
    input, mask = ctx.saved_tensors
    window = [list(ctx.others[0]), *(list(ctx.keywords[name]) for name in ("stride", "padding", "dilation"))]
    _, places = torch.ops.aten.max_pool2d_with_indices(input, *window)
    change = torch.ops.aten.max_pool2d_with_indices_backward(_active(gradient, mask), input, *window, False, places)
    return change, None, None


def _of_avg_pool(ctx, gradient):
    input, mask = ctx.saved_tensors
    window = [list(ctx.others[0]), *(list(ctx.keywords[name]) for name in ("stride", "padding"))]
    count_padding = ctx.keywords["count_padding"]
    change = torch.ops.aten.avg_pool2d_backward(_active(gradient, mask), input, *window, False, count_padding, None)
    return change, None, None


def _of_upsample(ctx, gradient):
    _, mask = ctx.saved_tensors
    rows, columns = ctx.keywords["scale"]
    return _active(gradient, mask).unflatten(3, (-1, columns)).unflatten(2, (-1, rows)).sum((3, 5)), None


def _of_global_pool(ctx, gradient):
    input, mask = ctx.saved_tensors
    if mask is None:
        mask = torch.ones(input.shape[0], *input.shape[2:], dtype=torch.bool, device=input.device)
    if ctx.keywords["maximum"]:
        place = input.masked_fill(~_spread(mask, input), -torch.inf).flatten(2).argmax(2, keepdim=True)
        change = torch.zeros_like(input).flatten(2).scatter(2, place, gradient.flatten(2)).view(input.shape)
        return _active(change, mask), None
    count = mask.bool().sum((1, 2)).clamp(min=1).view(-1, 1, 1, 1)
    return _active((gradient / count).expand_as(input), mask), None


def _of_group_norm(ctx, gradient):
    input, mask, weight, bias, mean, variance = (*ctx.saved_tensors, None, None)[:6]
    groups, given = ctx.keywords["groups"], mean is not None
    if given and any(ctx.needs_input_grad[4:6]):
        raise RuntimeError("distile: group_norm has no gradients by statistics that are given")
    if not given:
        mean, variance = group_statistics(input, mask, groups=groups)
    shape = (-1, 1, groups, 1)
    inverse = torch.rsqrt(variance + ctx.keywords["epsilon"]).view(shape)
    seen = mask.bool().flatten(1)[:, :, None, None]
    normalized = torch.where(seen, (wide(_groups_last(input, groups)) - mean.view(shape)) * inverse, 0)
    flat = normalized.flatten(2)
    before = flat if weight is None else flat * weight
    before = before if bias is None else before + bias
    change = torch.where(seen, wide(_groups_last(gradient, groups)), 0).flatten(2)
    change = _activate(ctx.keywords["activation"], before, change)
    for_weight, for_bias = (change * flat).sum((0, 1)), change.sum((0, 1))
    change = (change if weight is None else change * weight).unflatten(2, (groups, -1))
    if not given:  # The statistics move with the input.
        count = (seen.sum((1, 2, 3)) * normalized.shape[3]).clamp(min=1).view(-1, 1, 1, 1)
        offset = change.sum((1, 3), keepdim=True) / count
        slope = (change * normalized).sum((1, 3), keepdim=True) / count
        change = torch.where(seen, change - offset - normalized * slope, 0)
    change = (change * inverse).flatten(2)
    change = change.transpose(1, 2).reshape(input.shape) if input.dim() == 4 else change
    for_weight, for_bias = (
        sums if parameter is None else sums.to(parameter.dtype)
        for sums, parameter in ((for_weight, weight), (for_bias, bias))
    )
    found = (change.to(input.dtype), None, for_weight, for_bias, None, None)[: len(ctx.needs_input_grad)]
    return tuple(tensor if wanted else None for tensor, wanted in zip(found, ctx.needs_input_grad))


def _of_statistics(ctx, *_):
    raise RuntimeError("distile: group_statistics has no gradients; call group_norm without statistics instead")


_register("add", _of_add)
_register("multiply", _of_multiply)
_register("activate", _of_activate)
_register("max_pool2d", _of_max_pool, tensors=2)
_register("avg_pool2d", _of_avg_pool, tensors=2)
_register("upsample_nearest", _of_upsample)
_register("global_pool", _of_global_pool)
_register("group_norm", _of_group_norm)
_register("group_statistics", _of_statistics)
