"""Masked forms of norms that have a forward of their own, as timm's, torchvision's and frozen ones have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from . import nn as masked
from .comparison import checked
from .fusion import activation_of

IMAGES, TOKENS = ((2, 3, 4), (1, 5, 2)), ((2, 5), (1, 3))  # Without the channels.


def masked_norm(layer: nn.Module) -> nn.Module | None:
    """The masked form of a norm over the channels, or by their groups or running statistics, if one computes the same;
    None for a module that is no such norm. Raises ValueError for one without a masked form."""
    channels = _channels_of(layer)
    if channels is None:
        return None
    for make, sizes, dimension in _candidates(layer, channels):
        shapes = [(*size[:dimension], channels, *size[dimension:]) for size in sizes]
        try:
            return checked(layer, make, *shapes)
        except ValueError:
            continue
    raise ValueError(f"no masked norm computes what the class {type(layer).__name__} does")


def _channels_of(layer: nn.Module) -> int | None:
    own = dict(layer.named_parameters(recurse=False)) | dict(layer.named_buffers(recurse=False))
    rest = own.keys() - {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    sizes = {own[name].shape for name in own.keys() - {"num_batches_tracked"}}
    if rest or len(sizes) != 1 or len(*sizes) != 1 or not isinstance(getattr(layer, "eps", None), float):
        return None
    return next(iter(sizes))[0]


def is_nothing(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Identity) or (isinstance(layer, nn.Dropout) and not layer.p)


def _candidates(layer: nn.Module, channels: int) -> Iterator[tuple[Callable, tuple, int]]:
    """What may make the masked form, the sizes of its inputs without channels, and where those come."""
    activations = [activation_of(child) for child in layer.children() if not is_nothing(child)]
    if len(activations) > 1 or None in activations:
        return
    activation = activations[0] if activations else "none"
    if getattr(layer, "running_mean", None) is not None:
        frozen = "running_mean" in layer._buffers and not layer._parameters
        kind = masked.MaskedFrozenBatchNorm2d if frozen else masked.MaskedBatchNorm2d
        if frozen or not layer.training:
            yield lambda layer: _made(kind, layer, activation, num_features=channels, **_BATCH_NORM), IMAGES, 1
    elif isinstance(getattr(layer, "num_groups", None), int):
        groups = layer.num_groups
        shape = dict(num_groups=groups, num_channels=channels, affine=True)
        yield lambda layer: _made(masked.MaskedGroupNorm, layer, activation, **shape), IMAGES, 1
    elif activation == "none":
        shape = dict(normalized_shape=(channels,), elementwise_affine=True)
        for kind, sizes, dimension in (
            (masked.MaskedLayerNorm, TOKENS, 2),
            (masked.MaskedLayerNorm2d, IMAGES, 1),
            (masked.MaskedRMSNorm, TOKENS, 2),
            (masked.MaskedRMSNorm2d, IMAGES, 1),
        ):
            yield lambda layer, kind=kind: _made(kind, layer, **shape), sizes, dimension


_BATCH_NORM = dict(momentum=0.1, affine=True, track_running_stats=True)


def _made(kind: type, layer: nn.Module, *activation: str, **attributes) -> nn.Module:
    """A masked norm that shares the parameters of another module."""
    found = kind.__new__(kind)
    nn.Module.__init__(found)
    found.eps = layer.eps
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        for kept, own in ((found._parameters, layer._parameters), (found._buffers, layer._buffers)):
            if name in own:
                kept[name] = own[name]
        if not hasattr(found, name):
            found.register_parameter(name, None)
    for name, value in attributes.items():
        setattr(found, name, getattr(layer, name, value))
    found._non_persistent_buffers_set = set(layer._non_persistent_buffers_set)
    found._prepare(*activation)
    return found.train(layer.training)
