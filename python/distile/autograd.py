"""Gradients. Those of convolutions and linear layers are as masked as the operators: they gather the active pixels,
multiply them by PyTorch's matrix products, tap by tap, and touch nothing else. They are exact: an inactive output pixel
is the constant 0 and has no gradient."""
from __future__ import annotations

import math

import torch

from ._library import ops

CONV, TRANSPOSED, UPSAMPLED = range(3)


def _axis(kind, out, extent, before, stride, dilation, tap):
    """The input rows (or columns) that output rows read by one tap, and which of them exist."""
    if kind == TRANSPOSED:
        place = out + (before - tap * dilation)
        return torch.div(place, stride, rounding_mode="floor"), (place >= 0) & (place < extent * stride) & (
            place % stride == 0)
    if kind == UPSAMPLED:
        place = out + (tap * dilation - before)
        return torch.div(place, stride, rounding_mode="floor"), (place >= 0) & (place < extent * stride)
    place = out * stride + (tap * dilation - before)
    return place, (place >= 0) & (place < extent)


def _activate(activation, before, gradient):
    """The gradient before an activation, from the values before it."""
    if activation == "none":
        return gradient
    if activation == "relu":
        return gradient * (before > 0)
    if activation == "relu6":
        return gradient * ((before > 0) & (before < 6))
    if activation == "silu":
        logistic = torch.sigmoid(before)
        return gradient * (logistic * (1 + before * (1 - logistic)))
    density = torch.exp(before * before * -.5) / math.sqrt(2 * math.pi)
    return gradient * (.5 * (1 + torch.erf(before * math.sqrt(.5))) + before * density)


def _empty(like):
    return like.new_empty((0,))


@torch.library.custom_op("distile::_convolution_backward", mutates_args=())
def _convolution_backward(gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                          mask: torch.Tensor, residual: torch.Tensor | None, kind: int, stride: list[int],
                          padding: list[int], dilation: list[int], groups: int, activation: str,
                          needed: list[bool]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, channels, height, width = input.shape
    image, y, x = mask.nonzero(as_tuple=True)
    rows = input.permute(0, 2, 3, 1).reshape(batch * height * width, channels)
    # [taps, groups, out / groups, in / groups]
    if kind == TRANSPOSED:
        taps = weight.unflatten(0, (groups, -1)).permute(3, 4, 0, 2, 1).flatten(0, 1)
    else:
        taps = weight.unflatten(0, (groups, -1)).permute(3, 4, 0, 1, 2).flatten(0, 1)

    reads = []
    for i in range(weight.shape[2]):
        row, row_exists = _axis(kind, y, height, padding[0], stride[0], dilation[0], i)
        for j in range(weight.shape[3]):
            column, column_exists = _axis(kind, x, width, padding[2], stride[1], dilation[1], j)
            pixel = (row_exists & column_exists).nonzero().squeeze(1)
            reads.append((pixel, ((image * height + row) * width + column)[pixel]))

    active = gradient.permute(0, 2, 3, 1)[image, y, x]
    if activation != "none":
        before = active.new_zeros(active.shape).unflatten(1, (groups, -1))
        for tap, (pixel, read) in zip(taps, reads):
            before.index_add_(0, pixel, torch.einsum("agc,goc->ago", rows[read].unflatten(1, (groups, -1)), tap))
        before = before.flatten(1)
        if bias is not None:
            before += bias
        if residual is not None:
            before += residual.permute(0, 2, 3, 1)[image, y, x]
        active = _activate(activation, before, active)

    by_group = active.unflatten(1, (groups, -1))
    for_input, for_weight = _empty(input), _empty(weight)
    if needed[0]:
        sums = torch.zeros_like(rows)
        for tap, (pixel, read) in zip(taps, reads):
            sums.index_add_(0, read, torch.einsum("ago,goc->agc", by_group[pixel], tap).flatten(1))
        for_input = sums.view(batch, height, width, channels).permute(0, 3, 1, 2)
    if needed[1]:
        per_tap = torch.stack([
            torch.einsum("ago,agc->goc", by_group[pixel], rows[read].unflatten(1, (groups, -1)))
            for pixel, read in reads]).unflatten(0, weight.shape[2:])
        order = (2, 4, 3, 0, 1) if kind == TRANSPOSED else (2, 3, 4, 0, 1)
        for_weight = per_tap.permute(order).flatten(0, 1).contiguous()
    for_bias = active.sum(0) if needed[2] else _empty(input)
    for_residual = _empty(input)
    if needed[3]:
        spread = torch.zeros_like(gradient, memory_format=torch.channels_last)
        spread.permute(0, 2, 3, 1)[image, y, x] = active
        for_residual = spread
    return for_input, for_weight, for_bias, for_residual


@_convolution_backward.register_fake
def _(gradient, input, weight, bias, mask, residual, kind, stride, padding, dilation, groups, activation, needed):
    last = torch.channels_last
    return (torch.empty_like(input, memory_format=last) if needed[0] else _empty(input),
            torch.empty_like(weight, memory_format=torch.contiguous_format) if needed[1] else _empty(weight),
            gradient.new_empty(gradient.shape[1]) if needed[2] else _empty(input),
            torch.empty_like(gradient, memory_format=last) if needed[3] else _empty(input))


@torch.library.custom_op("distile::_linear_backward", mutates_args=())
def _linear_backward(gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                     mask: torch.Tensor, residual: torch.Tensor | None, activation: str,
                     needed: list[bool]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    where = mask.nonzero(as_tuple=True)
    active, rows = gradient[where], input[where]
    if activation != "none":
        before = torch.nn.functional.linear(rows, weight, bias)
        active = _activate(activation, before if residual is None else before + residual[where], active)

    def spread(tokens, shape):
        return tokens.new_zeros(shape).index_put_(where, tokens)

    return (spread(active @ weight, input.shape) if needed[0] else _empty(input),
            active.T @ rows if needed[1] else _empty(weight),
            active.sum(0) if needed[2] else _empty(input),
            spread(active, gradient.shape) if needed[3] else _empty(input))


@_linear_backward.register_fake
def _(gradient, input, weight, bias, mask, residual, activation, needed):
    return (input.new_empty(input.shape) if needed[0] else _empty(input),
            weight.new_empty(weight.shape) if needed[1] else _empty(weight),
            gradient.new_empty(gradient.shape[2]) if needed[2] else _empty(input),
            gradient.new_empty(gradient.shape) if needed[3] else _empty(input))


def _register(name, parameters, backward_of):
    def setup(context, inputs, keyword_only_inputs, output):
        context.save_for_backward(*inputs)
        context.parameters = [keyword_only_inputs[name] for name in parameters]

    def backward(context, gradient):
        needed = [context.needs_input_grad[i] for i in (0, 1, 2, 4)]
        found = backward_of(gradient, *context.saved_tensors, *context.parameters, needed)
        for_input, for_weight, for_bias, for_residual = (
            tensor if wanted else None for tensor, wanted in zip(found, needed))
        return for_input, for_weight, for_bias, None, for_residual

    torch.library.register_autograd(f"distile::{name}", backward, setup_context=setup)


def _convolution(name, kind, stride="stride"):
    def backward_of(gradient, input, weight, bias, mask, residual, stride, padding, dilation, groups, activation,
                    needed):
        return ops._convolution_backward(gradient, input, weight, bias, mask, residual, kind, stride, padding, dilation,
                                         groups, activation, needed)

    _register(name, (stride, "padding", "dilation", "groups", "activation"), backward_of)


_convolution("conv2d", CONV)
_convolution("conv_transpose2d", TRANSPOSED)
_convolution("upsample_conv2d", UPSAMPLED, "scale")
_register("linear", ("activation",), ops._linear_backward)
