"""Finds chains of layers that a stage can run, in a model that torch.fx has traced."""

from __future__ import annotations

import copy
import dataclasses
import operator

import torch
import torch.fx
from torch import nn
from torch.utils._pytree import tree_leaves

from . import masks
from .activations import split_slope
from .fusion import FUNCTIONS, activation_of, hooked
from .mappings import UNMAPPED, Nowhere
from .nn import (
    MaskedAttention,
    MaskedConv2d,
    MaskedLayerNorm,
    MaskedLayerNorm2d,
    MaskedLinear,
    MaskedMultiheadAttention,
    MaskedRMSNorm,
    MaskedRMSNorm2d,
    padding_of,
)
from .nn_base import Masked
from .nn_layers import MaskedActivation, MaskedAdd, MaskUnit
from .stage_description import Reader, Window
from .stage_layers import LayerCall, layer_call
from .stage_module import GivenMask
from .stage_steps import (
    AT_ZERO,
    HALTS,
    SETTLED,
    AttentionStep,
    HaltStep,
    Image,
    LayerStep,
    Mask,
    MaskStep,
    NormStep,
    OpenStep,
    Refused,
    Totals,
    UnitStep,
    changes_a_tensor,
    channels_of,
    is_clone_for,
    is_named_in_place,
    name_of,
    pair,
    passes,
    place_of,
    settled_by,
    why_no_step,
    why_no_weights,
    works_in_place,
)

_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
MASK_FUNCTIONS = (masks.needed_input, masks.dilate)
_NOT = {operator.invert, torch.logical_not, torch.bitwise_not, "logical_not", "bitwise_not"}
_TWO = {
    "and": {operator.and_, torch.logical_and, torch.bitwise_and, "logical_and", "bitwise_and"},
    "or": {operator.or_, torch.logical_or, torch.bitwise_or, "logical_or", "bitwise_or"},
}
_SHAPES = {"size", "dim"}
# What makes a tensor that nobody else holds.
_FRESH = {torch.zeros, torch.zeros_like, torch.ones, torch.ones_like, torch.full, torch.full_like, torch.clone,
          "new_zeros", "new_ones", "new_full", "clone"}  # fmt: skip
_NORMS = {MaskedLayerNorm: "layer_norm", MaskedLayerNorm2d: "layer_norm", MaskedRMSNorm: "rms_norm",
          MaskedRMSNorm2d: "rms_norm"}  # fmt: skip
_POINT = Window((1, 1))


class Chain:
    """Calls, in their order, that one stage can run."""

    def __init__(self, finder: Finder):
        self.finder = finder
        self.absorbed: list[torch.fx.Node] = []
        self.beside: list[torch.fx.Node] = []  # What reads it, or only its shapes, and runs after it.
        self.shapes: set[torch.fx.Node] = set()
        self.same: dict[torch.fx.Node, torch.fx.Node] = {}  # Calls that return the tensors of calls before them.
        self.found: dict[torch.fx.Node, Image | Mask | Totals] = {}
        self.changed: dict[torch.fx.Node, torch.fx.Node] = {}  # What halts change, and the first of those halts.
        self.given: dict[torch.fx.Node, Image] = {}
        self.masks: dict[object, tuple[str, GivenMask | None]] = {}
        self.mask_nodes: dict[str, torch.fx.Node] = {}
        self.steps: list[OpenStep | UnitStep | MaskStep | LayerStep | NormStep | AttentionStep | HaltStep] = []
        self.ends = "the model ends"

    # ---- What a call reads

    def image(self, node) -> Image:
        """The image that a call reads."""
        if not isinstance(node, torch.fx.Node):
            raise Refused("it reads what is no image of the model")
        if node in self.found:
            found = self.found[node]
            if not isinstance(found, Image):
                raise Refused("it reads a mask or totals as an image")
            return found
        if node in self.beside:
            raise Refused("it reads what is made of an image of the stage")
        shape = self.finder.shapes.get(node)
        if shape is None or len(shape) not in (3, 4) or node.op == "get_attr":
            raise Refused("it reads what is neither an image [N, C, H, W] nor tokens [N, T, C]")
        if node not in self.given:
            name = f"x{len(self.given)}"
            self.given[node] = Image(name, shape, None, None, self.finder.settled(node))
        return self.given[node]

    def image_alone(self, node) -> Image:
        """The image that a call reads that has no step for tokens."""
        found = self.image(node)
        if len(found.shape) != 4:
            raise Refused("it reads what is no image [N, C, H, W]")
        return found

    def tokens(self, node) -> Image:
        found = self.image(node)
        if len(found.shape) != 3:
            raise Refused("it reads what are no tokens [N, T, C]")
        return found

    def mask(self, argument, layer: Masked) -> Mask:
        """The mask that a layer takes."""
        if isinstance(argument, torch.fx.Node):
            found = self.found.get(argument)
            if isinstance(found, Mask):
                return found
            if argument in self.beside:
                raise Refused("its mask is made of what the stage makes")
            if found is not None:
                raise Refused("its mask is an image of the stage")
        elif argument is not None:
            raise Refused("its mask is no tensor of the model")
        key = (argument, layer.mask_name, place_of(layer))
        if key not in self.masks:
            name = f"m{len(self.masks)}"
            self.masks[key] = name, GivenMask(None, layer.mask_name, layer.mapping, 0)
            if argument is not None:
                self.mask_nodes[name] = argument
        return Mask(self.masks[key][0])

    def readers(self, image: Image) -> int:
        """How many calls read an image, under any of its names, or would when they are visited."""
        same = [node for node, found in self.found.items() if found.name == image.name]
        return len({user for node in same for user in node.users} - set(same))

    def is_open(self, image: Image) -> bool:
        """Whether the step that makes an image can do more: one call reads it, and it adds nothing yet."""
        step = image.step
        return (
            isinstance(step, OpenStep)
            and self.readers(image) == 1
            and step.activation == "none"
            and (step.residual, step.base, step.later) == (None, None, None)
        )

    # ---- Calls

    def take(self, node: torch.fx.Node) -> None:
        """Makes a call a part of the stage. Raises Refused."""
        if node.op == "call_module":
            layer = self.finder.modules[node.target]
            if hooked(layer):
                raise Refused("it has hooks")
            if type(layer) in (MaskedConv2d, nn.Conv2d):
                found = self._convolution(node, layer)
            elif type(layer) is MaskedLinear:
                found = self._linear(node, layer)
            elif type(layer) in _NORMS:
                found = self._norm(node, layer)
            elif type(layer) is MaskedAttention:
                found = self._attention(node, layer)
            elif type(layer) is MaskedMultiheadAttention:
                self._multihead_attention(node, layer)
                return
            elif type(layer) is MaskUnit:
                found = self._unit(node, layer)
            elif type(layer) is MaskedAdd:
                found = self._masked_add(node, layer)
            elif type(layer) is MaskedActivation:
                found = self._masked_activation(node, layer)
            elif passes(layer):
                found = self._read(node.args[0])
                self._note_same(node, node.args[0])
            elif (call := layer_call(node, self.finder.modules)) is not None:
                found = self._layer(node, call)
            elif activation_of(layer):
                found = self._activated(node, node.args[0], activation_of(layer), getattr(layer, "inplace", False))
            else:
                raise Refused(f"{type(layer).__name__} is no step of a stage")
        elif node.target in _ADD:
            found = self._sum(node)
        elif node.target in HALTS:
            found = self._halt(node)
        elif node.target in FUNCTIONS:
            changes = works_in_place(node) or is_named_in_place(node)
            found = self._activated(node, node.args[0], FUNCTIONS[node.target], changes)
        elif (combined := self._combined(node)) is not None:
            found = combined
        elif (call := layer_call(node, self.finder.modules)) is not None:
            found = self._layer(node, call)
        elif node.target in MASK_FUNCTIONS:
            self.found[node] = self._read_by_window(node)
            self.beside.append(node)
            self.shapes.add(node)
            return
        else:
            raise Refused(f"{name_of(node)} is no step of a stage")
        self.found[node] = found
        self.absorbed.append(node)

    def _note_same(self, node: torch.fx.Node, other: torch.fx.Node) -> None:
        """Notes that a call returns the tensor that another has returned."""
        if node is not other:
            self.same[node] = self.same.get(other, other)

    def _read(self, node) -> Image:
        if node not in self.found:
            raise Refused("it reads nothing of the stage")
        return self.image(node)

    def _convolution(self, node, layer) -> Image:
        names = ("input", "mask", "residual", "out", "zero")
        given = dict(zip(names, node.args)) | node.kwargs
        if reason := why_no_step(layer):
            raise Refused(reason)
        x, residual = self.image_alone(given["input"]), given.get("residual")
        shape = self.finder.shapes[node]
        mask = Mask("")
        if isinstance(layer, MaskedConv2d):
            if given.get("mask") is not None or not isinstance(layer.mapping, Nowhere):
                mask = self.mask(given.get("mask"), layer)
        if not mask.name and not self.finder.masked_follows(node):
            raise Refused("it computes every pixel, and no masked layer follows")
        window = Window(*map(tuple, (layer.kernel_size, layer.stride, layer.dilation)), tuple(padding_of(layer)))
        step = OpenStep(
            self._new_name(), x.name, shape[1], window, node.target, layer.bias is not None, mask=mask.name or None,
            reader=mask.reader, activation=getattr(layer, "activation", "none"), groups=layer.groups,
        )  # fmt: skip
        return self._weighted(node, step, shape, residual, given.get("out"), given.get("zero", False))

    def _weighted(self, node, step: OpenStep, shape: tuple, residual=None, out=None, zero=False) -> Image:
        """What a convolution or a linear layer makes: adds its step, with what it adds and writes into."""
        base = None
        if out is not None:
            base = self._cloned(out, node)
            if zero is not False or step.mask is None:
                base = None
        added = None if residual is None else self.image(residual)
        for one in (added, base):
            if one is not None and one.shape != shape:
                raise Refused("it adds an image of another shape")
        step.residual, step.base = (None if one is None else one.name for one in (added, base))
        self.steps.append(step)
        support = step.mask if base is None and step.reader is None else None
        settled = settled_by(step.activation) & (frozenset(SETTLED["relu6"]) if base is None else base.settled)
        return Image(step.output, shape, step, support, settled)

    # Layers of tokens

    def _halt(self, node) -> Mask:
        """A halt, with the totals and sums that it changes: those that it makes take their place."""
        given = dict(zip(HALTS[node.target], node.args)) | node.kwargs
        bias, threshold = given.get("bias", 0.0), given.get("threshold", 0.99)
        if any(type(one) not in (int, float) or one != one for one in (bias, threshold)):
            raise Refused("its bias or threshold is no number")
        x, shapes, types = self.tokens(given["input"]), self.finder.shapes, self.finder.types
        of, (n, tokens, channels) = given.get("mask"), x.shape
        weights, limits, totals, sums = (given.get(name) for name in ("weight", "limits", "totals", "sums"))
        for one, due in ((weights, (channels,)), (limits, (tokens,)), (totals, (n, tokens))):
            if one is not None and (shapes.get(one) != due or one in self.found.keys() - {totals} or one in self.beside):
                raise Refused("its weights, limits or totals are no tensors of its tokens that come before the stage")
        if types[totals] != torch.float32 or (sums is not None and types.get(sums) != types[given["input"]]):
            raise Refused("its totals are not of float32, or its sums not of the type of its tokens")
        for one in (totals, sums):
            self._check_own(node, one, [other for name, other in given.items() if other is one])
        step = HaltStep(f"s{len(self.steps)}", x.name, float(bias), float(threshold), None, f"t{len(self.steps)}",
                        self._totals(totals), None, None, weights, limits)  # fmt: skip
        if of is not None:
            step.of = self._mask_before(of, node)
        self.found[totals] = Totals(step.totals)
        if sums is not None:
            before = self.tokens(sums)
            if before.shape[::2] != (n, channels) or not 1 <= before.shape[1] <= tokens:
                raise Refused("its sums are not those of its first tokens")
            step.sums, step.base = self._new_name(), before.name
            self.found[sums] = Image(step.sums, before.shape, None, None, frozenset())
        for one in (totals, sums):
            if one is not None:
                self.changed.setdefault(one, node)
        self.masks[node] = step.mask, None
        self.steps.append(step)
        return Mask(step.mask)

    def _check_own(self, node, tensor, uses: list) -> None:
        """Refuses what a halt changes where others may see that, or have seen what it was before."""
        if tensor is None:
            return
        if not isinstance(tensor, torch.fx.Node) or tensor.target not in _FRESH or len(uses) != 1:
            raise Refused("its totals or sums are not the model's own, as torch.zeros_like makes them")
        order = self.finder.order
        before = [user for user in tensor.users if order[user] < order[node]]
        if any(user.target not in HALTS and not only_reads_shapes(user) for user in before):
            raise Refused("others read its totals or sums before it")

    def _totals(self, node) -> str:
        """The name of the totals that a halt begins with."""
        if (found := self.found.get(node)) is not None:
            return found.name
        if node not in self.given:
            self.given[node] = Image(f"x{len(self.given)}", self.finder.shapes[node], None, None, frozenset())
        return self.given[node].name

    def _mask_before(self, mask, node) -> str:
        """The name of the mask of the tokens that may go on: that by which layers know it, if they do."""
        known = (name for key, (name, _) in self.masks.items() if isinstance(key, tuple) and key[0] is mask)
        name = next(known, None)
        if mask in self.found or name is None:
            return self._operand(mask, node)
        if self.finder.types.get(mask) != torch.bool or self.finder.shapes.get(mask) != self.finder.shapes.get(node):
            raise Refused("the mask of those that may go on is not of its tokens")
        return name

    def _mask_of(self, argument, layer: Masked) -> str | None:
        """The name of the mask of a layer that has no windows; None if it has none."""
        mask = Mask("")
        if argument is not None or not isinstance(layer.mapping, Nowhere):
            mask = self.mask(argument, layer)
        if mask.reader is not None:
            raise Refused("its mask is the window of another layer")
        return mask.name or None

    def _linear(self, node, layer: MaskedLinear) -> Image:
        given = dict(zip(("input", "mask", "residual"), node.args)) | node.kwargs
        if hooked(layer):
            raise Refused("it has hooks")
        x = self.tokens(given["input"])
        mask = self._mask_of(given.get("mask"), layer)
        if mask is None and not self.finder.masked_follows(node):
            raise Refused("it computes every token, and no masked layer follows")
        return self._projected(node, layer, node.target, x, mask, given)

    def _product(self, layer, name: str, x: Image, mask: str | None, ins: int, outs: int, prefix: str = "") -> OpenStep:
        """The step of a linear layer."""
        if reason := why_no_weights(layer, prefix, ins, outs):
            raise Refused(reason)
        bias = layer._parameters[f"{prefix}bias"] is not None
        return OpenStep(self._new_name(), x.name, outs, _POINT, name, bias, mask=mask, prefix=prefix)

    def _norm(self, node, layer) -> Image:
        given = dict(zip(("input", "mask"), node.args)) | node.kwargs
        if hooked(layer) or given.get("out") is not None:
            raise Refused("it has hooks, or writes into a given tensor")
        is_of_tokens = type(layer) in (MaskedLayerNorm, MaskedRMSNorm)
        x = (self.tokens if is_of_tokens else self.image_alone)(given["input"])
        if channels_of(x) != layer.normalized_shape[0]:
            raise Refused("it normalizes other dimensions than the channels")
        mask = self._mask_of(given.get("mask"), layer)
        if mask is None:
            raise Refused("it has no mask")
        has = [layer._parameters.get(name) is not None for name in ("weight", "bias")]
        name = self._new_name()
        step = NormStep(name, x.name, _NORMS[type(layer)], node.target, *has, layer.eps, mask)
        self.steps.append(step)
        return Image(name, x.shape, step, mask, frozenset())

    def _attention(self, node, layer: MaskedAttention) -> Image:
        given = dict(zip(("input", "mask", "key_mask", "residual"), node.args)) | node.kwargs
        if hooked(layer) or hooked(layer.qkv) or hooked(layer.proj):
            raise Refused("it has hooks")
        if layer.causal or given.get("is_causal", False) is not False:
            raise Refused("it is causal")
        if any(given.get(name) is not None for name in ("key_mask", "attn_mask")):
            raise Refused("it has a mask of its keys")
        x, mask = self.tokens(given["input"]), self._mask_of(given.get("mask"), layer)
        channels = layer.proj.in_features
        parts = self._product(layer.qkv, f"{node.target}.qkv", x, mask, layer.qkv.in_features, 3 * channels)
        attended = self._attended(x, parts, layer.num_heads, channels, mask)
        return self._projected(node, layer.proj, f"{node.target}.proj", attended, mask, given)

    def _attended(self, x: Image, parts: OpenStep, heads: int, channels: int, mask: str | None) -> Image:
        """Attention behind a layer that makes queries, keys and values."""
        if mask is None:
            raise Refused("it has no mask")
        self.steps.append(parts)
        step = AttentionStep(self._new_name(), parts.output, heads, mask)
        self.steps.append(step)
        return Image(step.output, (*x.shape[:2], channels), step, mask, frozenset())

    def _projected(self, node, layer: MaskedLinear, name: str, x: Image, mask: str | None, given: dict) -> Image:
        """What a linear layer makes of tokens, with its activation and what the call adds."""
        step = self._product(layer, name, x, mask, layer.in_features, layer.out_features)
        step.activation = layer.activation
        shape = (*x.shape[:2], layer.out_features)
        return self._weighted(node, step, shape, given.get("residual"), given.get("out"), given.get("zero", False))

    def _multihead_attention(self, node, layer: MaskedMultiheadAttention) -> None:
        """Self-attention whose weights nobody reads: its first result is the only one."""
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
        given = dict(zip(names, node.args)) | node.kwargs
        if hooked(layer) or hooked(layer.out_proj):
            raise Refused("it has hooks")
        others = [given.get(name) for name in ("key_padding_mask", "attn_mask")]
        plain = layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn and layer._qkv_same_embed_dim
        if not plain or any(one is not None for one in others) or given.get("is_causal", False) is not False:
            raise Refused("it has a mask of its keys, is causal, or adds keys")
        if given.get("need_weights", True) is not False or not given["query"] is given["key"] is given["value"]:
            raise Refused("it is no self-attention, or returns its weights")
        results = list(node.users)
        if any(one.target is not operator.getitem or one.args[1] != 0 for one in results):
            raise Refused("its results are not taken one by one")
        x, mask = self.tokens(given["query"]), self._mask_of(given.get("mask"), layer)
        parts = self._product(layer, node.target, x, mask, layer.embed_dim, 3 * layer.embed_dim, "in_proj_")
        attended = self._attended(x, parts, layer.num_heads, layer.embed_dim, mask)
        found = self._projected(node, layer.out_proj, f"{node.target}.out_proj", attended, mask, {})
        for one in (node, *results):
            self.found[one] = found
            self.absorbed.append(one)
            self._note_same(one, node)

    def _cloned(self, out, node) -> Image:
        """The image that a call writes into a copy of."""
        if not isinstance(out, torch.fx.Node) or not is_clone_for(out, node):
            raise Refused("it writes into a tensor that others may read: give it a clone, or no out")
        if out in self.beside:
            self.beside.remove(out)
        self.absorbed.append(out)
        return self.image(out.args[0])

    def _unit(self, node, layer) -> Mask:
        if hooked(layer):
            raise Refused("it has hooks")
        name = f"s{len(self.steps)}"
        self.steps.append(UnitStep(name, self.image_alone(node.args[0]).name, layer, node.target))
        self.masks[node] = name, None
        return Mask(name)

    def _combined(self, node) -> Mask | None:
        """A mask from one that the stage makes, and maybe another; None for what is no algebra of masks."""
        size = None
        if node.target in _NOT:
            how = "not"
        elif node.target is masks.pool:
            how, size = "pool", self._size(node, "factor")
        elif node.target is masks.dilate and self.is_read_by_others(node):
            how, size = "dilate", self._size(node, "radius")
        else:
            how = next((how for how, names in _TWO.items() if node.target in names), None)
        operands = node.args if size is None else node.args[:1]
        nodes = [one for one in operands if isinstance(one, torch.fx.Node)]
        if how is None or not any(isinstance(self.found.get(one), Mask) for one in nodes):
            return None
        if size is None and node.kwargs:
            raise Refused("its masks are not its arguments")
        names = tuple(self._operand(one, node) for one in operands)
        name = f"s{len(self.steps)}"
        self.steps.append(MaskStep(name, how, names, size))
        self.masks[node] = name, None
        return Mask(name)

    def _size(self, node, name: str) -> tuple:
        """The radius or the factor that a function of masks is given."""
        return pair(node.args[1] if len(node.args) > 1 else node.kwargs[name])

    def is_read_by_others(self, node) -> bool:
        """Whether others than convolutions read a mask."""
        return any(user.op != "call_module" or type(self.finder.modules[user.target]) is not MaskedConv2d
                   for user in node.users)  # fmt: skip

    def _operand(self, node, reader) -> str:
        """A mask that another follows from: of the stage, or given, of its size."""
        found = self.found.get(node)
        if isinstance(found, Mask) and found.reader is None:
            return found.name
        shape, kind = self.finder.shapes.get(node), self.finder.types.get(node)
        if node in self.beside:
            raise Refused("its mask is made of what the stage makes")
        if found is not None or kind != torch.bool or shape != self.finder.shapes.get(reader):
            raise Refused("it reads what is no mask of its size")
        if node not in self.masks:
            name = f"m{len(self.masks)}"
            self.masks[node] = name, GivenMask(None, "mask", UNMAPPED, None)
            self.mask_nodes[name] = node
        return self.masks[node][0]

    def _read_by_window(self, node) -> Mask:
        names = ("mask", "size") if node.target is masks.needed_input else ("mask", "radius")
        given = dict(zip(names, node.args)) | node.kwargs
        found = self.found.get(given["mask"])
        if not isinstance(found, Mask) or found.reader:
            raise Refused("no window of a mask that the stage makes")
        if node.target is masks.dilate:
            radius = pair(given["radius"])
            return Mask(found.name, Reader(tuple(2 * r + 1 for r in radius), padding=radius))
        numbers = [given.get(name, default) for name, default in
                   (("kernel", None), ("stride", 1), ("dilation", 1), ("padding", 0))]  # fmt: skip
        if given.get("kind", "conv") != "conv" or any(isinstance(leaf, torch.fx.Node) for leaf in tree_leaves(numbers)):
            raise Refused("its window is no convolution's")
        return Mask(found.name, Reader(*map(pair, numbers)))

    def _sum(self, node) -> Image:
        operands, kwargs = node.args[:2], dict(node.kwargs)
        if len(node.args) != 2 or kwargs:
            raise Refused("a sum with factors is no step of a stage")
        if node.target is operator.iadd or is_named_in_place(node):
            if operands[0] not in self.found or self.readers(self.image(operands[0])) != 1:
                raise Refused("it changes what others read")
        if not any(isinstance(one, torch.fx.Node) and one in self.found for one in operands):
            raise Refused("it reads nothing of the stage")
        if operands[0] is operands[1]:
            raise Refused("it adds an image to itself")
        pairs = [(self.image(one), self.image(other)) for one, other in (operands, operands[::-1])]
        if pairs[0][0].shape != pairs[0][1].shape:
            raise Refused("it adds images of different shapes")
        hosts = [pair for pair in pairs if self.is_open(pair[0]) and pair[0].step.reader is None]
        if not hosts:
            return self._alone(LayerStep(self._new_name(), pairs[0][0].name, "sum", "", other=pairs[0][1].name), node)

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
        return Image(host.name, host.shape, step, step.mask if under is None else None, frozenset(), under)

    def _activated(self, node, operand, name: str, in_place: bool) -> Image:
        image = self._read(operand)
        if in_place:
            self._note_same(node, operand)
        if name in image.settled:
            return image
        step = image.step
        if not isinstance(step, OpenStep):
            return self._sum_activated(image, name)
        if in_place and self.readers(image) != 1:
            raise Refused("it changes what others read")
        if self.readers(image) != 1 or step.activation != "none" or step.later is not None:
            raise Refused("the activation is of what others read, too")
        name_only = split_slope(name)[0]
        if step.base is None:
            if step.mask is not None and name_only in AT_ZERO:
                raise Refused(f"{name} is not 0 where the mask is not active")
            settled = settled_by(name)
        else:
            settled = self._activated_elsewhere(image, name)
        step.activation = name
        return Image(image.name, image.shape, step, image.support, settled)

    def _sum_activated(self, image: Image, name: str) -> Image:
        step = image.step
        is_sum = isinstance(step, LayerStep) and step.how == "sum"
        if not is_sum or step.activation != "none" or self.readers(image) != 1:
            raise Refused(f"no convolution and no sum alone before it can have the activation {name}")
        if step.mask is not None and split_slope(name)[0] in AT_ZERO:
            raise Refused(f"{name} is not 0 where the mask is not active")
        step.activation = name
        return Image(image.name, image.shape, step, image.support, settled_by(name))

    def _new_name(self) -> str:
        return f"y{len(self.steps)}"

    def _alone(self, step: LayerStep, node, settled=frozenset()) -> Image:
        """What a layer that is a step of its own makes."""
        self.steps.append(step)
        return Image(step.output, self.finder.shapes[node], step, step.mask, settled)

    def _layer(self, node, call: LayerCall) -> Image:
        layer, mask = call.masked, Mask("")
        image = self._read(call.operand)
        if len(image.shape) != 4:
            raise Refused("it reads what is no image [N, C, H, W]")
        if node.op == "call_module" and hooked(self.finder.modules[node.target]):
            raise Refused("it has hooks")
        if layer is not None and (call.mask is not None or not isinstance(layer.mapping, Nowhere)):
            mask = self.mask(call.mask, layer)
        if mask.reader is not None:
            raise Refused("its mask is the window of another layer")
        name = str(node.target) if node.op == "call_module" else ""
        step = LayerStep(self._new_name(), image.name, call.how, name, call.window, call.scale, mask=mask.name or None)
        return self._alone(step, node, image.settled)

    def _activated_elsewhere(self, image: Image, name: str) -> frozenset:
        """Lets the activation of a sum act where its mask is not active, too. Returns which then change nothing."""
        under = image.under
        if under is None:
            raise Refused("the activation would act on a copy, too")
        if name in under.settled:
            return settled_by(name) & under.settled
        below = under.step
        can = (
            isinstance(below, OpenStep)
            and below.mask is None
            and (below.activation, below.residual, below.base, below.later) == ("none", None, None, None)
            and self.readers(under) == 1
        )
        if not can:
            raise Refused(f"{name} changes pixels where the mask is not active")
        below.activation, below.later = name, image.step.mask
        self._move_to_reader(below)
        return settled_by(name)

    def _move_to_reader(self, step: OpenStep) -> None:
        """Puts a step before the one that adds to it, and so behind what makes the mask of its later pixels."""
        host = next(one for one in self.steps if isinstance(one, OpenStep) and one.base == step.output)
        self.steps.remove(step)
        self.steps.insert(self.steps.index(host), step)

    def _masked_add(self, node, layer) -> Image:
        given = dict(zip(("input", "other", "mask", "out", "zero"), node.args)) | node.kwargs
        operands = (given["input"], given["other"])
        if hooked(layer) or given.get("out") is not None or operands[0] is operands[1]:
            raise Refused("it has hooks, or writes into a given tensor, or adds an image to itself")
        pairs = [(self.image(one), self.image(other)) for one, other in (operands, operands[::-1])]
        if pairs[0][0].shape != pairs[0][1].shape:
            raise Refused("it adds images of different shapes")
        hosts = [pair for pair in pairs if self.is_open(pair[0]) and pair[0].step.reader is None]
        if isinstance(layer.mapping, Nowhere):
            raise Refused("no convolution before it can add the other image")
        mask = self.mask(given.get("mask"), layer)
        if not hosts and mask.reader is None and any(one in self.found for one in operands):
            step = LayerStep(self._new_name(), pairs[0][0].name, "sum", str(node.target), None, None, pairs[0][1].name,
                             mask.name, layer.activation)  # fmt: skip
            return self._alone(step, node, settled_by(layer.activation))
        hosts = [pair for pair in hosts if mask.reader is None and pair[0].step.mask == mask.name]
        if not hosts:
            raise Refused("its mask is not that of a convolution before it")
        host, other = hosts[0]
        step = host.step
        step.residual, step.activation = other.name, layer.activation
        self.steps.remove(step)
        self.steps.append(step)
        return Image(host.name, host.shape, step, mask.name, settled_by(layer.activation))

    def _masked_activation(self, node, layer) -> Image:
        given = dict(zip(("input", "mask", "out", "zero"), node.args)) | node.kwargs
        image, step = self._read(given["input"]), self.image(given["input"]).step
        if hooked(layer) or given.get("out") is not None or isinstance(layer.mapping, Nowhere):
            raise Refused("it has hooks, or writes into a given tensor, or has no mask")
        mask = self.mask(given.get("mask"), layer)
        if mask.reader is not None or image.support != mask.name:
            raise Refused("its mask is not that of the convolution before it")
        if layer.activation != "none" and layer.activation not in image.settled:
            if not isinstance(step, OpenStep) and not (isinstance(step, LayerStep) and step.how == "sum"):
                raise Refused("no convolution and no sum before it can have the activation")
            if step.activation != "none" or self.readers(image) != 1:
                raise Refused("the activation is of what others read, too")
            step.activation = layer.activation
            return Image(image.name, image.shape, step, mask.name, settled_by(layer.activation))
        return image

    _LISTS = ("absorbed", "beside", "shapes", "same", "found", "changed", "given", "masks", "mask_nodes", "steps")

    def state(self) -> tuple:
        """What a call that is refused may have changed."""
        lists = {name: copy.copy(getattr(self, name)) for name in self._LISTS}
        return lists, list(map(dataclasses.replace, self.steps))

    def restore(self, state: tuple) -> None:
        lists, steps = state
        vars(self).update(lists)
        for step, before in zip(self.steps, steps):
            vars(step).update(vars(before))

    def is_worth_it(self) -> bool:
        convolutions = [step for step in self.steps if isinstance(step, OpenStep)]
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
        for node in (*self.absorbed, *self.changed):
            if node in self.found and not set(self.users_of(node)) <= inside:
                found.setdefault(self.found[node].name, []).append(node)
        return found

    def users_of(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The calls that read what the stage makes of a call: of what halts change, those behind the first of them."""
        first, order = self.changed.get(node), self.finder.order
        return [user for user in node.users if first is None or order.get(user, -1) > order[first]]


class Finder:
    """The chains of a traced graph."""

    def __init__(self, graph: torch.fx.Graph, modules: dict[str, nn.Module], tensors: dict[torch.fx.Node, tuple]):
        self.graph, self.modules = graph, modules
        self.shapes = {node: shape for node, (shape, _) in tensors.items()}
        self.types = {node: dtype for node, (_, dtype) in tensors.items()}
        self.chains: list[Chain] = []
        self.refused: dict[str, str] = {}
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self._settled: dict[torch.fx.Node, frozenset] = {}

    def run(self) -> list[Chain]:
        chain = Chain(self)
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            chain = self._visit(node, chain)
        self._close(chain, "the model ends")
        return self.chains

    def _visit(self, node: torch.fx.Node, chain: Chain) -> Chain:
        read = node.all_input_nodes
        copied = {one for one in read if one is self._out_of(node) and is_clone_for(one, node)}
        late = {one for one in chain.beside if one not in chain.shapes}
        if node in chain.found:  # A part of a call before it.
            return chain
        needed = [one for one in read if one not in copied] + [one for copy in copied for one in copy.all_input_nodes]
        if any(one in late for one in needed):
            if not self._is_layer(node) and not changes_a_tensor(node, self.modules):
                chain.beside.append(node)
                return chain
            self._close(chain, self._why_late(node, next(one for one in needed if one in late), late))
            chain = Chain(self)
        if reads_shapes(node, chain):
            chain.beside.append(node)
            chain.shapes.add(node)
            return chain
        before, reason = chain.state(), ""
        try:
            chain.take(node)
            found = chain.found[node]
            self._settled[node] = found.settled if isinstance(found, Image) else frozenset()
            return chain
        except (Refused, LookupError, TypeError) as why:
            chain.restore(before)
            if self._is_layer(node):
                known = isinstance(why, Refused)
                self.refused[node.target] = str(why) if known else "its arguments are not those of such a layer"
            elif node.target in HALTS:
                reason = f": {why}"
        if changes_a_tensor(node, self.modules):
            self._close(chain, f"{name_of(node)} changes a tensor{reason}")
            return Chain(self)
        if any(one in chain.found or one in chain.shapes for one in read):
            chain.beside.append(node)
        return chain

    def _out_of(self, node: torch.fx.Node):
        """What a layer is given to write into."""
        is_convolution = node.op == "call_module" and type(self.modules[node.target]) is MaskedConv2d
        return node.args[3] if is_convolution and len(node.args) > 3 else node.kwargs.get("out")

    def _why_late(self, reader: torch.fx.Node, blocked: torch.fx.Node, late: set) -> str:
        """Why a chain ends in front of a call that reads what is late."""
        source = blocked
        while before := next((one for one in source.all_input_nodes if one in late), None):
            source = before
        name, made = name_of(source, self.modules), name_of(reader)
        read = {len(self.shapes.get(one, ())) for one in source.all_input_nodes}
        if len(self.shapes.get(blocked, ())) == 3 and 4 in read:
            return f"{name} makes tokens of its image: another chain begins with {made}"
        return f"{made} reads what {name} makes, which is no step"

    def _close(self, chain: Chain, why: str) -> None:
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
        layers = (self.modules[user.target] for user in node.users if user.op == "call_module")
        sums = any(user.op != "call_module" and user.target in _ADD for user in node.users)
        return sums or any(isinstance(layer, (Masked, MaskUnit)) for layer in layers)

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
                return settled_by(name) if plain else frozenset()
            first = node.args[0] if node.args else None
            if isinstance(first, torch.fx.Node) and (passes(layer) or isinstance(layer, nn.MaxPool2d)):
                return self.settled(first)
        elif node.op in ("call_function", "call_method") and node.target in FUNCTIONS:
            return settled_by(FUNCTIONS[node.target])
        return frozenset()


def only_reads_shapes(node: torch.fx.Node) -> bool:
    """Whether a call reads nothing of a tensor but its shape, type or device."""
    if node.target is getattr:
        return node.args[1] in ("shape", "device", "dtype", "ndim")
    return node.op == "call_method" and node.target in _SHAPES


def reads_shapes(node: torch.fx.Node, chain: Chain) -> bool:
    """Whether a call reads only shapes of what a stage makes."""
    read = node.all_input_nodes
    if not any(one in chain.found or one in chain.shapes for one in read):
        return False
    if only_reads_shapes(node):
        return True
    return all(one in chain.shapes and one not in chain.found for one in read) and node.op == "call_function"
