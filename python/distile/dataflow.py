"""How results flow between the modules of a model: traced by torch.fx, without running it."""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
import torch.fx
from torch import nn


class _Tracer(torch.fx.Tracer):
    def __init__(self, leaves: Collection[str]):
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, module, name):
        return name in self._leaves or super().is_leaf_module(module, name)


class Flow:
    """The calls of modules in the forward of one, `root`."""

    def __init__(self, root: nn.Module, leaves: Collection[str]):
        # A copy, because the forward of some models keeps what it computes. It shares the parameters.
        twin = copy.deepcopy(root, {id(parameter): parameter for parameter in root.parameters()})
        graph = _Tracer(leaves).trace(twin)
        self.calls: dict[nn.Module, list[torch.fx.Node]] = {}
        self._modules: dict[torch.fx.Node, nn.Module] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self._modules[node] = root.get_submodule(node.target)
                self.calls.setdefault(self._modules[node], []).append(node)
        inside = {module for leaf in self.calls for module in leaf.modules()}
        self._seen = [module for module in root.modules() if module not in inside]

    def owns(self, module: nn.Module, parents: dict[nn.Module, set[nn.Module]]) -> bool:
        """Whether all calls of a module are known: nothing holds it but modules whose forward was traced."""
        return parents[module] <= set(self._seen)

    def readers(self, nodes: list[torch.fx.Node]) -> list[torch.fx.Node] | None:
        """The nodes that read these, if each has only one, which reads nothing else."""
        found = []
        for node in nodes:
            (reader, *others) = node.users or [None]
            if reader is None or others or reader.all_input_nodes != [node] or reader.op == "output":
                return None
            found.append(reader)
        return found

    def module_of(self, nodes: list[torch.fx.Node] | None) -> nn.Module | None:
        """The module that all these nodes call."""
        found = {self._modules.get(node) for node in nodes or ()}
        return found.pop() if len(found) == 1 else None


def flows(model: nn.Module, leaves: Collection[nn.Module]) -> list[Flow]:
    """The flow in a model; or if it cannot be traced, that in its children, and between those of an nn.Sequential.
    `leaves` are not traced into."""
    if model in leaves:
        return []
    whole = _traced(model, {name for name, module in model.named_modules() if module in leaves})
    if whole:  # PyTorch's own containers are not traced into.
        found, rest = whole, [child for leaf in whole.calls if leaf not in leaves for child in leaf.children()]
    else:
        found = _traced(model, dict(model.named_children())) if type(model) is nn.Sequential else None
        rest = list(model.children())
    return [*([found] if found else []), *(flow for child in rest for flow in flows(child, leaves))]


def _traced(root: nn.Module, leaves: Collection[str]) -> Flow | None:
    try:
        return Flow(root, leaves)
    except Exception:  # What the model's own code raises when it meets no tensors.
        return None
