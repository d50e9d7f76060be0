"""Which batch norms and activations a masked layer takes in."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from . import _facts
from . import nn as masked
from .activations import with_slope
from .dataflow import Flow, flows
from .folding import Fold
from .nn_base import Activated

_MODULES = {name.lower(): kind for name, kind in vars(nn).items() if isinstance(kind, type)}
# PyTorch has modules of the same names without underscores.
ACTIVATIONS = {_MODULES[name.replace("_", "")]: name for name in _facts.ACTIVATIONS if name != "none"}
FUNCTIONS = {F.relu: "relu", torch.relu: "relu", torch.relu_: "relu", "relu": "relu", "relu_": "relu", F.relu6: "relu6"}
IDEMPOTENT = ("relu", "relu6")


def activation_of(module: nn.Module | None) -> str | None:
    """The name of an activation that masked layers have."""
    if type(module) is nn.GELU and module.approximate != "none":
        return None
    if type(module) is nn.ELU and module.alpha != 1:
        return None
    if type(module) is nn.LeakyReLU:
        return with_slope("leaky_relu", module.negative_slope)
    return ACTIVATIONS.get(type(module))


def _function(node: torch.fx.Node) -> str | None:
    """The name of an activation that is called as a function or a method, and may come twice."""
    return FUNCTIONS.get(node.target) if node.op in ("call_function", "call_method") else None


OWN_FORWARD = {"forward", "_conv_forward", "__call__"}


def replaced_on_instance(module: nn.Module) -> list[str]:
    """The methods of a module's class that its attributes replace."""
    found = [name for name in (*OWN_FORWARD, "_call_impl") if name in vars(module)]
    return found + (["_compiled_call_impl"] if vars(module).get("_compiled_call_impl") else [])


def hooked(module: nn.Module) -> bool:
    """Whether a module's hooks, or what replaces its methods, see or change what it computes."""
    return bool(module._forward_hooks or module._forward_pre_hooks or replaced_on_instance(module))


class Fusion:
    """Lets the masked layers in `made` take in what follows their dense ones in the flow of a model, and puts
    nn.Identity into `made` for it, where `allows(follower)`. `names` are those of the model's layers."""

    def __init__(
        self,
        model: nn.Module,
        made: dict[nn.Module, nn.Module],
        allows: Callable[[nn.Module], bool],
        names: dict[nn.Module, str],
    ):
        self.made, self.allows, self.names = made, allows, names
        self.folds: list[Fold] = []
        self.taken: dict[nn.Module, list[nn.Module]] = {}
        self._parents: dict[nn.Module, set[nn.Module]] = {}
        for parent in model.modules():
            for child in parent.children():
                self._parents.setdefault(child, set()).add(parent)
        for flow in flows(model, set(made)):
            self._fuse(flow)

    def _fuse(self, flow: Flow) -> None:
        ends: dict[nn.Module, list[torch.fx.Node]] = {}
        for layer, nodes in flow.calls.items():
            if self._is_open(layer) and flow.owns(layer, self._parents) and not hooked(layer):
                ends[layer] = self._take_norm(flow, layer, nodes)
        self._take_activations(flow, {layer: nodes for layer, nodes in ends.items() if self._is_open(layer)})

    def _is_open(self, layer: nn.Module) -> bool:
        """Whether the masked form of a layer can take an activation."""
        found = self.made.get(layer)
        return isinstance(found, Activated) and found.activation == "none"

    def _take(self, layer: nn.Module, follower: nn.Module) -> None:
        self.made[follower] = nn.Identity()
        self.taken.setdefault(layer, []).append(follower)

    def _follower(self, flow: Flow, nodes: list[torch.fx.Node]) -> nn.Module | None:
        """The module that alone reads all these results of a layer."""
        module = flow.module_of(flow.readers(nodes))
        return module if module and not hooked(module) and self.allows(module) else None

    def _take_norm(self, flow: Flow, layer: nn.Module, nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """The nodes with the layer's result after a batch norm that its weights take in, if there is one."""
        norm = self._follower(flow, nodes)
        convolution = self.made[layer]
        replaced = self.made.get(norm) or norm
        if (
            not (isinstance(replaced, masked.MaskedBatchNorm2d) or type(replaced) is nn.BatchNorm2d)
            or replaced.training
            or replaced.running_mean is None
            or not _takes_norm(convolution)
            or not flow.owns(norm, self._parents)
        ):
            return nodes
        after = flow.readers(nodes)
        if set(flow.calls[norm]) != set(after):
            return nodes
        transposed = isinstance(convolution, masked.MaskedConvTranspose2d)
        fold = Fold(self.names[layer], self.names[norm], transposed, replaced.eps)
        fold.apply(convolution, replaced)
        self.folds.append(fold)
        convolution.activation = getattr(replaced, "activation", "none")
        self._take(layer, norm)
        return after

    def _take_activations(self, flow: Flow, ends: dict[nn.Module, list[torch.fx.Node]]) -> None:
        following: dict[nn.Module, list[nn.Module]] = {}
        for layer, nodes in ends.items():
            module = self._follower(flow, nodes)
            if activation_of(module):
                following.setdefault(module, []).append(layer)
            elif module is None:
                names = {_function(reader) for reader in flow.readers(nodes) or ()}
                if len(names) == 1 and None not in names:
                    self.made[layer].activation = names.pop()  # The function stays, and changes nothing more.
        for module, layers in following.items():
            name = activation_of(module)
            calls = {reader for layer in layers for reader in flow.readers(ends[layer])}
            removable = flow.owns(module, self._parents) and calls == set(flow.calls[module])
            for layer in layers if removable or name in IDEMPOTENT else ():
                self.made[layer].activation = name
                if removable:
                    self._take(layer, module)


def _takes_norm(layer: nn.Module) -> bool:
    if layer._parameters.get("weight") is None:  # As torch.nn.utils.weight_norm has it.
        return False
    transposed = isinstance(layer, masked.MaskedConvTranspose2d) and layer.groups == 1
    return isinstance(layer, masked.MaskedConv2d) or transposed
