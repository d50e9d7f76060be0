"""Puts stages into a model: `distile.fuse`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import warnings

import torch
import torch.fx
from torch import nn
from torch.utils._pytree import tree_leaves

from . import conversion, masks, tracing
from .dataflow import _Tracer
from .nn_base import Masked, Place
from .nn_layers import MaskUnit
from .stage_chains import MASK_FUNCTIONS, Chain, Finder
from .stage_description import Stage
from .stage_module import FusedStage
from .stage_steps import Fused, NotFused, UnitStep, channels_of


class _StageTracer(_Tracer):
    """Traces into all but PyTorch's layers, ours, and the functions of masks."""

    def __init__(self, leaves):
        torch.fx.Tracer.__init__(
            self, autowrap_functions=(*MASK_FUNCTIONS, masks.pool, masks.erode, masks.difference, masks.affected_output)
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
        finder = Finder(graph, modules, shapes)
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
    owner: torch.fx.GraphModule, chain: Chain, name: str, modules: dict[str, nn.Module], replaced: dict
) -> FusedStage:
    """Puts the call of a stage into the place of a chain's calls. `replaced` says which nodes stand for those of chains
    before it."""
    graph = owner.graph
    inside, results = chain.inside(), chain.results()
    order = [node for node in graph.nodes if node in inside]
    outside = list(dict.fromkeys(one for node in order for one in node.all_input_nodes if one not in inside))
    stage, given_images, given_masks = _described(chain, outside, tuple(results), replaced)
    layers = _layers_of(owner, order, outside, [nodes[0] for nodes in results.values()])
    units = [(number, step.unit) for number, step in enumerate(chain.steps) if isinstance(step, UnitStep)]
    places = [getattr(modules.get(step.layer), "_place", None) or Place() for step in chain.steps]
    owners = [name.rpartition(".") for name in stage.numbers().parameters]
    parameters = [(modules[layer], name) for layer, _, name in owners]
    fused = FusedStage(stage, layers, given_images, given_masks, units, places, parameters)
    owner.add_submodule(name, fused.eval())
    last = next(node for node in reversed(graph.nodes) if node in chain.absorbed)
    with graph.inserting_after(last):
        call = graph.call_module(name)
    call.args = tuple(outside)
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


def _described(chain: Chain, outside: list, outputs: tuple[str, ...], replaced: dict):
    """A chain as a stage, the arguments that are its images, and its masks."""

    def argument_of(node):
        return None if node is None else outside.index(replaced.get(node, node))

    images = list(chain.given.items())
    steps = tuple(step.described() for step in chain.steps)
    used = {name for step in steps for name in (getattr(step, "mask", None), getattr(step, "later", None))}
    used |= {name for step in steps for name in getattr(step, "of", ())}
    known = [(name, one) for name, one in chain.masks.values() if one is not None and name in used]
    inputs = tuple((image.name, channels_of(image)) for _, image in images)
    tokens = tuple(image.name for _, image in images if len(image.shape) == 3)
    stage = Stage(inputs, tuple(name for name, _ in known), steps, outputs, tokens)
    numbers = {image.name: place for place, (_, image) in enumerate(images)}
    for step in steps:
        if hasattr(step, "output"):
            numbers[step.output] = len(numbers)
    first = {}
    for step in steps:
        if hasattr(step, "output"):
            reads = getattr(step, "reader", None) is not None
            for mask in (None if reads else step.mask, getattr(step, "later", None)):
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

    `model` is one of masked layers, as distile.convert returns it, in eval mode; `example` is as there, and its arguments
    that are no tensors are those of all later calls. Call this last: what distile.trace finds later is not seen. To
    `report` it adds which layers a stage runs and why it ends, and why other masked layers run by themselves. With
    `measure`, the first call of each stage without gradients measures the stage, its layers and the dense form at some
    densities of masks, or at given ones, and later calls take the fastest.

    A stage computes what its layers do. They run themselves where it cannot: with gradients, in training mode, without a
    mask, in autocast, and in a type or with sizes that the device has no stages for.
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
