"""Finds chains of layers that a stage can run, in a model that torch.fx has traced, and puts stages in their places."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import warnings

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from . import conversion, masks, stage_description, tracing
from .activations import split_slope
from .dataflow import _Tracer
from .fusion import FUNCTIONS, activation_of, hooked
from .mappings import UNMAPPED, Layer, Nowhere, Traced, Unmapped
from .nn import MaskedConv2d, _padding_of
from .nn_base import Masked, Place
from .nn_layers import MaskedActivation, MaskedAdd, MaskUnit
from .stage_description import Reader, Stage, Window
from .stage_module import FusedStage, GivenMask

# Activations that change nothing of what these have made. A zero, too, stays one.
SETTLED = {
    "relu": {"relu"},
    "relu6": {"relu", "relu6"},
    "sigmoid": {"relu", "relu6"},
    "hardsigmoid": {"relu", "relu6"},
}
AT_ZERO = {"sigmoid", "hardsigmoid"}  # Not 0 there.
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand, operator.ior, operator.ixor}
_MASK_FUNCTIONS = (masks.needed_input, masks.dilate)
_NOT = {operator.invert, torch.logical_not, torch.bitwise_not, "logical_not", "bitwise_not"}
_TWO = {
    "and": {operator.and_, torch.logical_and, torch.bitwise_and, "logical_and", "bitwise_and"},
    "or": {operator.or_, torch.logical_or, torch.bitwise_or, "logical_or", "bitwise_or"},
}
_SHAPES = {"size", "dim"}


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


class _Refused(Exception):
    """Why a call cannot be a step."""


@dataclasses.dataclass(eq=False)
class _Step:
    """A convolution that later calls may complete."""

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

    def described(self) -> stage_description.Convolution:
        bias = f"{self.layer}.bias" if self.bias else None
        fields = {name: getattr(self, name) for name in ("residual", "base", "mask", "reader", "later", "activation")}
        weights = f"{self.layer}.weight"
        return stage_description.Convolution(
            self.output, self.input, self.channels, self.window, weights, bias, **fields
        )


@dataclasses.dataclass(eq=False)
class _Scores:
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
class _Combined:
    mask: str
    how: str
    of: tuple[str, ...]
    size: tuple[int, int] | None
    layer: str = ""

    def described(self) -> stage_description.Combined:
        return stage_description.Combined(self.mask, self.how, self.of, self.size)


@dataclasses.dataclass(eq=False)
class _Image:
    name: str
    shape: tuple
    step: _Step | None  # What makes it; None if it is given.
    support: str | None  # The mask outside of which it is 0; None if it may be anything.
    settled: frozenset  # Activations that change nothing of it.
    under: _Image | None = None  # What the last sum has added to, where the mask is not active.


@dataclasses.dataclass(eq=False)
class _Mask:
    name: str
    reader: Reader | None = None


class _Chain:
    """Calls, in their order, that one stage can run."""

    def __init__(self, finder: _Finder):
        self.finder = finder
        self.absorbed: list[torch.fx.Node] = []
        self.beside: list[torch.fx.Node] = []  # What reads it, or only its shapes, and runs after it.
        self.shapes: set[torch.fx.Node] = set()
        self.found: dict[torch.fx.Node, _Image | _Mask] = {}
        self.given: dict[torch.fx.Node, _Image] = {}
        self.masks: dict[object, tuple[str, GivenMask | None]] = {}
        self.mask_nodes: dict[str, torch.fx.Node] = {}
        self.steps: list[_Step | _Scores | _Combined] = []
        self.ends = "the model ends"

    # ---- What a call reads

    def image(self, node) -> _Image:
        """The image that a call reads."""
        if not isinstance(node, torch.fx.Node):
            raise _Refused("it reads what is no image of the model")
        if node in self.found:
            found = self.found[node]
            if not isinstance(found, _Image):
                raise _Refused("it reads a mask as an image")
            return found
        shape = self.finder.shapes.get(node)
        if shape is None or len(shape) != 4 or node.op == "get_attr":
            raise _Refused("it reads what is no image [N, C, H, W]")
        if node not in self.given:
            name = f"x{len(self.given)}"
            self.given[node] = _Image(name, shape, None, None, self.finder.settled(node))
        return self.given[node]

    def mask(self, argument, layer: Masked) -> _Mask:
        """The mask that a layer takes."""
        if isinstance(argument, torch.fx.Node):
            found = self.found.get(argument)
            if isinstance(found, _Mask):
                return found
            if found is not None:
                raise _Refused("its mask is an image of the stage")
        elif argument is not None:
            raise _Refused("its mask is no tensor of the model")
        key = (argument, layer.mask_name, _place_of(layer))
        if key not in self.masks:
            name = f"m{len(self.masks)}"
            self.masks[key] = name, GivenMask(None, layer.mask_name, layer.mapping, 0)
            if argument is not None:
                self.mask_nodes[name] = argument
        return _Mask(self.masks[key][0])

    def readers(self, image: _Image) -> int:
        """How many calls read an image, under any of its names, or would when they are visited."""
        same = [node for node, found in self.found.items() if found.name == image.name]
        return len({user for node in same for user in node.users} - set(same))

    def is_open(self, image: _Image) -> bool:
        """Whether the step that makes an image can do more: one call reads it, and it adds nothing yet."""
        step = image.step
        return (
            step is not None
            and self.readers(image) == 1
            and step.activation == "none"
            and (step.residual, step.base, step.later) == (None, None, None)
        )

    # ---- Calls

    def take(self, node: torch.fx.Node) -> None:
        """Makes a call a part of the stage. Raises _Refused."""
        if node.op == "call_module":
            layer = self.finder.modules[node.target]
            if type(layer) in (MaskedConv2d, nn.Conv2d):
                found = self._convolution(node, layer)
            elif type(layer) is MaskUnit:
                found = self._unit(node, layer)
            elif type(layer) is MaskedAdd:
                found = self._masked_add(node, layer)
            elif type(layer) is MaskedActivation:
                found = self._masked_activation(node, layer)
            elif _passes(layer):
                found = self._read(node.args[0])
            elif activation_of(layer):
                found = self._activated(node, node.args[0], activation_of(layer), getattr(layer, "inplace", False))
            else:
                raise _Refused(f"{type(layer).__name__} is no step of a stage")
        elif node.target in _ADD:
            found = self._sum(node)
        elif node.target in FUNCTIONS:
            changes = node.kwargs.get("inplace", False) or _is_named_in_place(node)
            found = self._activated(node, node.args[0], FUNCTIONS[node.target], changes)
        elif (combined := self._combined(node)) is not None:
            found = combined
        elif node.target in _MASK_FUNCTIONS:
            self.found[node] = self._read_by_window(node)
            self.beside.append(node)
            self.shapes.add(node)
            return
        else:
            raise _Refused(f"{_name_of(node)} is no step of a stage")
        self.found[node] = found
        self.absorbed.append(node)

    def _read(self, node) -> _Image:
        if node not in self.found:
            raise _Refused("it reads nothing of the stage")
        return self.image(node)

    def _convolution(self, node, layer) -> _Image:
        names = ("input", "mask", "residual", "out", "zero")
        given = dict(zip(names, node.args)) | node.kwargs
        if reason := _why_no_step(layer):
            raise _Refused(reason)
        x, residual = self.image(given["input"]), given.get("residual")
        shape, name = self.finder.shapes[node], f"y{len(self.steps)}"
        mask = _Mask("")
        if isinstance(layer, MaskedConv2d):
            if given.get("mask") is not None or not isinstance(layer.mapping, Nowhere):
                mask = self.mask(given.get("mask"), layer)
        if not mask.name and not self.finder.masked_follows(node):
            raise _Refused("it computes every pixel, and no masked layer follows")
        base, out = None, given.get("out")
        if out is not None:
            base = self._cloned(out, node)
            if given.get("zero", False) is not False or not mask.name:
                base = None
        added = None if residual is None else self.image(residual)
        for one in (added, base):
            if one is not None and one.shape != shape:
                raise _Refused("it adds an image of another shape")
        activation = getattr(layer, "activation", "none")
        step = _Step(
            name, x.name, shape[1], Window(*map(tuple, (layer.kernel_size, layer.stride, layer.dilation)),
            tuple(_padding_of(layer))), node.target, layer.bias is not None,
            None if added is None else added.name, None if base is None else base.name, mask.name or None, mask.reader,
            None, activation,
        )  # fmt: skip
        self.steps.append(step)
        support = mask.name if base is None and mask.reader is None else None
        settled = _settled_by(activation) & (frozenset(SETTLED["relu6"]) if base is None else base.settled)
        return _Image(name, shape, step, support or None, settled)

    def _cloned(self, out, node) -> _Image:
        """The image that a call writes into a copy of."""
        ours = isinstance(out, torch.fx.Node) and out.target in ("clone", torch.clone) and set(out.users) == {node}
        if not ours:
            raise _Refused("it writes into a tensor that others may read: give it a clone, or no out")
        if out in self.beside:
            self.beside.remove(out)
        self.absorbed.append(out)
        return self.image(out.args[0])

    def _unit(self, node, layer) -> _Mask:
        if hooked(layer):
            raise _Refused("it has hooks")
        name = f"s{len(self.steps)}"
        self.steps.append(_Scores(name, self.image(node.args[0]).name, layer, node.target))
        self.masks[node] = name, None
        return _Mask(name)

    def _combined(self, node) -> _Mask | None:
        """A mask from one that the stage makes, and maybe another; None for what is no algebra of masks."""
        size, operands = None, node.args
        if node.target in _NOT:
            how = "not"
        elif node.target is masks.pool:
            how, size, operands = "pool", _pair(dict(zip(("factor",), node.args[1:]), **node.kwargs)["factor"]), node.args[:1]
        elif node.target is masks.dilate and self.is_read_by_others(node):
            how, size, operands = "dilate", _pair(dict(zip(("radius",), node.args[1:]), **node.kwargs)["radius"]), node.args[:1]
        else:
            how = next((how for how, names in _TWO.items() if node.target in names), None)
        if how is None or not any(isinstance(self.found.get(one), _Mask) for one in operands):
            return None
        if how in ("not", "and", "or") and node.kwargs:
            raise _Refused("its masks are not its arguments")
        if any(isinstance(one, torch.fx.Node) for one in size or ()):
            raise _Refused("its size is no constant")
        names = tuple(self._operand(one, node) for one in operands)
        name = f"s{len(self.steps)}"
        self.steps.append(_Combined(name, how, names, size))
        self.masks[node] = name, None
        return _Mask(name)

    def is_read_by_others(self, node) -> bool:
        """Whether others than convolutions read a mask."""
        return any(user.op != "call_module" or type(self.finder.modules[user.target]) is not MaskedConv2d
                   for user in node.users)  # fmt: skip

    def _operand(self, node, reader) -> str:
        """A mask that another follows from: of the stage, or given, of its size."""
        found = self.found.get(node)
        if isinstance(found, _Mask) and found.reader is None:
            return found.name
        shape, kind = self.finder.shapes.get(node), self.finder.types.get(node)
        if found is not None or kind != torch.bool or shape != self.finder.shapes.get(reader):
            raise _Refused("it reads what is no mask of its size")
        if node not in self.masks:
            name = f"m{len(self.masks)}"
            self.masks[node] = name, GivenMask(None, "mask", UNMAPPED, None)
            self.mask_nodes[name] = node
        return self.masks[node][0]

    def _read_by_window(self, node) -> _Mask:
        names = ("mask", "size") if node.target is masks.needed_input else ("mask", "radius")
        given = dict(zip(names, node.args)) | node.kwargs
        found = self.found.get(given["mask"])
        if not isinstance(found, _Mask) or found.reader:
            raise _Refused("no window of a mask that the stage makes")
        if node.target is masks.dilate:
            radius = _pair(given["radius"])
            return _Mask(found.name, Reader(tuple(2 * r + 1 for r in radius), padding=radius))
        numbers = [given.get(name, default) for name, default in
                   (("kernel", None), ("stride", 1), ("dilation", 1), ("padding", 0))]  # fmt: skip
        if given.get("kind", "conv") != "conv" or any(isinstance(leaf, torch.fx.Node) for leaf in tree_leaves(numbers)):
            raise _Refused("its window is no convolution's")
        return _Mask(found.name, Reader(*map(_pair, numbers)))

    def _sum(self, node) -> _Image:
        operands, kwargs = node.args[:2], dict(node.kwargs)
        if len(node.args) != 2 or kwargs:
            raise _Refused("a sum with factors is no step of a stage")
        if node.target is operator.iadd or _is_named_in_place(node):
            if operands[0] not in self.found or self.readers(self.image(operands[0])) != 1:
                raise _Refused("it changes what others read")
        if not any(isinstance(one, torch.fx.Node) and one in self.found for one in operands):
            raise _Refused("it reads nothing of the stage")
        if operands[0] is operands[1]:
            raise _Refused("it adds an image to itself")
        pairs = [(self.image(one), self.image(other)) for one, other in (operands, operands[::-1])]
        if pairs[0][0].shape != pairs[0][1].shape:
            raise _Refused("it adds images of different shapes")
        hosts = [pair for pair in pairs if self.is_open(pair[0]) and pair[0].step.reader is None]
        if not hosts:
            raise _Refused("no convolution before it can add the other image")

        def cost(pair):
            host, other = pair
            if host.step.mask is None:
                return 2
            return 0 if other.support is None else 1 if other.support == host.step.mask else 3

        host, other = min(hosts, key=cost)
        step = host.step
        step.residual = other.name
        if step.mask is not None and other.support != step.mask:
            step.base = other.name
        self.steps.remove(step)  # Only this sum reads it, and the other image may have come later.
        self.steps.append(step)
        under = None if step.base is None else other
        return _Image(host.name, host.shape, step, step.mask if under is None else None, frozenset(), under)

    def _activated(self, node, operand, name: str, in_place: bool) -> _Image:
        image = self._read(operand)
        if name in image.settled:
            return image
        step = image.step
        if in_place and self.readers(image) != 1:
            raise _Refused("it changes what others read")
        if self.readers(image) != 1 or step.activation != "none" or step.later is not None:
            raise _Refused("the activation is of what others read, too")
        name_only = split_slope(name)[0]
        if step.base is None:
            if step.mask is not None and name_only in AT_ZERO:
                raise _Refused(f"{name} is not 0 where the mask is not active")
            settled = _settled_by(name)
        else:
            settled = self._activated_elsewhere(image, name)
        step.activation = name
        return _Image(image.name, image.shape, step, image.support, settled)

    def _activated_elsewhere(self, image: _Image, name: str) -> frozenset:
        """Lets the activation of a sum act where its mask is not active, too. Returns which then change nothing."""
        under = image.under
        if under is None:
            raise _Refused("the activation would act on a copy, too")
        if name in under.settled:
            return _settled_by(name) & under.settled
        below = under.step
        can = (
            below is not None
            and below.mask is None
            and (below.activation, below.residual, below.base, below.later) == ("none", None, None, None)
            and self.readers(under) == 1
        )
        if not can:
            raise _Refused(f"{name} changes pixels where the mask is not active")
        below.activation, below.later = name, image.step.mask
        self._move_to_reader(below)
        return _settled_by(name)

    def _move_to_reader(self, step: _Step) -> None:
        """Puts a step before the one that adds to it, and so behind what makes the mask of its later pixels."""
        host = next(one for one in self.steps if isinstance(one, _Step) and one.base == step.output)
        self.steps.remove(step)
        self.steps.insert(self.steps.index(host), step)

    def _masked_add(self, node, layer) -> _Image:
        given = dict(zip(("input", "other", "mask", "out", "zero"), node.args)) | node.kwargs
        operands = (given["input"], given["other"])
        if hooked(layer) or given.get("out") is not None or operands[0] is operands[1]:
            raise _Refused("it has hooks, or writes into a given tensor, or adds an image to itself")
        pairs = [(self.image(one), self.image(other)) for one, other in (operands, operands[::-1])]
        if pairs[0][0].shape != pairs[0][1].shape:
            raise _Refused("it adds images of different shapes")
        hosts = [pair for pair in pairs if self.is_open(pair[0]) and pair[0].step.reader is None]
        if not hosts or isinstance(layer.mapping, Nowhere):
            raise _Refused("no convolution before it can add the other image")
        mask = self.mask(given.get("mask"), layer)
        hosts = [pair for pair in hosts if mask.reader is None and pair[0].step.mask == mask.name]
        if not hosts:
            raise _Refused("its mask is not that of a convolution before it")
        host, other = hosts[0]
        step = host.step
        step.residual, step.activation = other.name, layer.activation
        self.steps.remove(step)
        self.steps.append(step)
        return _Image(host.name, host.shape, step, mask.name, _settled_by(layer.activation))

    def _masked_activation(self, node, layer) -> _Image:
        given = dict(zip(("input", "mask", "out", "zero"), node.args)) | node.kwargs
        image, step = self._read(given["input"]), self.image(given["input"]).step
        if hooked(layer) or given.get("out") is not None or isinstance(layer.mapping, Nowhere):
            raise _Refused("it has hooks, or writes into a given tensor, or has no mask")
        mask = self.mask(given.get("mask"), layer)
        if mask.reader is not None or image.support != mask.name:
            raise _Refused("its mask is not that of the convolution before it")
        if layer.activation != "none" and layer.activation not in image.settled:
            if step.activation != "none" or self.readers(image) != 1:
                raise _Refused("the activation is of what others read, too")
            step.activation = layer.activation
            return _Image(image.name, image.shape, step, mask.name, _settled_by(layer.activation))
        return image

    _LISTS = ("absorbed", "beside", "shapes", "found", "given", "masks", "mask_nodes", "steps")

    def state(self) -> tuple:
        """What a call that is refused may have changed."""
        return {name: copy.copy(getattr(self, name)) for name in self._LISTS}, list(map(dataclasses.replace, self.steps))

    def restore(self, state: tuple) -> None:
        lists, steps = state
        vars(self).update(lists)
        for step, before in zip(self.steps, steps):
            vars(step).update(vars(before))

    def is_worth_it(self) -> bool:
        convolutions = [step for step in self.steps if isinstance(step, _Step)]
        return len(convolutions) > 1 and any(step.mask for step in convolutions) and bool(self.results())

    def inside(self) -> set[torch.fx.Node]:
        """The calls that go: those of steps, and those of shapes and windows that nothing else reads."""
        inside = set(self.absorbed)
        for node in reversed(self.beside):
            if node in self.shapes and set(node.users) <= inside:
                inside.add(node)
        return inside

    def results(self) -> dict[str, list[torch.fx.Node]]:
        """The calls whose results others read, by the names of those."""
        inside = self.inside()
        found: dict[str, list[torch.fx.Node]] = {}
        for node in self.absorbed:
            if node in self.found and not set(node.users) <= inside:
                found.setdefault(self.found[node].name, []).append(node)
        return found


class _Finder:
    """The chains of a traced graph."""

    def __init__(self, graph: torch.fx.Graph, modules: dict[str, nn.Module], tensors: dict[torch.fx.Node, tuple]):
        self.graph, self.modules = graph, modules
        self.shapes = {node: shape for node, (shape, _) in tensors.items()}
        self.types = {node: dtype for node, (_, dtype) in tensors.items()}
        self.chains: list[_Chain] = []
        self.refused: dict[str, str] = {}
        self._settled: dict[torch.fx.Node, frozenset] = {}

    def run(self) -> list[_Chain]:
        chain = _Chain(self)
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            chain = self._visit(node, chain)
        self._close(chain, "the model ends")
        return self.chains

    def _visit(self, node: torch.fx.Node, chain: _Chain) -> _Chain:
        read = node.all_input_nodes
        copied = {one for one in read if one.target in ("clone", torch.clone) and set(one.users) == {node}}
        late = {one for one in chain.beside if one not in chain.shapes}
        needed = [one for one in read if one not in copied] + [one for copy in copied for one in copy.all_input_nodes]
        if any(one in late for one in needed):
            if not self._is_layer(node) and not _changes(node, self.modules):
                chain.beside.append(node)
                return chain
            blocked = next(one for one in needed if one in late)
            self._close(chain, f"{_name_of(node)} reads what {self._source(blocked, late)} makes, which is no step")
            chain = _Chain(self)
        if _is_shape(node, chain):
            chain.beside.append(node)
            chain.shapes.add(node)
            return chain
        before = chain.state()
        try:
            chain.take(node)
            found = chain.found[node]
            self._settled[node] = found.settled if isinstance(found, _Image) else frozenset()
            return chain
        except _Refused as why:
            chain.restore(before)
            if self._is_layer(node):
                self.refused[node.target] = str(why)
        if _changes(node, self.modules):
            self._close(chain, f"{_name_of(node)} changes a tensor")
            return _Chain(self)
        if any(one in chain.found or one in chain.shapes for one in read):
            chain.beside.append(node)
        return chain

    def _source(self, node: torch.fx.Node, late: set) -> str:
        """The call that began what is late."""
        while before := next((one for one in node.all_input_nodes if one in late), None):
            node = before
        return _name_of(node, self.modules)

    def _close(self, chain: _Chain, why: str) -> None:
        chain.ends = why
        if chain.is_worth_it():
            self.chains.append(chain)
            return
        for node in chain.absorbed:
            if self._is_layer(node):
                self.refused[node.target] = f"it is alone: {why}"

    def _is_layer(self, node: torch.fx.Node) -> bool:
        """Whether a call is of a layer that may be a step."""
        return node.op == "call_module" and isinstance(self.modules[node.target], (Masked, MaskUnit, nn.Conv2d))

    def masked_follows(self, node: torch.fx.Node) -> bool:
        """Whether a masked layer reads what a dense one makes, or adds to it."""
        return any(self._is_layer(user) and not type(self.modules[user.target]) is nn.Conv2d or user.target in _ADD
                   for user in node.users)  # fmt: skip

    def settled(self, node: torch.fx.Node) -> frozenset:
        """Which activations change nothing of a tensor."""
        if node not in self._settled:
            self._settled[node] = self._settled_of(node)
        return self._settled[node]

    def _settled_of(self, node: torch.fx.Node) -> frozenset:
        if node.op == "call_module":
            layer = self.modules[node.target]
            name = activation_of(layer) or getattr(layer, "activation", None)
            if isinstance(name, str):
                plain = node.kwargs.get("out") is None
                return _settled_by(name) if plain else frozenset()
            if _passes(layer) or isinstance(layer, nn.MaxPool2d):
                return self.settled(node.args[0]) if isinstance(node.args[0], torch.fx.Node) else frozenset()
        elif node.op in ("call_function", "call_method") and node.target in FUNCTIONS:
            return _settled_by(FUNCTIONS[node.target])
        return frozenset()


def _passes(layer: nn.Module) -> bool:
    """Whether a layer gives what it is given."""
    return type(layer) is nn.Identity or (isinstance(layer, nn.Dropout) and not layer.training)


def _settled_by(activation: str) -> frozenset:
    return frozenset(SETTLED.get(activation, ()))


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _name_of(node: torch.fx.Node, modules: dict | None = None) -> str:
    if node.op == "call_module":
        return str(node.target)
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _place_of(layer: Masked):
    """What tells whether two layers have the same mask of a context: their place over the image, if it is but one."""
    mapping: Layer = layer.mapping
    if isinstance(mapping, Unmapped):
        return "unmapped"
    if isinstance(mapping, Traced) and len(mapping.calls) == 1:
        return mapping.calls[0]
    return layer


def _why_no_step(layer: nn.Module) -> str:
    if hooked(layer):
        return "it has hooks"
    if layer.groups != 1:
        return f"it has {layer.groups} groups"
    if layer.padding_mode != "zeros":
        return f"its padding_mode is {layer.padding_mode!r}"
    parameters = layer._parameters
    if parameters.get("weight") is None or "bias" not in parameters:
        return "its weight is no parameter"
    return ""


def _is_named_in_place(node: torch.fx.Node) -> bool:
    name = _name_of(node)
    return name.endswith("_") and not name.endswith("__")


def _changes(node: torch.fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call may change a tensor that it is given, or has other effects."""
    if node.op == "call_module":
        layer = modules[node.target]
        return any(getattr(one, "inplace", False) for one in layer.modules()) or node.kwargs.get("out") is not None
    if node.target in _IN_PLACE or _is_named_in_place(node) or node.target in (operator.setitem, "__setitem__"):
        return True
    return bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None or node.target is torch._assert


def _is_shape(node: torch.fx.Node, chain: _Chain) -> bool:
    """Whether a call reads only shapes of what a stage makes."""
    read = node.all_input_nodes
    if not any(one in chain.found or one in chain.shapes for one in read):
        return False
    if node.target is getattr and node.args[1] in ("shape", "device", "dtype", "ndim"):
        return True
    if node.op == "call_method" and node.target in _SHAPES:
        return True
    return all(one in chain.shapes and one not in chain.found for one in read) and node.op == "call_function"


# ---- The model ---------------------------------------------------------------------------------


class _StageTracer(_Tracer):
    """Traces into all but PyTorch's layers, ours, and the functions of masks."""

    def __init__(self, leaves):
        torch.fx.Tracer.__init__(
            self, autowrap_functions=(*_MASK_FUNCTIONS, masks.pool, masks.erode, masks.difference, masks.affected_output)
        )
        self._leaves = leaves
        self._autowrap_search.append(masks)


class _Shapes(torch.fx.Interpreter):
    """Runs a graph, and notes the shapes and types of tensors."""

    def __init__(self, module):
        super().__init__(module)
        self.found: dict[torch.fx.Node, tuple] = {}

    def run_node(self, node):
        result = super().run_node(node)
        if isinstance(result, torch.Tensor):
            self.found[node] = tuple(result.shape), result.dtype
        return result


@torch.no_grad()
def _arguments_by_module(model: nn.Module, arguments: tuple, keywords: dict) -> dict[nn.Module, tuple]:
    """The arguments of the first call of each module."""
    found: dict[nn.Module, tuple] = {}

    def hook(module, args, kwargs):
        found.setdefault(module, (args, kwargs))

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in model.modules()]
    try:
        with masks.mask(None):
            model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    return found


class _Fusing:
    """Puts stages into a model, or where torch.fx cannot trace it, into its parts."""

    def __init__(self, calls: dict[nn.Module, tuple], changes: bool):
        self.calls, self.changes = calls, changes
        self.rows: list[Fused | NotFused] = []
        self.stages: list[FusedStage] = []

    def visit(self, module: nn.Module, prefix: str) -> nn.Module:
        """The module with stages in it, which may be another."""
        if isinstance(module, (Masked, MaskUnit)) or not any(isinstance(one, Masked) for one in module.modules()):
            return module
        if module in self.calls and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            try:
                traced = self._traced(module)
            except Exception:  # What the model's own code raises when it meets no tensors.
                traced = None
            if traced is not None:
                return self._fused(module, prefix, *traced)
        for name, child in list(module.named_children()):
            found = self.visit(child, f"{prefix}{name}.")
            if found is not child and self.changes:
                setattr(module, name, found)
        return module

    def _traced(self, module: nn.Module):
        args, kwargs = self.calls[module]
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        plain = {}
        for name, parameter in inspect.signature(module.forward).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                if bound.arguments[name]:
                    raise TypeError("its call has arguments of any number")
                continue
            leaves = tree_leaves(bound.arguments[name])
            if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
                plain[name] = bound.arguments[name]
        leaves = {name for name, one in module.named_modules() if isinstance(one, (Masked, MaskUnit))}
        twin = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
        graph = _StageTracer(leaves).trace(twin, concrete_args=plain)
        names = inspect.signature(module.forward).parameters
        for node, name in zip((one for one in graph.nodes if one.op == "placeholder"), names):
            if not node.target.startswith("*"):
                node.target = name  # Tracing with plain arguments numbers the names.
        whole = torch.fx.GraphModule(twin, graph)
        shapes = _Shapes(whole)
        inputs = [bound.arguments[one.target] for one in graph.nodes if one.op == "placeholder" and one.target in names]
        with torch.no_grad(), masks.mask(None):
            shapes.run(*inputs)
        return twin, graph, shapes.found

    def _fused(self, module, prefix, twin, graph, shapes) -> nn.Module:
        modules = dict(module.named_modules(remove_duplicate=False))
        finder = _Finder(graph, modules, shapes)
        chains = finder.run()
        order = {node.target: place for place, node in enumerate(graph.nodes)}
        result = _rebuilt(module, twin, graph) if self.changes and chains else module
        replaced: dict[torch.fx.Node, torch.fx.Node] = {}
        for number, chain in enumerate(chains):
            name = f"distile_stage_{number}"
            layers = [str(node.target) for node in chain.absorbed if finder._is_layer(node)]
            self.rows.append(Fused(prefix + name, [prefix + one for one in layers], len(chain.steps), chain.ends))
            for one in layers:
                finder.refused.pop(one, None)
            if self.changes:
                self.stages.append(_replace(result, chain, name, modules, replaced))
        refused = sorted(finder.refused.items(), key=lambda one: order[one[0]])
        self.rows += [NotFused(prefix + name, why) for name, why in refused]
        if result is not module:
            result.graph.lint()
            result.recompile()
        return result


def _rebuilt(module: nn.Module, twin: nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module with the traced forward, and the parts of the original."""
    result = torch.fx.GraphModule(twin, graph, f"Fused{type(module).__name__}")
    for kind in ("_modules", "_parameters", "_buffers"):
        vars(result)[kind].update(vars(module)[kind])
    for name, value in vars(module).items():
        if name not in vars(result) or "hook" in name:
            vars(result)[name] = value
    result.training = module.training
    return result


def _replace(
    owner: torch.fx.GraphModule, chain: _Chain, name: str, modules: dict[str, nn.Module], replaced: dict
) -> FusedStage:
    """Puts the call of a stage into the place of a chain's calls. `replaced` says which nodes stand for those of chains
    before it."""
    graph = owner.graph
    inside, results = chain.inside(), chain.results()
    order = [node for node in graph.nodes if node in inside]
    outside = list(dict.fromkeys(one for node in order for one in node.all_input_nodes if one not in inside))
    stage, given_images, given_masks = _described(chain, outside, tuple(results), replaced)
    layers = _layers_of(owner, order, outside, [nodes[0] for nodes in results.values()])
    units = [(number, step.unit) for number, step in enumerate(chain.steps) if isinstance(step, _Scores)]
    places = [getattr(modules.get(step.layer), "_place", None) or Place() for step in chain.steps]
    fused = FusedStage(stage, layers, given_images, given_masks, units, places)
    owner.add_submodule(name, fused)
    last = next(node for node in reversed(graph.nodes) if node in chain.absorbed)
    with graph.inserting_after(last):
        call = graph.call_module(name)
    with graph.inserting_before(call):
        parameters = tuple(graph.get_attr(one) for one in stage.numbers().parameters)
    call.args = (*outside, *parameters)
    anchor = call
    for number, nodes in enumerate(results.values()):
        with graph.inserting_after(anchor):
            anchor = graph.call_function(operator.getitem, (call, number))
        for node in nodes:
            node.replace_all_uses_with(anchor, delete_user_cb=lambda user: user not in inside)
            replaced[node] = anchor
    later = [node for node in chain.beside if node not in inside]
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in sorted(later, key=position.get):
        if position[node] < position[call]:
            anchor.append(node)
            anchor = node
    for node in reversed(order):
        graph.erase_node(node)
    return fused


def _described(chain: _Chain, outside: list, outputs: tuple[str, ...], replaced: dict):
    """A chain as a stage, the arguments that are its images, and its masks."""

    def argument_of(node):
        return None if node is None else outside.index(replaced.get(node, node))

    images = list(chain.given.items())
    steps = tuple(step.described() for step in chain.steps)
    used = {name for step in steps for name in (getattr(step, "mask", None), getattr(step, "later", None))}
    used |= {name for step in steps for name in getattr(step, "of", ())}
    known = [(name, one) for name, one in chain.masks.values() if one is not None and name in used]
    stage = Stage(
        tuple((image.name, image.shape[1]) for _, image in images), tuple(name for name, _ in known), steps, outputs
    )
    numbers = {image.name: place for place, (_, image) in enumerate(images)}
    for step in steps:
        if isinstance(step, stage_description.Convolution):
            numbers[step.output] = len(numbers)
    first = {}
    for step in steps:
        if isinstance(step, stage_description.Convolution):
            for mask in (step.mask if step.reader is None else None, step.later):
                first.setdefault(mask, numbers[step.output])
    given = []
    for name, one in known:
        argument = argument_of(chain.mask_nodes.get(name))
        given.append(dataclasses.replace(one, argument=argument, image=first.get(name)))
    return stage, [argument_of(node) for node, _ in images], given


def _layers_of(owner, order: list, outside: list, results: list) -> torch.fx.GraphModule:
    """The chain's calls, as they were."""
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(f"a{number}") for number, node in enumerate(outside)}
    for node in order:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    return torch.fx.GraphModule(owner, graph, "Layers")


def fuse(
    model: nn.Module,
    example,
    *,
    report: list[Fused | NotFused] | None = None,
    measure: bool | tuple[float, ...] = False,
) -> nn.Module:
    """Lets chains of masked layers run as stages, each by one call, and returns the model: the same, or if torch.fx can
    trace it, another with the same layers and parameters by the same names.

    `model` is one of masked layers, as distile.convert returns it, in eval mode; `example` is as there. To `report` it
    adds which layers a stage runs and why it ends, and why other masked layers run by themselves. With `measure`, the
    first call of each stage without gradients measures the stage, its layers and the dense form at some densities of
    masks, or at given ones, and later calls take the fastest.

    A stage computes what its layers do. They run themselves where it cannot: with gradients, without a mask, in
    autocast, and in a type or with sizes that the device has no stages for.
    """
    rows, stages, result = _run(model, example, True)
    if not stages:
        warnings.warn(
            f"distile.fuse found no stage in {type(model).__name__}; `report=rows` gives the reasons", stacklevel=2
        )
    if measure:
        for one in stages:
            one.measures = (0.05, 0.1, 0.3, 0.5, 0.7, 1.0) if measure is True else tuple(measure)
    if report is not None:
        report += rows
    return result


def find_stages(model: nn.Module, example) -> list[Fused | NotFused]:
    """What distile.fuse would report, without a change."""
    return _run(model, example, False)[0]


def _run(model: nn.Module, example, changes: bool):
    if model.training:
        raise ValueError("distile.fuse takes a model in eval mode: call model.eval() before")
    arguments, keywords = tracing.arguments_of(example)
    conversion.trace_waiting(model, example)
    fusing = _Fusing(_arguments_by_module(model, arguments, keywords), changes)
    result = fusing.visit(model, "")
    return fusing.rows, fusing.stages, result
