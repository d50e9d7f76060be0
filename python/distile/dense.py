"""The dense twins of the operators: PyTorch's own operator, and then the mask.

The library calls them where it has no PolyKernel. They also say what the operators compute, for the tests.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from . import _facts, numerics, operators, polykernels
from ._library import ops
from .activations import split_slope
from .weight_zeros import zeros_of

MOST_TOKENS = 65535  # As the library takes in one call.
BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_library = torch.library.Library("distile", "FRAGMENT")


class _Activations(dict):
    """PyTorch's functions by their names, which are the same. A name may have a slope behind it."""

    def __missing__(self, text):
        name, slope = split_slope(text)
        return functools.partial(self[name], negative_slope=slope)


ACTIVATIONS = _Activations(
    {name: (lambda x: x) if name == "none" else getattr(F, name) for name in _facts.ACTIVATIONS}
)


def finish(result, mask, residual, activation):
    """Adds the residual and applies the activation; zero where the mask is not active."""
    if residual is not None:
        result = result + residual
    result = ACTIVATIONS[activation](result)
    return torch.where(_spread(mask, result), result, result.new_zeros(()))


def _finish_own(result, mask, residual, activation):
    """finish() of a result that nobody else has. Where it needs no gradients, its bits are cleared in place, which takes a
    sixth of the time."""
    if torch.is_grad_enabled() or result.dtype not in BITS:
        return finish(result, mask, residual, activation)
    if residual is not None:
        result = result + residual
    result = ACTIVATIONS[activation](result)
    bits = BITS[result.dtype]
    result.view(bits).bitwise_and_(_spread(mask, result).to(bits).neg_())  # All bits of -1 are set.
    return result


def _spread(mask, result):
    """The mask with the dimensions of a result: images [N, C, H, W] or tokens [N, T, C]."""
    return mask.bool().unsqueeze(1 if result.dim() == 4 else -1)


def conv2d(input, weight, bias, mask, residual, stride, padding, dilation, groups, activation):
    """What torch.ops.distile.conv2d computes."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        result = F.conv2d(input, weight, bias, stride, (top, left), dilation, groups)
    else:
        result = F.conv2d(F.pad(input, (left, right, top, bottom)), weight, bias, stride, 0, dilation, groups)
    return _finish_own(result, mask, residual, activation)


def conv_transpose2d(
    input, weight, bias, mask, residual, stride, output_padding, padding, dilation, groups, activation
):
    """What torch.ops.distile.conv_transpose2d computes."""
    top, bottom, left, right = padding
    full = F.conv_transpose2d(input, weight, bias, stride, 0, output_padding, groups, dilation)
    own = full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right]
    return _finish_own(own, mask, residual, activation)


def upsample_conv2d(input, weight, bias, mask, residual, scale, padding, dilation, groups, activation):
    """What torch.ops.distile.upsample_conv2d computes."""
    larger = input.repeat_interleave(scale[0], 2).repeat_interleave(scale[1], 3)
    return conv2d(larger, weight, bias, mask, residual, (1, 1), padding, dilation, groups, activation)


def linear(input, weight, bias, mask, residual, activation):
    """What torch.ops.distile.linear computes."""
    return _finish_own(F.linear(input, weight, bias), mask, residual, activation)


def _run(operator, typical, masked, dense, out, zero, mask, reason):
    """Runs the masked operator if the cache folder has its PolyKernel, or the library code for any shape; else the dense
    twin."""
    if polykernels.provide(operator, typical, reason):
        return masked()
    if polykernels.takes_general_code(operator):
        with polykernels.general_code(operator, typical):
            return masked()
    with torch.no_grad():
        result = dense()
        if out is None:
            return result.contiguous(memory_format=torch.channels_last) if result.dim() == 4 else result.contiguous()
        if zero:
            return out.copy_(result)
        return out.copy_(torch.where(_spread(mask, result), result, out))


def _image_size(input):
    return dict(zip(("batch", "height", "width"), (input.shape[0], *input.shape[2:])))


def _token_size(input):
    return {"batch": input.shape[0], "tokens": input.shape[1]}


def _reason(input):
    return (
        f"no PolyKernel computes tensors of type {input.dtype}"
        if input.dtype not in operators.TYPES
        else "no PolyKernel computes this operator"
    )


def _computed(dtype):
    """The type in which twins compute: types of 8 bits are for storage, and PolyKernels keep weights in float32."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize == 1 else dtype


def _converted(input, *parameters):
    """Parameters in the type in which the twin of an input computes, as PolyKernels pack them."""
    dtype = _computed(input.dtype)
    return (parameter if parameter is None else parameter.to(dtype) for parameter in parameters)


def _twin(name, dense, size):
    """A dense twin as the library calls it: tensors, residual, parameters, place, zero, out."""
    weighted = operators.WEIGHTED[name]

    def run(input, weight, bias, mask, residual, *rest):
        *params, place, zero, out = rest
        masked = getattr(ops, name)

        def twin(input, weight, bias, mask, residual, *params):
            wide, weight, bias, added = _converted(input, input, weight, bias, residual)
            return dense(wide, weight, bias, mask, added, *params).to(input.dtype)

        def again():
            keywords = dict(zip(weighted.parameters, params), place=place)
            if out is None:
                return masked.default(input, weight, bias, mask, residual, **keywords)
            return masked.out(input, weight, bias, mask, residual, **keywords, zero=zero, out=out)

        operator, typical = weighted.operator(input, weight, residual, *params), size(input)
        if operator is not None:
            operator = operator.on(mask.device.type)
            typical.update(zeros_of(weight, operator, typical, numerics.math()))
        return _run(
            operator,
            typical,
            again,
            lambda: twin(input, weight, bias, mask, residual, *params),
            out,
            zero,
            mask,
            _reason(input),
        )

    types = {"activation": "str", "groups": "int", "padding": "int[]"}
    params = ", ".join(f"{types.get(param, 'int[]')} {param}" for param in weighted.parameters)
    _library.define(
        f"_dense_{name}(Tensor input, Tensor weight, Tensor? bias, Tensor mask, Tensor? residual, {params}, "
        "int place, bool zero, Tensor? out) -> Tensor"
    )
    _library.impl(f"_dense_{name}", run, "CompositeExplicitAutograd")


_twin("conv2d", conv2d, _image_size)
_twin("conv_transpose2d", conv_transpose2d, _image_size)
_twin("upsample_conv2d", upsample_conv2d, _image_size)
_twin("linear", linear, _token_size)


def probabilities(query, key, key_mask, scale, causal):
    """[N, heads, T, key tokens]; 0 in rows without a key."""
    scores = query @ key.transpose(-1, -2) * (scale or query.shape[3] ** -0.5)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
    if causal:
        visible = visible.tril(key.shape[2] - query.shape[2])
    if key_mask is not None:
        visible = visible & key_mask.bool()[:, None, None, :]
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), -1).masked_fill(~visible.any(-1, keepdim=True), 0)


def attention(query, key, value, mask, key_mask, scale, causal):
    """What torch.ops.distile.attention computes."""
    if key_mask is not None:  # Keys that are not active may hold anything.
        value = torch.where(key_mask.bool()[:, None, :, None], value, value.new_zeros(()))
    result = probabilities(query, key, key_mask, scale, causal) @ value
    return torch.where(mask.bool()[:, None, :, None], result, result.new_zeros(()))


def _packed_attention(query, key, value, mask, key_mask, scale, causal, zero, out):
    """Attention of more tokens than an image has columns, by the active ones alone."""
    if causal:
        raise RuntimeError(f"distile: causal attention takes at most {MOST_TOKENS} tokens")
    if out is None:
        batch, heads, tokens, head_dim = query.shape
        out = query.new_zeros((batch, tokens, heads, head_dim)).transpose(1, 2)
    elif zero:
        out.zero_()
    for image, rows in enumerate(mask.bool()):
        seen = rows.new_ones(key.shape[2]) if key_mask is None else key_mask[image].bool()
        keys = seen.nonzero().squeeze(1)
        if len(keys) > MOST_TOKENS:
            raise RuntimeError(f"distile: attention has {len(keys)} active keys, but takes at most {MOST_TOKENS}")
        packed = [tensor[image : image + 1].index_select(2, keys) for tensor in (key, value)]
        for part in rows.nonzero().squeeze(1).split(MOST_TOKENS):
            queries, every = query[image : image + 1].index_select(2, part), part.new_ones((1, len(part))).bool()
            out[image, :, part] = ops.attention.default(queries, *packed, every, scale=scale)[0]
    return out


def _dense_attention(query, key, value, mask, key_mask, scale, causal, zero, out):
    operator = operators.attention_operator(query, causal)
    operator = None if operator is None else operator.on(query.device.type)

    def again():
        keywords = dict(scale=scale, causal=causal)
        if out is None:
            return ops.attention.default(query, key, value, mask, key_mask, **keywords)
        return ops.attention.out(query, key, value, mask, key_mask, **keywords, zero=zero, out=out)

    typical = {"batch": query.shape[0], "tokens": query.shape[2], "key_tokens": key.shape[2]}
    if max(query.shape[2], key.shape[2]) > MOST_TOKENS:
        with torch.no_grad():
            return _packed_attention(query, key, value, mask, key_mask, scale, causal, zero, out)
    if polykernels.provide(operator, typical, _reason(query)):
        return again()
    with torch.no_grad():
        result = attention(*_converted(query, query, key, value), mask, key_mask, scale, causal).to(query.dtype)
        if out is None:
            return result.transpose(1, 2).contiguous().transpose(1, 2)
        return out.copy_(result if zero else torch.where(mask.bool()[:, None, :, None], result, out))


_library.define(
    "_dense_attention(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor? key_mask, float scale, "
    "bool causal, bool zero, Tensor? out) -> Tensor"
)
_library.impl("_dense_attention", _dense_attention, "CompositeExplicitAutograd")
ops._define_twins()


def layer_norm(input, mask, weight, bias, epsilon):
    """What torch.ops.distile.layer_norm computes."""
    rows = input.movedim(1, -1) if input.dim() == 4 else input
    rows = F.layer_norm(rows, rows.shape[-1:], weight, bias, epsilon)
    return finish(rows.movedim(-1, 1) if input.dim() == 4 else rows, mask, None, "none")


def rms_norm(input, mask, weight, epsilon):
    """What torch.ops.distile.rms_norm computes."""
    rows = input.movedim(1, -1) if input.dim() == 4 else input
    rows = F.rms_norm(rows, rows.shape[-1:], weight, epsilon)
    return finish(rows.movedim(-1, 1) if input.dim() == 4 else rows, mask, None, "none")
