"""Gradients. Those of convolutions and linear layers are as masked as the operators: they gather the active pixels,
multiply them by PyTorch's matrix products, tap by tap, and touch nothing else. They are exact: an inactive output pixel
is the constant 0 and has no gradient. Types of 16 bits are multiplied as they are, and summed in float32."""

from __future__ import annotations

import torch

from . import dense
from ._facts import ACTIVATIONS
from ._library import ops
from .activations import split_slope
from .forms import gradients

CONV, TRANSPOSED, UPSAMPLED = range(3)


def _axis(kind, out, extent, before, stride, dilation, tap):
    """The input rows (or columns) that output rows read by one tap, and which of them exist."""
    if kind == TRANSPOSED:
        place = out + (before - tap * dilation)
        return torch.div(place, stride, rounding_mode="floor"), (place >= 0) & (place < extent * stride) & (
            place % stride == 0
        )
    if kind == UPSAMPLED:
        place = out + (tap * dilation - before)
        return torch.div(place, stride, rounding_mode="floor"), (place >= 0) & (place < extent * stride)
    place = out * stride + (tap * dilation - before)
    return place, (place >= 0) & (place < extent)


# What the table of activations calls, in PyTorch's numbers.
_PRIMITIVES = {
    "ABOVE": torch.gt,
    "BETWEEN": lambda x, low, high: (x > low) & (x < high),
    "CHOOSE": torch.where,
    "ERF": torch.erf,
    "EXP": torch.exp,
    "SIGMOID": torch.sigmoid,
    "SOFTPLUS": torch.nn.functional.softplus,
    "TANH": torch.tanh,
}
_GRADIENTS = {name: eval(f"lambda x, g, slope: {rule}", _PRIMITIVES) for name, (_, rule) in ACTIVATIONS.items()}


def _activate(activation, before, gradient):
    """The gradient before an activation, from the values before it."""
    name, slope = split_slope(activation)
    return _GRADIENTS[name](before, gradient, slope)


def _empty(like):
    return like.new_empty((0,))


def wide(tensor):
    """A tensor in the type of sums: float32, or float64 if it has that."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@torch.library.custom_op("distile::_convolution_backward", mutates_args=())
def _convolution_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mask: torch.Tensor,
    residual: torch.Tensor | None,
    kind: int,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    activation: str,
    needed: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, channels, height, width = input.shape
    image, y, x = mask.nonzero(as_tuple=True)
    rows = input.permute(0, 2, 3, 1).reshape(batch * height * width, channels)
    # [taps, groups, out / groups, in / groups]
    order = (3, 4, 0, 2, 1) if kind == TRANSPOSED else (3, 4, 0, 1, 2)
    taps = weight.to(input.dtype).unflatten(0, (groups, -1)).permute(order).flatten(0, 1)

    reads = []
    for i in range(weight.shape[2]):
        row, row_exists = _axis(kind, y, height, padding[0], stride[0], dilation[0], i)
        for j in range(weight.shape[3]):
            column, column_exists = _axis(kind, x, width, padding[2], stride[1], dilation[1], j)
            pixel = (row_exists & column_exists).nonzero().squeeze(1)
            reads.append((pixel, ((image * height + row) * width + column)[pixel]))

    active = wide(gradient.permute(0, 2, 3, 1)[image, y, x])
    if activation != "none":
        before = active.new_zeros(active.shape).unflatten(1, (groups, -1))
        for tap, (pixel, read) in zip(taps, reads):
            product = torch.einsum("agc,goc->ago", rows[read].unflatten(1, (groups, -1)), tap)
            before.index_add_(0, pixel, wide(product))
        before = before.flatten(1)
        if bias is not None:
            before += bias
        if residual is not None:
            before += residual.permute(0, 2, 3, 1)[image, y, x]
        active = _activate(activation, before, active)

    by_group = active.to(input.dtype).unflatten(1, (groups, -1))
    for_input, for_weight = _empty(input), _empty(weight)
    if needed[0]:
        sums = active.new_zeros(rows.shape)
        for tap, (pixel, read) in zip(taps, reads):
            sums.index_add_(0, read, wide(torch.einsum("ago,goc->agc", by_group[pixel], tap).flatten(1)))
        for_input = sums.to(input.dtype).view(batch, height, width, channels).permute(0, 3, 1, 2)
    if needed[1]:
        per_tap = torch.stack(
            [
                torch.einsum("ago,agc->goc", by_group[pixel], rows[read].unflatten(1, (groups, -1)))
                for pixel, read in reads
            ]
        ).unflatten(0, weight.shape[2:])
        order = (2, 4, 3, 0, 1) if kind == TRANSPOSED else (2, 3, 4, 0, 1)
        for_weight = per_tap.permute(order).flatten(0, 1).contiguous().to(weight.dtype)
    for_bias = active.sum(0).to(bias.dtype) if needed[2] else _empty(input)
    for_residual = _empty(input)
    if needed[3]:
        spread = torch.zeros_like(gradient, memory_format=torch.channels_last)
        spread.permute(0, 2, 3, 1)[image, y, x] = active.to(gradient.dtype)
        for_residual = spread
    return for_input, for_weight, for_bias, for_residual


@_convolution_backward.register_fake
def _(gradient, input, weight, bias, mask, residual, kind, stride, padding, dilation, groups, activation, needed):
    last = torch.channels_last
    return (
        torch.empty_like(input, memory_format=last) if needed[0] else _empty(input),
        torch.empty_like(weight, memory_format=torch.contiguous_format) if needed[1] else _empty(weight),
        bias.new_empty(gradient.shape[1]) if needed[2] else _empty(input),
        torch.empty_like(gradient, memory_format=last) if needed[3] else _empty(input),
    )


@torch.library.custom_op("distile::_linear_backward", mutates_args=())
def _linear_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mask: torch.Tensor,
    residual: torch.Tensor | None,
    activation: str,
    needed: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    where = mask.nonzero(as_tuple=True)
    active, rows, factors = wide(gradient[where]), input[where], weight.to(input.dtype)
    if activation != "none":
        before = wide(rows @ factors.T)
        before = before if bias is None else before + bias
        active = _activate(activation, before if residual is None else before + residual[where], active)
    tokens = active.to(input.dtype)

    def spread(tokens, shape):
        return input.new_zeros(shape).index_put_(where, tokens.to(input.dtype))

    return (
        spread(tokens @ factors, input.shape) if needed[0] else _empty(input),
        (tokens.T @ rows).to(weight.dtype) if needed[1] else _empty(weight),
        active.sum(0).to(bias.dtype) if needed[2] else _empty(input),
        spread(tokens, gradient.shape) if needed[3] else _empty(input),
    )


@_linear_backward.register_fake
def _(gradient, input, weight, bias, mask, residual, activation, needed):
    return (
        input.new_empty(input.shape) if needed[0] else _empty(input),
        weight.new_empty(weight.shape) if needed[1] else _empty(weight),
        bias.new_empty(gradient.shape[2]) if needed[2] else _empty(input),
        gradient.new_empty(gradient.shape) if needed[3] else _empty(input),
    )


@torch.library.custom_op("distile::_attention_backward", mutates_args=())
def _attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    key_mask: torch.Tensor | None,
    scale: float,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = query.dtype
    gradient, query, key, value = map(wide, (gradient, query, key, value))
    if key_mask is not None:  # Keys that are not active may hold anything.
        seen = key_mask.bool()[:, None, :, None]
        key, value = (torch.where(seen, tensor, tensor.new_zeros(())) for tensor in (key, value))
    rows = mask.bool()[:, None, :, None]
    gradient, query = (torch.where(rows, tensor, tensor.new_zeros(())) for tensor in (gradient, query))
    likely = dense.probabilities(query, key, key_mask, scale, causal)
    for_likely = gradient @ value.transpose(-1, -2)
    for_scores = likely * (for_likely - (for_likely * likely).sum(-1, keepdim=True)) * (scale or query.shape[3] ** -0.5)
    found = for_scores @ key, for_scores.transpose(-1, -2) @ query, likely.transpose(-1, -2) @ gradient
    return tuple(tensor.to(dtype) for tensor in found)


@_attention_backward.register_fake
def _(gradient, query, key, value, mask, key_mask, scale, causal):
    return tuple(tensor.new_empty(tensor.shape) for tensor in (query, key, value))


@torch.library.custom_op("distile::_norm_backward", mutates_args=())
def _norm_backward(
    gradient: torch.Tensor,
    input: torch.Tensor,
    mask: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    layer: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    where = mask.nonzero(as_tuple=True)
    images = input.dim() == 4
    channels_last = (0, 2, 3, 1) if images else (0, 1, 2)
    rows, active = (wide(tensor.permute(channels_last)[where]) for tensor in (input, gradient))
    centered = rows - rows.mean(1, keepdim=True) if layer else rows
    inverse = torch.rsqrt(centered.square().mean(1, keepdim=True) + epsilon)
    normalized = centered * inverse
    scaled = active if weight is None else active * weight
    change = scaled - normalized * (scaled * normalized).mean(1, keepdim=True)
    if layer:
        change = change - scaled.mean(1, keepdim=True)
    for_input = torch.zeros_like(input, memory_format=torch.channels_last if images else torch.contiguous_format)
    for_input.permute(channels_last)[where] = (change * inverse).to(input.dtype)
    return for_input, (active * normalized).sum(0), active.sum(0)


@_norm_backward.register_fake
def _(gradient, input, mask, weight, epsilon, layer):
    channels = input.shape[1] if input.dim() == 4 else input.shape[2]
    form = torch.channels_last if input.dim() == 4 else torch.contiguous_format
    sums = (wide(input.new_empty(channels)) for _ in range(2))
    return torch.empty_like(input, memory_format=form), *sums


@torch.library.custom_op("distile::_unpack_backward", mutates_args=())
def _unpack_backward(gradient: torch.Tensor, mask: torch.Tensor, capacity: int) -> torch.Tensor:
    for_packed = gradient.new_zeros((capacity, gradient.shape[1 if gradient.dim() == 4 else 2]))
    return ops.pack.out(gradient, mask, out=for_packed)


@_unpack_backward.register_fake
def _(gradient, mask, capacity):
    return gradient.new_empty((capacity, gradient.shape[1 if gradient.dim() == 4 else 2]))


def _register(name, parameters, backward_of):
    def setup(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.parameters = [keyword_only_inputs[name] for name in parameters]

    def backward(ctx, gradient):
        wanted = ctx.needs_input_grad
        # The dispatcher leaves out a residual that is None.
        needed = [wanted[0], wanted[1], wanted[2], len(wanted) > 4 and wanted[4]]
        found = backward_of(gradient, *ctx.saved_tensors, *ctx.parameters, needed)
        for_input, for_weight, for_bias, for_residual = (
            tensor if wanted else None for tensor, wanted in zip(found, needed)
        )
        return for_input, for_weight, for_bias, None, for_residual

    torch.library.register_autograd(f"distile::{name}", backward, setup_context=setup, lib=gradients)


def _convolution(name, kind, stride="stride"):
    def backward_of(
        gradient, input, weight, bias, mask, residual, stride, padding, dilation, groups, activation, needed
    ):
        return ops._convolution_backward(
            gradient, input, weight, bias, mask, residual, kind, stride, padding, dilation, groups, activation, needed
        )

    _register(name, (stride, "padding", "dilation", "groups", "activation"), backward_of)


_convolution("conv2d", CONV)
_convolution("conv_transpose2d", TRANSPOSED)
_convolution("upsample_conv2d", UPSAMPLED, "scale")
_register("linear", ("activation",), ops._linear_backward)


def _setup_attention(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.parameters = keyword_only_inputs["scale"], keyword_only_inputs["causal"]


def _of_attention(ctx, gradient):
    found = ops._attention_backward(gradient, *ctx.saved_tensors, *ctx.parameters)
    return *(tensor if wanted else None for tensor, wanted in zip(found, ctx.needs_input_grad)), None, None


torch.library.register_autograd("distile::attention", _of_attention, setup_context=_setup_attention, lib=gradients)


def _setup_norm(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.epsilon = keyword_only_inputs["epsilon"]
    ctx.types = [parameter.dtype if parameter is not None else inputs[0].dtype for parameter in inputs[2:]]


def _of_norm(ctx, gradient, layer):
    for_input, *for_parameters = ops._norm_backward(gradient, *ctx.saved_tensors, ctx.epsilon, layer)
    found = (for_input, None, *(change.to(dtype) for change, dtype in zip(for_parameters, ctx.types)))
    return tuple(change if wanted else None for change, wanted in zip(found, ctx.needs_input_grad))


def _of_layer_norm(ctx, gradient):
    return _of_norm(ctx, gradient, True)


def _of_rms_norm(ctx, gradient):
    return _of_norm(ctx, gradient, False)


torch.library.register_autograd("distile::layer_norm", _of_layer_norm, setup_context=_setup_norm, lib=gradients)
torch.library.register_autograd("distile::rms_norm", _of_rms_norm, setup_context=_setup_norm, lib=gradients)


def _setup_pack(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _setup_unpack(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.capacity = inputs[0].shape[0]


torch.library.register_autograd(
    "distile::pack",
    lambda ctx, gradient: (ops.unpack(gradient, *ctx.saved_tensors), None),
    setup_context=_setup_pack,
    lib=gradients,
)
torch.library.register_autograd(
    "distile::unpack",
    lambda ctx, gradient: (ops._unpack_backward(gradient, *ctx.saved_tensors, ctx.capacity), None),
    setup_context=_setup_unpack,
    lib=gradients,
)


def _twice(ctx, *_):
    raise RuntimeError(
        "distile: masked convolutions, linear layers, attention and norms have no second derivatives: compute what is "
        "differentiated twice without a mask, in distile.mask(None)"
    )


for _name in ("_convolution_backward", "_linear_backward", "_attention_backward", "_norm_backward"):
    torch.library.register_autograd(f"distile::{_name}", _twice, lib=gradients)
torch.library.register_autograd(
    "distile::_unpack_backward",
    lambda ctx, gradient: (ops.unpack(gradient, *ctx.saved_tensors), None, None),
    setup_context=_setup_pack,
    lib=gradients,
)
