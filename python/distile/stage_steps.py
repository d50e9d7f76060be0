"""Steps of stages, as they are found in a model call by call, and what calls do."""

from __future__ import annotations

import dataclasses
import inspect
import operator

import torch
import torch.fx
from torch import nn

from . import masks, stage_description
from .fusion import hooked
from .mappings import Layer, Traced, Unmapped
from .nn_base import Masked
from .stage_description import Reader, Window
from .stages import channels_at_once

# Activations that change nothing of what these have made. A zero, too, stays one.
SETTLED = {
    "relu": {"relu"},
    "relu6": {"relu", "relu6"},
    "sigmoid": {"relu", "relu6"},
    "hardsigmoid": {"relu", "relu6"},
}
# The functions of halts, and the names of their arguments.
HALTS = {
    masks.halt: ("input", "weight", "totals", "mask"),
    torch.ops.distile._halt: ("input", "weight", "mask", "totals", "sums", "limits", "bias", "threshold"),
}
AT_ZERO = {"sigmoid", "hardsigmoid"}  # Not 0 there.
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand, operator.ior, operator.ixor}


@dataclasses.dataclass
class Fused:
    """A stage that took the place of layers: their names, and why it ends where it does."""

    name: str
    layers: list[str]
    steps: int
    ends: str


@dataclasses.dataclass
class NotFused:
    """A masked layer that runs by itself, and why."""

    name: str
    reason: str


class Refused(Exception):
    """Why a call cannot be a step."""


@dataclasses.dataclass(eq=False)
class OpenStep:
    """A convolution, or a linear layer, that later calls may complete."""

    output: str
    input: str
    channels: int
    window: Window
    layer: str
    bias: bool
    residual: str | None = None
    base: str | None = None
    mask: str | None = None
    reader: Reader | None = None
    later: str | None = None
    activation: str = "none"
    groups: int = 1
    prefix: str = ""  # What the names begin with that the layer has for its parameters.

    def described(self) -> stage_description.Convolution:
        bias = f"{self.layer}.{self.prefix}bias" if self.bias else None
        fields = {name: getattr(self, name) for name in ("residual", "base", "mask", "reader", "later", "activation", "groups")}
        weights = f"{self.layer}.{self.prefix}weight"
        return stage_description.Convolution(
            self.output, self.input, self.channels, self.window, weights, bias, **fields
        )


@dataclasses.dataclass(eq=False)
class UnitStep:
    mask: str
    input: str
    unit: nn.Module
    layer: str

    def described(self) -> stage_description.Scores:
        unit = self.unit
        stride = (unit.stride, unit.stride)
        weights = f"{self.layer}.weight"
        return stage_description.Scores(
            self.mask, self.input, weights, stride, float(unit.bias), float(unit.threshold)
        )


@dataclasses.dataclass(eq=False)
class MaskStep:
    mask: str
    how: str
    of: tuple[str, ...]
    size: tuple[int, int] | None
    layer: str = ""

    def described(self) -> stage_description.Combined:
        return stage_description.Combined(self.mask, self.how, self.of, self.size)


@dataclasses.dataclass(eq=False)
class LayerStep:
    output: str
    input: str
    how: str
    layer: str
    window: Window | None = None
    scale: tuple[int, int] | None = None
    other: str | None = None
    mask: str | None = None
    activation: str = "none"

    def described(self) -> stage_description.Layer:
        fields = {name: getattr(self, name) for name in ("window", "scale", "other", "mask", "activation")}
        return stage_description.Layer(self.output, self.input, self.how, **fields)


@dataclasses.dataclass(eq=False)
class NormStep:
    output: str
    input: str
    how: str
    layer: str
    weights: bool
    bias: bool
    epsilon: float | None
    mask: str | None

    def described(self) -> stage_description.Norm:
        weights, bias = (f"{self.layer}.{name}" if has else None
                         for has, name in ((self.weights, "weight"), (self.bias, "bias")))  # fmt: skip
        return stage_description.Norm(self.output, self.input, self.how, weights, bias, self.epsilon, self.mask)


@dataclasses.dataclass(eq=False)
class AttentionStep:
    output: str
    input: str
    heads: int
    mask: str | None
    layer: str = ""

    def described(self) -> stage_description.Attention:
        return stage_description.Attention(self.output, self.input, self.heads, mask=self.mask)


@dataclasses.dataclass(eq=False)
class HaltStep:
    mask: str
    input: str
    bias: float
    threshold: float
    of: str | None
    totals: str
    before: str
    sums: str | None
    base: str | None
    weights: torch.fx.Node
    limits: torch.fx.Node | None
    layer: str = ""

    def described(self) -> stage_description.Halt:
        # Files have finite numbers only, and a sigmoid is 0 or 1 long before the largest.
        most = torch.finfo(torch.float32).max
        bias, threshold = (max(-most, min(one, most)) for one in (self.bias, self.threshold))
        return stage_description.Halt(
            self.mask, self.input, parameter_name(self.weights), self.totals, bias, threshold,
            () if self.of is None else (self.of,), None if self.limits is None else parameter_name(self.limits),
            self.before, self.sums, self.base,
        )  # fmt: skip

    def arguments(self) -> dict[str, torch.fx.Node]:
        """The tensors of the model that are parameters of the stage, by their names."""
        return {parameter_name(node): node for node in (self.weights, self.limits) if node is not None}


def parameter_name(node: torch.fx.Node) -> str:
    """The name of what a stage is given as an argument."""
    return f"argument {node.name}"


@dataclasses.dataclass(eq=False)
class Image:
    name: str
    shape: tuple  # [N, C, H, W], or of tokens [N, T, C].
    step: OpenStep | LayerStep | NormStep | AttentionStep | None  # What makes it; None if it is given.
    support: str | None  # The mask outside of which it is 0; None if it may be anything.
    settled: frozenset  # Activations that change nothing of it.
    under: Image | None = None  # What the last sum has added to, where the mask is not active.


@dataclasses.dataclass(eq=False)
class Totals:
    """A float32 number for each token, [N, T], to which halts add."""

    name: str


@dataclasses.dataclass(eq=False)
class Mask:
    name: str
    reader: Reader | None = None


def channels_of(image: Image) -> int:
    return 1 if len(image.shape) == 2 else image.shape[1 if len(image.shape) == 4 else 2]


def is_clone_for(node: torch.fx.Node, reader: torch.fx.Node) -> bool:
    """Whether a node copies a tensor for one reader."""
    clones = node.target == "clone" if node.op == "call_method" else node.target is torch.clone
    return clones and set(node.users) == {reader}


def passes(layer: nn.Module) -> bool:
    """Whether a layer gives what it is given."""
    return type(layer) is nn.Identity or (isinstance(layer, nn.Dropout) and not layer.training)


def settled_by(activation: str) -> frozenset:
    return frozenset(SETTLED.get(activation, ()))


def pair(value) -> tuple[int, int]:
    found = (value, value) if isinstance(value, int) else value
    if not isinstance(found, (tuple, list)) or not all(isinstance(one, int) for one in found) or len(found) != 2:
        raise Refused("its numbers are no constants")
    return tuple(found)


def name_of(node: torch.fx.Node, modules: dict | None = None) -> str:
    if node.op == "call_module":
        return str(node.target)
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def place_of(layer: Masked):
    """What tells whether two layers have the same mask of a context: their place over the image, if it is but one."""
    mapping: Layer = layer.mapping
    if isinstance(mapping, Unmapped):
        return "unmapped"
    if isinstance(mapping, Traced) and len(mapping.calls) == 1:
        return mapping.calls[0]
    return layer


def why_no_step(layer: nn.Module) -> str:
    if hooked(layer):
        return "it has hooks"
    if layer.groups not in (1, layer.in_channels) or layer.out_channels % layer.groups:
        return f"it has {layer.groups} groups"
    if layer.padding_mode != "zeros":
        return f"its padding_mode is {layer.padding_mode!r}"
    return why_no_weights(layer, "", layer.in_channels, layer.out_channels)


def why_no_weights(layer: nn.Module, prefix: str, *channels: int) -> str:
    """Why a stage cannot read the weight and the bias that a layer has by these names."""
    parameters = layer._parameters
    weight = parameters.get(f"{prefix}weight")
    if weight is None or f"{prefix}bias" not in parameters:
        return "its weight is no parameter"
    if weight.is_cuda and any(count % channels_at_once(weight.dtype) for count in channels):
        return f"stages on GPUs take channels in multiples of {channels_at_once(weight.dtype)}"
    return ""


def is_named_in_place(node: torch.fx.Node) -> bool:
    name = name_of(node)
    return name.endswith("_") and not name.endswith("__")


def changes_a_tensor(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call may change a tensor that it is given, or has other effects."""
    if node.op == "call_module":
        layer = modules[node.target]
        return any(getattr(one, "inplace", False) for one in layer.modules()) or node.kwargs.get("out") is not None
    if node.target in _IN_PLACE or is_named_in_place(node) or node.target in (operator.setitem, "__setitem__"):
        return True
    if node.target is torch._assert or node.target in HALTS or node.kwargs.get("out") is not None:
        return True
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _changes_an_argument(node.target)
    return works_in_place(node)


def _changes_an_argument(operator) -> bool:
    """Whether an operator changes tensors that it is given, other than an `out`."""
    single = isinstance(operator, torch._ops.OpOverload)
    overloads = [operator] if single else [getattr(operator, name) for name in operator.overloads()]
    arguments = (one for overload in overloads for one in overload._schema.arguments)
    return any(one.alias_info is not None and one.alias_info.is_write and not one.kwarg_only for one in arguments)


def works_in_place(node: torch.fx.Node) -> bool:
    """Whether the argument `inplace` of a function is anything but False."""
    if node.op != "call_function":
        return node.kwargs.get("inplace", False) is not False
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):  # Functions of C++ have none, and no such argument.
        given = node.kwargs
    return given.get("inplace", False) is not False
