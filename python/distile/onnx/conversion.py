"""Puts masked operators into a model: `convert`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..description import Operator
from ..mistakes import warn_of_unmatched
from ..positions import Mapping, NoPositions
from ..rules import Rule, first
from ..weight_zeros import zero_quads_in, zeros_for
from .chains import channel_places, reads_pixel_by_pixel, steps_behind, with_steps_before
from .elementwise import Combined, combine
from .fusion import Fused, fuse
from .graph import Graph, Nodes, bodies_of, nodes_in
from .layouts import Layouts
from .library import IO, OIHW, keeps_pattern
from .masking import Masks
from .positions import Example, tokens_of
from .stages import Gathered, gather
from .tokens import as_tokens, first_of, from_tokens
from .unit import TYPES, Tokens, Unit, Unsupported
from .units import MAKERS, TAKEN_IN, is_part, unit_of
from .weights import check

REFERENCE_OPSET = 9  # The first that has Where.


@dataclasses.dataclass
class Replaced:
    """A node that became a masked operator, with those that it took in."""

    name: str
    op: str
    mask: str
    size: tuple[int, ...]
    nodes: list[onnx.NodeProto]  # The node, and those that the operator took in, in their order.
    output: str
    masked: onnx.NodeProto  # The operator.
    mask_tensor: str  # The mask at the output's size.
    operator: Operator | None  # The operator whose PolyKernel it needs.
    typical: dict[str, int]  # The size at which it runs, and the zeros of its weights.
    mapping: Mapping  # How its mask follows from that of the image.

    @property
    def zeros(self) -> float:
        """The share of its weights that are 0, if PolyKernels may skip them; else 0."""
        return self.typical.get("weight_zeros", 0)


@dataclasses.dataclass
class Left:
    """A node that stays, and why."""

    name: str
    op: str
    reason: str


@dataclasses.dataclass
class Marked:
    """A unit with the masks of its rows and keys, and how these follow from the image's."""

    unit: Unit
    mask: str
    mapping: Mapping
    keys: str | None = None
    of_keys: Mapping | None = None


def _marked(graph: Graph, example: Example, rules: list[Rule]) -> tuple[list[Marked], list[Left]]:
    marked, left, taken = [], [], set()
    for node in sorted(graph.nodes, key=lambda one: one.op_type in TAKEN_IN):
        bodies = bodies_of(node)
        if bodies:
            left.append(Left(graph.name_of(node), node.op_type, _why_bodies_stay(bodies)))
        if node.op_type not in MAKERS or id(node) in taken or is_part(graph, node):
            continue
        rule = first(rules, graph.name_of(node))
        if rule is None or rule.mask is None:
            left.append(Left(graph.name_of(node), node.op_type, "no rule" if rule is None else "by rule"))
            continue
        try:
            unit = unit_of(graph, node)
            taken.update(id(one) for one in unit.nodes)
            marked.append(_placed(graph, example, unit, rule))
        except (Unsupported, NoPositions) as reason:
            left.append(Left(graph.name_of(node), node.op_type, str(reason)))
            continue
        taken.update(id(one) for one in unit.before)
        while (unit := steps_behind(graph, unit)) is not None:
            taken.update(id(one) for one in unit.nodes)
            marked.append(dataclasses.replace(marked[-1], unit=unit, keys=None, of_keys=None))
    marked.sort(key=lambda one: graph.position[id(one.unit.nodes[0])])
    return _with_steps_taken_in(graph, marked), left


def _with_steps_taken_in(graph: Graph, marked: list[Marked]) -> list[Marked]:
    """Layers with the affine steps before them, where both have the same mask and a layer reads no pixel that is not
    active."""
    makers = {one.unit.output: one for one in marked if one.unit.op == "MaskedBatchNorm"}
    dropped = set()
    for one in marked:
        steps = makers.get(one.unit.inputs[0]) if reads_pixel_by_pixel(one.unit) else None
        alone = steps is not None and graph.only_reader(steps.unit.output) is not None
        same = alone and (steps.mask, steps.mapping) == (one.mask, one.mapping)
        unit = with_steps_before(graph, one.unit, steps.unit) if same else None
        if unit is not None:
            one.unit = unit
            dropped.add(id(steps))
    return [one for one in marked if id(one) not in dropped]


def _why_bodies_stay(bodies: list[onnx.GraphProto]) -> str:
    count = sum(node.op_type in MAKERS for body in bodies for node in nodes_in(body))
    return (
        "its bodies stay, because where their tensors are depends on which of them runs, and how often: "
        f"{count} nodes in them could have masked forms"
    )


def _placed(graph: Graph, example: Example, unit: Unit, rule: Rule) -> Marked:
    """A unit with its masks. Raises NoPositions."""
    for mask in (rule.mask, rule.keys):
        producer = graph.producer.get(mask)
        if producer is not None and graph.position[id(producer)] > graph.position[id(unit.nodes[0])]:
            raise NoPositions(f"the mask '{mask}' is computed after it")
    mapping = example.said(rule.grid, unit) if rule.grid else example.mapping(unit)
    if not rule.keys or unit.op != "MaskedAttention":
        return Marked(unit, rule.mask, mapping)
    try:
        keys = example.keys(unit)
    except NoPositions:  # Keys of another input, as text, have a mask of their own.
        keys = tokens_of(unit.key_tokens)
    return Marked(unit, rule.mask, mapping, rule.keys, keys)


def _declare(example: Example, masks: Masks, marked: list[Marked], sizes: dict[str, tuple[int, ...]]) -> None:
    wanted: dict[str, list[Mapping]] = {}
    for one in marked:
        wanted.setdefault(one.mask, []).append(one.mapping)
        if one.keys:
            wanted.setdefault(one.keys, []).append(one.of_keys)
    for name, of in wanted.items():
        masks.declare(name, of, sizes.get(name))


def convert(
    model: onnx.ModelProto,
    rules: list[Rule],
    *,
    mask_sizes: dict[str, tuple[int, ...]] | None = None,
    images: list[str] | None = None,
    reference: bool = False,
    folder: str | pathlib.Path = "",
    dense: Collection[Operator] = (),
    stages: bool | list[Gathered] = False,
) -> tuple[onnx.ModelProto, list[Replaced | Left]]:
    """A model in which the nodes that rules mark compute only where their masks say so, and what became of each node.

    The result equals the model with a marked node's output set to 0 where its mask is not active. With `reference`, it
    is that model, made of standard operators only. Masks that the graph lacks become inputs of type bool, [N, H, W]
    or [N, T], or for one image [1, H, W]. They are as large as `mask_sizes` says, or as the largest output that they
    are for, or where the image has any size, as the image.

    A mask is over the image: `images` names the inputs that are one, by default those of rank 4, or else of rank 3,
    tokens [N, T, C]. A run of labels through the graph says where the outputs of each node are over it, and an output
    is active if any pixel of its block is. Nodes whose outputs stand for no pixels are left, with the reason.

    `folder` has the files with weights of a model that keeps them there (distile.onnx.load). `dense`: operators without
    a PolyKernel, as `missing` finds them. Their nodes stay, with the mask behind them, so that ONNX Runtime runs them
    as fast as in the model itself. With `stages`, chains of convolutions become one node each, which only CPUs have; a
    list gets a row for each.

    Raises ValueError for a mask of another type or shape, an image that is no input, or an opset that is too old.
    """
    graph = Graph(model, folder)
    if reference and 0 < graph.opset < REFERENCE_OPSET:
        raise ValueError(f"the model's opset is {graph.opset}, but a reference needs {REFERENCE_OPSET} or later")
    _check_names(graph, rules, mask_sizes or {})
    example = Example(graph, images)
    emitted: list[onnx.NodeProto] = []
    masks = Masks(graph, example, Nodes(graph, emitted.append), reference)
    marked, report = _marked(graph, example, rules)
    _declare(example, masks, marked, mask_sizes or {})
    fitting = []
    for one in marked:
        reason = masks.reason_against(one.mask, one.mapping)
        reason = reason or (masks.reason_against(one.keys, one.of_keys) if one.keys else None)
        if reason:
            node = one.unit.nodes[0]
            report.append(Left(graph.name_of(node), node.op_type, reason))
        else:
            fitting.append(one)
    if reference:
        _emit_reference(graph, masks, fitting, emitted)
    else:
        report = _emit_masked(graph, example, masks, fitting, emitted, dense) + report
    used = {source for one in fitting for source in (one.mask, one.keys) if source}
    masks.sources = {name: source for name, source in masks.sources.items() if name in used}
    graph.proto.input.extend(masks.new_inputs())
    converted = graph.finish(emitted)
    if not reference and fitting and not any(opset.domain == "distile" for opset in converted.opset_import):
        converted.opset_import.append(helper.make_opsetid("distile", 1))
    if stages is not False and not reference:
        gathered = gather(converted, folder, graph.shapes)
        if stages is not True:
            stages += gathered
    check(converted)
    return converted, report


def _check_names(graph: Graph, rules: list[Rule], mask_sizes: dict[str, tuple[int, ...]]) -> None:
    """Warns of rules that match nothing. Raises ValueError for the size of a mask that no rule names."""
    warn_of_unmatched([rule.pattern for rule in rules], map(graph.name_of, graph.nodes), "node", 3)
    masks = {name for rule in rules for name in (rule.mask, rule.keys) if name}
    unknown = mask_sizes.keys() - masks
    if unknown:
        known = ", ".join(sorted(masks)) or "none"
        wrong = ", ".join(sorted(unknown))
        raise ValueError(f"there is a size of the mask {wrong}, but the masks of the rules are: {known}")


def _emit_reference(graph: Graph, masks: Masks, marked: list[Marked], emitted: list[onnx.NodeProto]) -> None:
    ends = {id(one.unit.nodes[-1]): one for one in marked}
    for node in graph.nodes:
        one = ends.get(id(node))
        if one is None:
            emitted.append(node)
            continue
        raw = graph.fresh(f"{one.unit.output}/distile_dense")
        if one.keys:
            raise ValueError("a reference has no masks of keys")
        emitted.append(_renamed(node, raw))
        emitted += _where(graph, masks.spread(one.mask, one.mapping, one.unit), raw, one.unit.output, one.unit)


def _renamed(node: onnx.NodeProto, output: str) -> onnx.NodeProto:
    """A node with another name for its output."""
    dense = onnx.NodeProto()
    dense.CopyFrom(node)
    dense.output[0] = output
    return dense


def _where(graph: Graph, mask: str, raw: str, output: str, unit: Unit) -> list[onnx.NodeProto]:
    """Makes the output of a unit, or of what follows it, of the dense one: 0 where the mask is not active."""
    kind = graph.types[output]
    zero = np.zeros((), helper.tensor_dtype_to_np_dtype(kind)) if unit.zero is None else unit.zero
    if kind != TensorProto.INT8:
        name = graph.add_constant(f"{output}/distile_zero", zero)
        return [helper.make_node("Where", [mask, raw, name], [output])]
    # ONNX Runtime has no Where for int8.
    name = graph.add_constant(f"{output}/distile_zero", zero.astype(np.int32))
    return [
        helper.make_node("Cast", [raw], [f"{raw}/int32"], to=TensorProto.INT32),
        helper.make_node("Where", [mask, f"{raw}/int32", name], [f"{raw}/masked"]),
        helper.make_node("Cast", [f"{raw}/masked"], [output], to=TensorProto.INT8),
    ]


def _emit_masked(
    graph: Graph, example: Example, masks: Masks, marked: list[Marked], emitted: list[onnx.NodeProto],
    without_polykernel: Collection[Operator],
) -> list[Replaced | Left]:
    dense = {one.on("cpu") for one in without_polykernel}
    on_cpu = all(one.device == "cpu" for one in without_polykernel)
    layouts = Layouts(graph, emitted.append)
    layers = {masks.key(one.mask, one.mapping): one for one in marked}  # Who has a mask.
    mask_of = {one.unit.output: masks.key(one.mask, one.mapping) for one in marked}
    plans, zero_outside = fuse(graph, mask_of, [one.unit for one in marked])
    # A fused operator stands where the last of its nodes stood: there all its inputs exist.
    ends = {id(plans[one.unit.output].nodes[-1]): one for one in marked}
    covered = {id(node) for plan in plans.values() for node in plan.nodes}
    images = {name for one in marked if one.unit.images for name in (one.unit.output, plans[one.unit.output].output)}
    # Zero points of quantized tensors are no zeros.
    real = {name: zero_outside[name] for name in images & set(zero_outside) if graph.types.get(name) in TYPES}
    combined = {id(one.nodes[-1]): one for one in combine(graph, real, covered)}
    report: list[Replaced | Left] = []
    for node in graph.nodes:
        one = ends.get(id(node))
        if one is not None:
            plan = plans[one.unit.output]
            operator = one.unit.operator(plan.activation, plan.residual is not None)
            stays = operator in dense if operator else bool(dense) and one.unit.images and not _moved(layouts, one.unit)
            stays = stays and not one.keys
            if stays:
                masked = _emit_dense(graph, masks, one, plan, emitted, on_cpu)
            else:
                masked = _emit_unit(graph, masks, layouts, one, plan)
            report.append(
                Replaced(
                    graph.name_of(one.unit.nodes[0]),
                    one.unit.nodes[0].op_type if stays else one.unit.op,
                    one.mask,
                    example.size(one.unit),
                    plan.nodes,
                    plan.output,
                    masked,
                    masks.at(one.mask, one.mapping),
                    operator,
                    {**_typical(graph, example, one.unit), **_zeros(graph, one.unit, operator)},
                    one.mapping,
                )
            )
        elif id(node) in combined:
            found = combined[id(node)]
            if layouts.has(found.operands[0]):
                layer = layers[found.mask]
                _emit_combined(layouts, found, masks.at(layer.mask, layer.mapping))
            else:
                emitted += found.nodes
        elif id(node) not in covered and not layouts.keep(node):
            emitted.append(node)
    return report


def _moved(layouts: Layouts, unit: Unit) -> bool:
    """Whether a unit's images are in NHWC, because a masked operator made them."""
    return layouts.has(unit.inputs[0])


def _emit_dense(
    graph: Graph, masks: Masks, one: Marked, plan: Fused, emitted: list[onnx.NodeProto], on_cpu: bool
) -> onnx.NodeProto:
    """The nodes of a unit and what it takes in, with the mask behind them; before a residual that is kept."""
    output = plan.output if plan.kept is None else one.unit.output
    raw = graph.fresh(f"{output}/distile_dense")
    for node in plan.nodes:
        if node.output[0] != output:
            emitted.append(node)
        elif on_cpu and graph.types[output] in TYPES and not one.unit.is_apart:
            emitted.append(_renamed(node, raw))
            inputs, name = [raw, masks.at(one.mask, one.mapping)], f"{graph.name_of(node)}/masked"
            emitted.append(helper.make_node("MaskedActivation", inputs, [output], name, domain="distile"))
            masked = emitted[-1]
        else:
            emitted.append(_renamed(node, raw))
            emitted += _where(graph, masks.spread(one.mask, one.mapping, one.unit), raw, output, one.unit)
            masked = emitted[-1]
    return masked


def _emit_combined(layouts: Layouts, one: Combined, mask: str) -> None:
    operands = [*map(layouts.read, one.operands)]
    inputs = [*operands[:2], mask, *([""] if operands[2:] else []), *operands[2:]]
    name, output = f"{layouts.graph.name_of(one.nodes[0])}/masked", layouts.write(one.output)
    extra = dict(layout="NHWC", **({} if one.op == "MaskedConcat" else {"activation": one.activation}))
    layouts.emit(helper.make_node(one.op, inputs, [output], name, domain="distile", **extra))
    layouts.written(one.output)


def _typical(graph: Graph, example: Example, unit: Unit) -> dict[str, int]:
    """The size at which it runs, as an operator file says it."""
    name = unit.inputs[0] if unit.images else unit.output
    batch, *shape = example.shape(name) or graph.shapes[name]
    batch = batch if len(shape) == 1 or isinstance(graph.shapes[name][0], int) else 1
    if unit.images:
        return dict(zip(("batch", "height", "width"), (batch, *shape[1:])))
    tokens = int(np.prod(example.size(unit)))
    pixels = {"batch": batch, "tokens": tokens} if len(shape) > 1 else {"batch": 1, "tokens": batch}
    keys = unit.attended or unit.key_tokens
    return {**pixels, "key_tokens": keys} if keys else pixels


def _zeros(graph: Graph, unit: Unit, operator: Operator | None) -> dict:
    """How many of its weights are 0, and in which pattern, as an operator file says it, for every device."""
    if operator is None or not operator.can_skip_zeros:
        return {}
    weights = unit.inputs[1]
    weights = weights if isinstance(weights, np.ndarray) else graph.constant(weights)
    inner, _ = channel_places(unit, weights.ndim)
    if operator.is_quantized:
        return zero_quads_in(weights, inner)
    # Only GPUs have code for a pattern.
    return zeros_for(weights, operator.on("cuda"), lambda: keeps_pattern(weights, IO if inner == 0 else OIHW, operator))


def _emit_unit(graph: Graph, masks: Masks, layouts: Layouts, one: Marked, plan: Fused) -> onnx.NodeProto:
    unit = one.unit
    name = graph.name_of(unit.nodes[0])

    def tensor(value, index: int) -> str:
        if value is None:
            return ""
        if isinstance(value, Tokens):
            return as_tokens(graph, value, layouts.emit)
        if isinstance(value, np.ndarray):
            return graph.add_constant(f"distile/{name}/{index}", value)
        if graph.constant(value) is not None:
            return graph.initializer(value)
        return layouts.read(value) if unit.images else value

    for made in unit.prepared:
        layouts.emit(made)
    inputs = [tensor(value, index) for index, value in enumerate(unit.inputs)]
    mask = masks.at(one.mask, one.mapping)
    extra = dict(unit.attributes)
    if unit.op == "MaskedAttention":
        keys = masks.at(one.keys, one.of_keys) if one.keys else ""
        inputs += [mask, first_of(graph, keys, unit.attended, layouts.emit) if keys else ""]
    elif unit.has_epilogue:
        read = layouts.read if unit.images else str
        inputs, numbers = [*inputs[:2], mask, *inputs[2:3]], inputs[3:]
        inputs += [read(plan.residual) if plan.residual else "", read(plan.kept) if plan.kept else "", *numbers]
        extra["activation"] = plan.activation
    else:
        inputs.insert(1, mask)
        if unit.op == "MaskedGroupNorm":
            inputs += _statistics(graph, name, inputs[0], unit, layouts.emit)
        if unit.has_activation:
            extra["activation"] = plan.activation
    while not inputs[-1]:
        inputs.pop()
    if unit.images:
        extra["layout"] = "NHWC"
    output = layouts.write(plan.output) if unit.images else plan.output
    output = graph.fresh(f"{output}/tokens") if unit.result else output
    extra = {key: value for key, value in extra.items() if not (key == "scale" and not value)}
    node = helper.make_node(unit.op, inputs, [output], f"{name}/masked", domain="distile", **extra)
    layouts.emit(node)
    if unit.images:
        layouts.written(plan.output)
    if unit.result:
        from_tokens(graph, output, unit.result, plan.output, layouts.emit)
    return node


def _statistics(graph: Graph, name: str, images: str, unit: Unit, emit) -> list[str]:
    """The mean and the variance of all pixels in NHWC, as a dense group norm has them."""
    outputs = [graph.fresh(f"{name}/mean"), graph.fresh(f"{name}/variance")]
    groups = unit.attributes["num_groups"]
    emit(
        helper.make_node("MaskedGroupStatistics", [images], outputs, f"{name}/statistics", domain="distile",
                         num_groups=groups, layout="NHWC")
    )  # fmt: skip
    for output in outputs:
        graph.add_shape(output, onnx.TensorProto.FLOAT, [graph.shapes[unit.output][0], groups])
    return outputs
