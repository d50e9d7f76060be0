"""Calls that are other steps of a stage than convolutions and masks: pooling and upsampling."""

from __future__ import annotations

import dataclasses
import inspect

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from .nn_base import Masked
from .nn_layers import MaskedAvgPool2d, MaskedMaxPool2d, MaskedUpsample
from .stage_description import Window
from .stage_steps import Refused, pair

_MAX_POOLS = {F.max_pool2d, torch.max_pool2d}
_AVERAGE_POOLS = {F.avg_pool2d}
_MAX_POOL_NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVERAGE_POOL_NAMES = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_UPSAMPLE_NAMES = tuple(inspect.signature(F.interpolate).parameters)


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """What a call computes of an image: `how`, as a described layer has it."""

    how: str
    operand: object
    window: Window | None = None
    scale: tuple[int, int] | None = None
    masked: Masked | None = None  # The masked layer that it is of.
    mask: object = None


def layer_call(node: torch.fx.Node, modules: dict[str, nn.Module]) -> LayerCall | None:
    """What a call is, or None for another one. Raises Refused for what a stage does not compute."""
    if node.op == "call_module":
        return _of_module(node, modules[node.target])
    if node.target in _MAX_POOLS:
        return _pool("max_pool", _given(node, _MAX_POOL_NAMES))
    if node.target in _AVERAGE_POOLS:
        return _pool("average_pool", _given(node, _AVERAGE_POOL_NAMES))
    if node.target is F.interpolate:
        given = _given(node, _UPSAMPLE_NAMES)
        return _upsample(given["input"], given.get("size"), given.get("scale_factor"), given.get("mode", "nearest"))
    return None


def _given(node: torch.fx.Node, names) -> dict:
    return dict(zip(names, node.args)) | node.kwargs


def _of_module(node: torch.fx.Node, layer: nn.Module) -> LayerCall | None:
    given = _given(node, ("input", "mask"))
    found = None
    if isinstance(layer, nn.MaxPool2d) and type(layer) in (nn.MaxPool2d, MaskedMaxPool2d):
        found = _pool("max_pool", vars(layer) | given)
    elif isinstance(layer, nn.AvgPool2d) and type(layer) in (nn.AvgPool2d, MaskedAvgPool2d):
        found = _pool("average_pool", vars(layer) | given)
    elif type(layer) is nn.Upsample:
        found = _upsample(given["input"], layer.size, layer.scale_factor, layer.mode)
    elif type(layer) is MaskedUpsample:
        found = LayerCall("upsample", given["input"], scale=layer.scale)
    if found is None or not isinstance(layer, Masked):
        return found
    if given.get("out") is not None:
        raise Refused("it writes into a given tensor")
    return dataclasses.replace(found, masked=layer, mask=given.get("mask"))


def _pool(how: str, given: dict) -> LayerCall:
    kernel, padding = pair(given["kernel_size"]), pair(given.get("padding", 0))
    stride = given.get("stride")
    window = Window(
        kernel,
        kernel if stride is None or stride == [] else pair(stride),
        pair(given.get("dilation", 1)),
        (padding[0], padding[0], padding[1], padding[1]),
    )
    if given.get("ceil_mode") or given.get("return_indices") or given.get("divisor_override") is not None:
        raise Refused("it rounds sizes up, returns indices or has a divisor of its own")
    if how == "average_pool" and any(padding) and not given.get("count_include_pad", True):
        raise Refused("its average leaves out the padding")
    return LayerCall(how, given["input"], window)


def _upsample(operand, size, scale, mode) -> LayerCall:
    factors = scale if isinstance(scale, (tuple, list)) else (scale, scale)
    whole = len(factors) == 2 and all(type(one) in (int, float) and one >= 1 and one == int(one) for one in factors)
    if mode != "nearest" or size is not None or not whole:
        raise Refused("a stage upsamples to the nearest pixel, by whole factors")
    return LayerCall("upsample", operand, scale=tuple(map(int, factors)))
