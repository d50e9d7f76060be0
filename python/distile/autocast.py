"""What torch.autocast makes of the operators, as of PyTorch's own: convolutions, linear layers and attention compute in
its type, sums and products in the wider type of both tensors, and all others in the type that they are given.

Weights stay as they are, because packing converts them, once. `out` forms ignore autocast.
"""

from __future__ import annotations

import torch

from ._library import ops

_library = torch.library.Library("distile", "IMPL")
_DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _lowered(tensor, device):
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _lower_weighted(device, input, weight, bias, mask, residual=None):
    return _lowered(input, device), weight, bias, mask, _lowered(residual, device)


def _lower_attention(device, query, key, value, *masks):
    return *(_lowered(tensor, device) for tensor in (query, key, value)), *masks


def _widen(device, input, other, mask):
    dtype = torch.promote_types(input.dtype, other.dtype)
    return input.to(dtype), other.to(dtype), mask


def _register(name, convert):
    for form in (name, f"{name}_inference"):
        operator = getattr(ops, form).default
        for device, key in _DEVICES.items():

            def run(*tensors, operator=operator, device=device, **keywords):
                tensors = convert(device, *tensors)
                with torch.autocast(device, enabled=False):
                    return operator(*tensors, **keywords)

            _library.impl(form, run, key)


for _name in ("conv2d", "conv_transpose2d", "upsample_conv2d", "linear"):
    _register(_name, _lower_weighted)
_register("attention", _lower_attention)
_register("add", _widen)
_register("multiply", _widen)
