"""Replaces the layers of an existing model by masked ones with the same parameters."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.utils import parametrize

from . import masks, tracing
from . import nn as masked
from .comparison import checked
from .folding import fold_on_load
from .fusion import OWN_FORWARD, Fusion, replaced_on_instance
from .mappings import Layer, Nowhere, Said, Traced
from .mistakes import warn_of_unmatched
from .nn_base import Masked
from .norms import is_nothing, masked_norm
from .own_weights import zeros_in_layer
from .positions import NoPositions

Rule = tuple[object, object]

REPLACEMENTS: dict[type, Callable[[nn.Module], nn.Module]] = {
    nn.Conv2d: masked.MaskedConv2d.from_dense,
    nn.ConvTranspose2d: masked.MaskedConvTranspose2d.from_dense,
    nn.Linear: masked.MaskedLinear.from_dense,
    nn.LayerNorm: masked.MaskedLayerNorm.from_dense,
    nn.RMSNorm: masked.MaskedRMSNorm.from_dense,
    nn.GroupNorm: masked.MaskedGroupNorm.from_dense,
    nn.BatchNorm2d: masked.MaskedBatchNorm2d.from_dense,
    nn.MaxPool2d: masked.MaskedMaxPool2d.from_dense,
    nn.AvgPool2d: masked.MaskedAvgPool2d.from_dense,
    nn.Upsample: masked.MaskedUpsample.from_dense,
    nn.MultiheadAttention: masked.MaskedMultiheadAttention.from_dense,
}


@dataclasses.dataclass
class Replaced:
    """A layer that became a masked one, and the layers after it that it took in."""

    name: str
    type: str
    masked: str
    mask: str
    mapping: Layer | None = None  # Where its outputs are over the mask; None of a layer that takes none.
    taken: list[str] = dataclasses.field(default_factory=list)
    dense: str = ""  # Why its operator runs dense, with the mask after it: no PolyKernel can compute it.
    zeros: str = ""  # How many of its weights are 0, if code for them may be worth it, and if no code skips them, why.
    work: float = 1.0  # The share of its multiplications that code for these zeros leaves, with every pixel active.


@dataclasses.dataclass
class Left:
    """A layer that stays, and why."""

    name: str
    type: str
    reason: str


def convert(
    model: nn.Module,
    rules: Iterable[Rule] = ((nn.Module, True),),
    fuse: bool = True,
    report: list[Replaced | Left] | None = None,
    example=None,
) -> nn.Module:
    """Replaces layers of a model in place, and returns it. To `report`, it adds what became of each layer.

    The first rule that matches decides for a layer. A rule is (what, how): `what` is a pattern of names, for instance
    "layer2.*.conv1", or a class; `how` is True for the masked layer of its kind, False to leave it, the name of the
    mask that it takes (distile.mask gives masks by names; True is "mask"), distile.image(...) or distile.tokens(...),
    which also say where its outputs are over the mask, or a function from the layer to its replacement. By default all
    layers with a masked form are replaced: convolutions, linear layers, norms, pooling, upsampling, and attention as a
    whole.

    `example` is an input of the model, a tuple of its arguments, or a dictionary of those with names. The model runs on
    it once, and so shows where each layer's outputs are over the image: their stride, offset and grid, and the places
    of tokens. Layers whose outputs stand for no pixels stay, with the reason. Without an example, the first call in the
    context of a mask is the example, and such layers run without a mask then.

    Without a mask, the model computes what it did. With one, a replaced layer gives 0 where its mask is not active.
    Group norm and attention then see the active pixels or tokens only, and so does nothing else.

    With `fuse`, a batch norm in eval mode goes into the weights of the replaced convolution before it, and an
    activation becomes the layer's own, if nothing else reads what is between them and no rule leaves them; nn.Identity
    takes their places. The model still loads what was saved before. The layer's mask then comes after them. torch.fx
    follows the flow of the data, or in what it cannot trace, its parts and nn.Sequential.
    """
    rules = _checked(rules, model)
    trace = None if example is None else tracing.run(model, *tracing.arguments_of(example))
    conversion = _Conversion(rules, trace)
    conversion.visit("", model)
    made = conversion.made
    folds = []
    if fuse:
        fusion = Fusion(model, made, conversion.allows, conversion.names)
        conversion.note(fusion.taken)
        folds = fusion.folds
    if report is not None:
        report += conversion.rows.values()
    if rules and not made and not any(isinstance(one, Masked) for one in model.modules()):
        warnings.warn(
            f"distile.convert replaced no layer of {type(model).__name__}, so masks change nothing; `report=rows` gives "
            "the reasons",
            stacklevel=2,
        )
    if model in made:
        return _waiting(made[model]) if example is None else made[model]
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in made:
                setattr(parent, name, made[child])
    for parent in model.modules():
        if any(isinstance(one, Masked) for one in parent.modules()):
            _leave_fast_paths(parent)
    for fold in folds:
        fold_on_load(model, fold)
    return _waiting(model) if example is None else model


def _leave_fast_paths(parent: nn.Module) -> None:
    """Lets PyTorch's own modules call the layers in them."""
    if isinstance(parent, nn.TransformerEncoderLayer):
        parent.activation_relu_or_gelu = 0
    if isinstance(parent, nn.TransformerEncoder):
        parent.use_nested_tensor = False  # Layers take no nested tensors.


def trace(model: nn.Module, example) -> nn.Module:
    """Runs a model of masked layers on an example, without masks, and so finds where the outputs of each layer are over
    the image of a shared mask. `example` is as in distile.convert. Layers whose outputs stand for no pixels run without
    such a mask. Those that the example does not call stay as they are. Returns the model."""
    _place(model, tracing.run(model, *tracing.arguments_of(example)))
    return model


def _place(model: nn.Module, trace: tracing.Trace) -> None:
    for layer in model.modules():
        if isinstance(layer, Masked) and not isinstance(layer.mapping, Said) and trace.calls(layer):
            layer.mapping = _mapping_of(trace, layer, layer)


def _mapping_of(trace: tracing.Trace, layer: nn.Module, masked: Masked) -> Traced | Nowhere:
    try:
        return trace.mapping(layer, masked)
    except NoPositions as reason:
        return Nowhere(str(reason))


class _Wait:
    """Traces a model before its first call in the context of a mask."""

    def __call__(self, model: nn.Module, arguments: tuple, keywords: dict) -> None:
        if masks.is_set() and not torch.compiler.is_compiling():
            for number in [number for number, hook in model._forward_pre_hooks.items() if hook is self]:
                del model._forward_pre_hooks[number], model._forward_pre_hooks_with_kwargs[number]
            _place(model, tracing.run(model, arguments, keywords))


def trace_waiting(model: nn.Module, example) -> None:
    """Traces a model that waits for its first call in the context of a mask."""
    waiting = [number for number, hook in model._forward_pre_hooks.items() if isinstance(hook, _Wait)]
    for number in waiting:
        del model._forward_pre_hooks[number], model._forward_pre_hooks_with_kwargs[number]
    if waiting:
        trace(model, example)


def _waiting(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(_Wait(), prepend=True, with_kwargs=True)
    return model


def _checked(rules: Iterable[Rule], model: nn.Module) -> list[Rule]:
    """Rules that are right, with a warning of those that match nothing."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"distile.convert replaces the layers of a torch.nn.Module of Python code, not of {type(model).__name__}"
        )
    if isinstance(rules, torch.Tensor):
        raise TypeError("distile.convert takes rules as its second argument, and an input as example=x")
    rules = list(rules)
    for rule in rules:
        if not isinstance(rule, (tuple, list)) or len(rule) != 2 or not isinstance(rule[0], (str, type)):
            raise ValueError(f"a rule is (pattern or class, how), as ('layer2.*', True), and not {rule!r}: give a list")
        what, how = rule
        if not isinstance(how, (bool, str, Said)) and not callable(how):
            raise ValueError(
                f"the rule ({what!r}, {how!r}) is not for True, False, a mask's name, distile.image(...), "
                "distile.tokens(...) or a function"
            )
    names = [name for name, _ in model.named_modules()]
    warn_of_unmatched([what for what, _ in rules if isinstance(what, str)], names, "layer", 3)
    return rules


def _decision(rules: list[Rule], name: str, layer: nn.Module):
    """True, False, the name of a mask, a place over one, or a function; None without a rule."""
    for what, how in rules:
        if isinstance(layer, what) if isinstance(what, type) else fnmatch.fnmatchcase(name, what):
            return Masked.mask_name if how is True else how or False
    return None


class _Conversion:
    """The masked layers for those that rules choose."""

    def __init__(self, rules: list[Rule], trace: tracing.Trace | None):
        self.rules, self.trace = rules, trace
        self.made: dict[nn.Module, nn.Module] = {}
        self.rows: dict[nn.Module, Replaced | Left] = {}
        self.names: dict[nn.Module, str] = {}
        self._decisions: dict[nn.Module, object] = {}

    def visit(self, name: str, layer: nn.Module) -> None:
        if layer in self.names:
            return
        self.names[layer], self._decisions[layer] = name, _decision(self.rules, name, layer)
        row = self._row(name, layer)
        if row:
            self.rows[layer] = row
        if isinstance(row, Replaced) or isinstance(layer, (Masked, nn.MultiheadAttention)):
            return
        for child_name, child in layer.named_children():
            self.visit(f"{name}.{child_name}" if name else child_name, child)

    def _row(self, name: str, layer: nn.Module) -> Replaced | Left | None:
        how, kind = self._decisions[layer], type(layer).__name__
        if callable(how):
            found = how(layer)
            if found is layer:
                return Left(name, kind, "by rule")
        else:
            try:
                make = _maker(layer)
                if make is None:
                    return None
                if not how:
                    return Left(name, kind, "no rule" if how is None else "by rule")
                _check_instance(layer)
                found = make(layer)
            except ValueError as reason:
                return Left(name, kind, str(reason))
        if isinstance(found, Masked):
            self._give_mask(layer, found, how)
            if isinstance(found.mapping, Nowhere) and not callable(how):
                return Left(name, kind, str(found.mapping))
        self.made[layer] = found
        mask, mapping = getattr(found, "mask_name", ""), getattr(found, "mapping", None)
        dense = found.why_dense() if isinstance(found, Masked) else ""
        zeros, work = zeros_in_layer(found)
        return Replaced(name, kind, type(found).__name__, mask, mapping, dense=dense, zeros=zeros, work=work)

    def _give_mask(self, layer: nn.Module, found: Masked, how) -> None:
        """Says which mask a layer takes, and where its outputs are over that."""
        name = how.name if isinstance(how, Said) else how if isinstance(how, str) else found.mask_name
        if name != found.mask_name:
            found.mask_name = name
        if isinstance(how, Said):
            found.mapping = how
        elif self.trace:
            found.mapping = _mapping_of(self.trace, layer, found)

    def allows(self, follower: nn.Module) -> bool:
        """Whether a masked layer may take in one that follows: not if a rule leaves it, or gives it a replacement."""
        how = self._decisions.get(follower, False)
        return how is not False and not callable(how)

    def note(self, taken: dict[nn.Module, list[nn.Module]]) -> None:
        """Adds to the rows which layers others took in."""
        for layer, followers in taken.items():
            self.rows[layer].taken += [self.names[follower] for follower in followers]
            for follower in followers:
                self.rows.pop(follower, None)


def _maker(layer: nn.Module) -> Callable[[nn.Module], nn.Module] | None:
    """What makes the masked form of a layer; None if it is no matter of masks. Raises ValueError for one without."""
    if isinstance(layer, Masked):
        raise ValueError("it is masked already")
    if isinstance(getattr(layer, "num_heads", None), int) and all(
        isinstance(getattr(layer, name, None), nn.Linear) for name in ("qkv", "proj")
    ):
        return _attention
    base = next((base for base in type(layer).__mro__ if base in REPLACEMENTS), None)
    if base is None:
        if isinstance(layer, (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)):
            raise ValueError("it takes all pixels; a rule can give MaskedGlobalPool.from_dense, for the active ones")
        return _other(layer)
    if parametrize.is_parametrized(layer):
        raise ValueError("it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations before")
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params():
        raise ValueError("it has no parameters yet: run the model once before")
    before = type(layer).__mro__[: type(layer).__mro__.index(base)]
    own = next((one.__name__ for one in before if OWN_FORWARD & vars(one).keys()), None)
    if own:
        return _norm(layer, ValueError(f"the class {own} has a forward of its own"))
    return REPLACEMENTS[base]


def _other(layer: nn.Module) -> Callable[[nn.Module], nn.Module] | None:
    """What makes the masked form of a layer of another class."""
    own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    if not own or any(True for child in layer.children() for _ in child.parameters()):
        return None
    return _norm(layer, ValueError("it has no masked form") if list(layer.parameters(recurse=False)) else None)


def _norm(layer: nn.Module, fault: ValueError | None) -> Callable[[nn.Module], nn.Module] | None:
    """What makes the masked form of a norm; for other layers raises the error, if there is one."""
    found = masked_norm(layer)
    if found is None and fault:
        raise fault
    return found and (lambda _: found)


def _check_instance(layer: nn.Module) -> None:
    """Raises ValueError for a layer whose own code does not run, or that of a layer in it."""
    own = next((name for module in layer.modules() for name in replaced_on_instance(module)), None)
    if own == "_compiled_call_impl":
        raise ValueError("it was compiled by its method compile(): convert it before")
    if own:
        raise ValueError(f"its {own} was replaced on the instance, as by hooks of accelerate: convert it before")


def _attention(layer: nn.Module) -> nn.Module:
    """Masked attention for a module with the layers of timm's Attention, if it computes the same."""
    others = [name for name, child in layer.named_children() if name not in ("qkv", "proj") and not is_nothing(child)]
    own = [name for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))]
    if others or own:
        raise ValueError(f"it has {', '.join(others + own)}, which MaskedAttention lacks")
    known = inspect.signature(masked.MaskedAttention.forward).parameters
    _, *more = inspect.signature(layer.forward).parameters.values()
    more = [one.name for one in more if one.name not in known and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if more:
        raise ValueError(f"its forward takes {', '.join(more)}, which MaskedAttention lacks")
    return checked(layer, masked.MaskedAttention.from_dense, (2, 5, layer.qkv.in_features))
