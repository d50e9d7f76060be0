"""The shapes and strides of results, without computing them: for torch.compile and torch.export."""

from __future__ import annotations

import torch

from ._library import ops


def _images(like, batch, channels, height, width):
    return torch.empty_strided(
        (batch, channels, height, width),
        (height * width * channels, 1, width * channels, channels),
        dtype=like.dtype,
        device=like.device,
    )


def convolved(extent, before, after, dilation, kernel, stride):
    """The output extent of a convolution along one axis."""
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1


@torch.library.register_fake("distile::conv2d_inference")
@torch.library.register_fake("distile::conv2d")
def _conv2d(
    input,
    weight,
    bias,
    mask,
    residual=None,
    *,
    stride=(1, 1),
    padding=(0, 0, 0, 0),
    dilation=(1, 1),
    groups=1,
    activation="none",
    place=0,
):
    height = convolved(input.shape[2], padding[0], padding[1], dilation[0], weight.shape[2], stride[0])
    width = convolved(input.shape[3], padding[2], padding[3], dilation[1], weight.shape[3], stride[1])
    return _images(input, input.shape[0], weight.shape[0], height, width)


@torch.library.register_fake("distile::conv_transpose2d_inference")
@torch.library.register_fake("distile::conv_transpose2d")
def _conv_transpose2d(
    input,
    weight,
    bias,
    mask,
    residual=None,
    *,
    stride=(1, 1),
    output_padding=(0, 0),
    padding=(0, 0, 0, 0),
    dilation=(1, 1),
    groups=1,
    activation="none",
    place=0,
):
    def extent(axis):
        return (
            (input.shape[2 + axis] - 1) * stride[axis]
            + dilation[axis] * (weight.shape[2 + axis] - 1)
            + 1
            + output_padding[axis]
            - padding[2 * axis]
            - padding[2 * axis + 1]
        )

    return _images(input, input.shape[0], weight.shape[1] * groups, extent(0), extent(1))


@torch.library.register_fake("distile::upsample_conv2d_inference")
@torch.library.register_fake("distile::upsample_conv2d")
def _upsample_conv2d(
    input,
    weight,
    bias,
    mask,
    residual=None,
    *,
    scale=(2, 2),
    padding=(0, 0, 0, 0),
    dilation=(1, 1),
    groups=1,
    activation="none",
    place=0,
):
    height = convolved(input.shape[2] * scale[0], padding[0], padding[1], dilation[0], weight.shape[2], 1)
    width = convolved(input.shape[3] * scale[1], padding[2], padding[3], dilation[1], weight.shape[3], 1)
    return _images(input, input.shape[0], weight.shape[0], height, width)


@torch.library.register_fake("distile::linear_inference")
@torch.library.register_fake("distile::linear")
def _linear(input, weight, bias, mask, residual=None, *, activation="none", place=0):
    return input.new_empty((input.shape[0], input.shape[1], weight.shape[0]))


@torch.library.register_fake("distile::attention_inference")
@torch.library.register_fake("distile::attention")
def _attention(query, key, value, mask, key_mask=None, *, scale=0, causal=False):
    batch, heads, tokens, head_dim = query.shape
    return query.new_empty((batch, tokens, heads, head_dim)).transpose(1, 2)


def _like(input):
    return _images(input, *input.shape) if input.dim() == 4 else input.new_empty(input.shape)


@torch.library.register_fake("distile::layer_norm_inference")
@torch.library.register_fake("distile::layer_norm")
def _layer_norm(input, mask, weight, bias, *, epsilon=1e-5):
    return _like(input)


@torch.library.register_fake("distile::rms_norm_inference")
@torch.library.register_fake("distile::rms_norm")
def _rms_norm(input, mask, weight, *, epsilon=1e-6):
    return _like(input)


@torch.library.register_fake("distile::pack")
def _pack(input, mask):
    active = torch.library.get_ctx().new_dynamic_size()
    return input.new_empty((active, input.shape[1] if input.dim() == 4 else input.shape[2]))


@torch.library.register_fake("distile::unpack")
def _unpack(packed, mask):
    if mask.dim() == 3:
        return _images(packed, mask.shape[0], packed.shape[1], mask.shape[1], mask.shape[2])
    return packed.new_empty((*mask.shape, packed.shape[1]))


@torch.library.register_fake("distile::cumulative_lengths")
def _cumulative_lengths(mask):
    return mask.new_empty((mask.shape[0] + 1,), dtype=torch.int32)


@torch.library.register_fake("distile::mask_dilate")
def _mask_dilate(mask, radius_h, radius_w):
    return mask.new_empty(mask.shape, dtype=torch.bool)


@torch.library.register_fake("distile::mask_pool")
def _mask_pool(mask, factor_h, factor_w):
    height, width = mask.shape[1:]
    return mask.new_empty(
        (mask.shape[0], (height + factor_h - 1) // factor_h, (width + factor_w - 1) // factor_w), dtype=torch.bool
    )


def _window(mask, size, kernel, *, stride=(1, 1), dilation=(1, 1), padding=(0, 0), kind=0):
    return mask.new_empty((mask.shape[0], *size), dtype=torch.bool)


torch.library.register_fake("distile::mask_needed_input", _window)
torch.library.register_fake("distile::mask_affected_output", _window)


@torch.library.register_fake("distile::mask_difference")
def _mask_difference(a, b, threshold=0):
    shape = (a.shape[0], *a.shape[2:]) if a.dim() == 4 else a.shape[:2]
    return a.new_empty(shape, dtype=torch.bool)


@torch.library.register_fake("distile::mask_from_indices")
def _mask_from_indices(indices, height, width):
    return indices.new_empty((indices.shape[0], height, width), dtype=torch.bool)


@torch.library.register_fake("distile::mask_from_bits")
def _mask_from_bits(words, width):
    return words.new_empty((*words.shape[:2], width), dtype=torch.bool)


@torch.library.register_fake("distile::mask_to_bits")
def _mask_to_bits(mask):
    return mask.new_empty((*mask.shape[:2], (mask.shape[2] + 31) // 32), dtype=torch.int32)


def _given(*args, out, **keywords):
    return out


_library = torch.library.Library("distile", "IMPL")


def register_out(name, given=_given):
    """Registers what PyTorch needs to know of the forms that write into given tensors. torch.compile cannot trace
    operators that return an argument, so it traces `_into` in place of `.out`."""
    into = getattr(ops, f"{name}_into").default

    def traced(*args, **keywords):
        result = given(*args, **keywords)
        if "out" in keywords:
            keywords["into"] = keywords.pop("out")
        into(*args, **keywords)
        return result

    torch.library.register_fake(f"distile::{name}.out", given)
    torch.library.register_fake(f"distile::{name}_into", lambda *args, **keywords: None)
    _library.impl(f"{name}.out", traced, "CompositeImplicitAutograd")


register_out("group_statistics", lambda *args, mean, variance, **_: (mean, variance))


for _name in (
    "conv2d",
    "conv_transpose2d",
    "upsample_conv2d",
    "linear",
    "attention",
    "layer_norm",
    "rms_norm",
    "pack",
    "unpack",
    "global_pool",
    "cumulative_lengths",
    "mask_scores",
    "mask_dilate",
    "mask_pool",
    "mask_needed_input",
    "mask_affected_output",
    "mask_difference",
    "mask_from_indices",
    "mask_from_bits",
    "mask_to_bits",
):
    register_out(_name)
