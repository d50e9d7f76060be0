"""Replaces the layers of an existing model by masked ones with the same parameters."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable

import torch
from torch import nn

from . import nn as masked

Rule = tuple[object, object]

REPLACEMENTS: dict[type, Callable[[nn.Module], nn.Module]] = {}


def _norm(cls):
    def replace(layer):
        made = cls.__new__(cls)
        made.__dict__.update(layer.__dict__)
        made._parameters, made._buffers = dict(layer._parameters), dict(layer._buffers)
        return made

    return replace


REPLACEMENTS[nn.Conv2d] = masked.MaskedConv2d.from_dense
REPLACEMENTS[nn.ConvTranspose2d] = masked.MaskedConvTranspose2d.from_dense
REPLACEMENTS[nn.Linear] = masked.MaskedLinear.from_dense
REPLACEMENTS[nn.LayerNorm] = _norm(masked.MaskedLayerNorm)
REPLACEMENTS[nn.RMSNorm] = _norm(masked.MaskedRMSNorm)
ACTIVATIONS = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.SiLU: "silu", nn.GELU: "gelu", nn.Sigmoid: "sigmoid",
               nn.Hardsigmoid: "hardsigmoid", nn.Hardswish: "hardswish"}


def convert(model: nn.Module, rules: Iterable[Rule] = ((nn.Module, True),), fuse: bool = True) -> nn.Module:
    """Replaces layers of a model in place, and returns it.

    The first rule that matches decides for a layer. A rule is (what, how): `what` is a pattern of names, for instance
    "layer2.*.conv1", or a class; `how` is True for the masked layer of its kind, False to leave it, or a function from
    the layer to its replacement. By default all convolutions, linear layers and norms over channels are replaced.

    With `fuse`, inside nn.Sequential, a batch norm after a replaced convolution goes into its weights if the model is
    in eval mode, and an activation becomes the layer's own; nn.Identity takes their places.
    """
    rules = list(rules)
    chosen: dict[nn.Module, object] = {}
    for name, layer in model.named_modules():
        how = _decision(rules, name, layer)
        if how is not False and (callable(how) or type(layer) in REPLACEMENTS):
            chosen[layer] = how
    made: dict[nn.Module, nn.Module] = {}
    for layer, how in chosen.items():
        made[layer] = how(layer) if callable(how) else REPLACEMENTS[type(layer)](layer)
    if model in made:
        return made[model]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in made:
                setattr(parent, name, made[child])
        if fuse and isinstance(parent, nn.Sequential):
            _fuse(parent)
    return model


def _decision(rules, name, layer):
    for what, how in rules:
        if isinstance(layer, what) if isinstance(what, type) else fnmatch.fnmatchcase(name, what):
            return how
    return False


def _fuse(sequence: nn.Sequential) -> None:
    names = list(sequence._modules)
    for first, second in zip(names, names[1:]):
        layer, norm = sequence._modules[first], sequence._modules[second]
        if (
            isinstance(layer, masked.MaskedConv2d)
            and type(norm) is nn.BatchNorm2d
            and not norm.training
            and norm.running_mean is not None
            and layer.activation == "none"
        ):
            _fold(layer, norm)
            sequence._modules[second] = nn.Identity()
    for position, first in enumerate(names):
        layer = sequence._modules[first]
        if not isinstance(layer, masked._Convolution) or layer.activation != "none":
            continue
        after = next(
            (name for name in names[position + 1 :] if not isinstance(sequence._modules[name], nn.Identity)), None
        )
        activation = sequence._modules[after] if after is not None else None
        exact = not isinstance(activation, nn.GELU) or activation.approximate == "none"
        if type(activation) in ACTIVATIONS and exact:
            layer.activation = ACTIVATIONS[type(activation)]
            sequence._modules[after] = nn.Identity()


@torch.no_grad()
def _fold(layer: masked.MaskedConv2d, norm: nn.BatchNorm2d) -> None:
    """Puts a batch norm in eval mode into the weights before it."""
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    bias = -norm.running_mean if layer.bias is None else layer.bias - norm.running_mean
    bias = bias * factor if norm.bias is None else bias * factor + norm.bias
    layer.weight = nn.Parameter(layer.weight * factor[:, None, None, None], requires_grad=layer.weight.requires_grad)
    layer.bias = nn.Parameter(bias, requires_grad=layer.weight.requires_grad)
