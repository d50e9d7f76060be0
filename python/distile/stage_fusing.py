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
from .stage_description import Halt, Stage, images_of, mask_of
from .stage_module import FusedStage
from .stage_steps import Fused, HaltStep, NotFused, UnitStep, changes_a_tensor, channels_of, name_of


# Functions and methods whose results may be views.
_VIEWS = {"getitem", "view", "view_as", "reshape", "flatten", "unflatten", "transpose", "permute", "movedim", "squeeze",
          "unsqueeze", "expand", "narrow", "select", "chunk", "split", "unbind", "diagonal", "t"}  # fmt: skip


class _StageTracer(_Tracer):
    """Traces into all but PyTorch's layers, ours, and the functions of masks."""

    proxy_buffer_attributes = True  # What is made of buffers would be a constant else, and they may change.

    def __init__(self, leaves):
        torch.fx.Tracer.__init__(
            self, autowrap_functions=(*MASK_FUNCTIONS, masks.pool, masks.erode, masks.difference, masks.affected_output, masks.halt)
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
        _refuse_changed_constants(graph, dict(twin.named_modules(remove_duplicate=False)))
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


def _refuse_changed_constants(graph: torch.fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Raises ValueError where a model changes a tensor that it makes in each call, as torch.zeros(2, 3), and that is a
    constant of the traced graph: the next call would find it changed."""
    constants = {node for node in graph.nodes if node.op == "get_attr" and node.target.startswith("_tensor_constant")}
    for node in graph.nodes:
        if read := constants.intersection(node.all_input_nodes):
            if changes_a_tensor(node, modules):
                raise ValueError(f"it changes the constant {next(iter(read))}")
            if name_of(node) in _VIEWS:
                constants.add(node)


def _rebuilt(module: nn.Module, twin: nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module with the traced forward, and the parts of the original."""
    result = torch.fx.GraphModule(twin, graph, f"Fused{type(module).__name__}")
    for kind in ("_modules", "_parameters", "_buffers"):
        vars(result)[kind].update(vars(module)[kind])
    for name, value in vars(module).items():
        if name not in vars(result) or "hook" in name:
            vars(result)[name] = value
    # What tracing has made constants of is no part of the model's state.
    traced = {name for name in vars(result)["_buffers"] if name not in vars(module)["_buffers"]}
    vars(result)["_non_persistent_buffers_set"] = traced | vars(module)["_non_persistent_buffers_set"]
    result.training = module.training
    return result


def _replace(
    owner: torch.fx.GraphModule, chain: Chain, name: str, modules: dict[str, nn.Module], replaced: dict
) -> FusedStage:
    """Puts the call of a stage into the place of a chain's calls. `replaced` says which nodes stand for those of chains
    before it."""
    graph = owner.graph

    def now(node):
        """What stands for a node."""
        while node in replaced:
            node = replaced[node]
        return node

    for node in [one for one in chain.changed if one in replaced]:
        for found in (chain.changed, chain.found):
            found[now(node)] = found.pop(node)
    inside, results, order = chain.inside(), chain.results(), chain.finder.order
    calls = [node for node in graph.nodes if node in inside]
    outside = list(dict.fromkeys(one for node in calls for one in node.all_input_nodes if one not in inside))
    stage, given_images, given_masks = _described(chain, outside, tuple(results), now)
    layers = _layers_of(owner, calls, outside, [nodes[0] for nodes in results.values()])
    units = [(number, step.unit) for number, step in enumerate(chain.steps) if isinstance(step, UnitStep)]
    places = [getattr(modules.get(step.layer), "_place", None) or Place() for step in chain.steps]
    arguments = {name: now(node) for step in chain.steps if isinstance(step, HaltStep)
                 for name, node in step.arguments().items()}  # fmt: skip
    parameters = [_source_of(name, arguments, outside, modules) for name in stage.numbers().parameters]
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
        tensors = {chain.same.get(nodes[0], nodes[0]): anchor}
        for node in nodes:
            if (own := chain.same.get(node, node)) not in tensors:  # It may be changed by itself.
                with graph.inserting_after(anchor):
                    tensors[own] = graph.call_method("clone", (tensors[chain.same.get(nodes[0], nodes[0])],))
                anchor = tensors[own]
            after = set(chain.users_of(node)) - inside
            node.replace_all_uses_with(tensors[own], delete_user_cb=after.__contains__)
            replaced[node] = tensors[own]
    later = [node for node in chain.beside if node not in inside]
    position = {node: number for number, node in enumerate(graph.nodes)}
    for node in sorted(later, key=position.get):
        if position[node] < position[call]:
            anchor.append(node)
            anchor = node
    for node in reversed(calls):
        graph.erase_node(node)
    return fused


def _source_of(name: str, arguments: dict, outside: list, modules: dict):
    """Where a stage's parameter is from: a layer and the name that it has there, or the place of an argument."""
    if name in arguments:
        return outside.index(arguments[name])
    layer, _, of_layer = name.rpartition(".")
    return modules[layer], of_layer


def _described(chain: Chain, outside: list, outputs: tuple[str, ...], now):
    """A chain as a stage, the arguments that are its images, and its masks. `now` gives what stands for a node."""

    def argument_of(node):
        return None if node is None else outside.index(now(node))

    images = list(chain.given.items())
    steps = tuple(step.described() for step in chain.steps)
    used = {name for step in steps for name in (getattr(step, "mask", None), getattr(step, "later", None))}
    used |= {name for step in steps for name in getattr(step, "of", ())}
    known = [(name, one) for name, one in chain.masks.values() if one is not None and name in used]
    inputs = tuple((image.name, channels_of(image)) for _, image in images)
    tokens, totals = (tuple(image.name for _, image in images if len(image.shape) == rank) for rank in (3, 2))
    stage = Stage(inputs, tuple(name for name, _ in known), steps, outputs, tokens, totals)
    numbers = {name: place for place, (name, _) in enumerate(inputs)}
    for name in (name for step in steps for name in images_of(step)):
        numbers[name] = len(numbers)
    first = {}
    for step in steps:
        if isinstance(step, Halt):
            first |= {mask: numbers[step.input] for mask in step.of if mask not in first}
        elif mask_of(step) is None:
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
