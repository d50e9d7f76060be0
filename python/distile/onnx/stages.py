"""Gathers chains of masked layers into one node each, `Stage` (docs/stages.md)."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..stage_description import Attention, Convolution, Layer, Norm, Stage, Step, Window
from .graph import attributes, extents_of, reads
from .views import Views
from .weights import array_of

MOST_IMAGES, MOST_MASKS, MOST_RESULTS = 4, 8, 4  # As many as the operator has places for.
_X, _WEIGHTS, _MASK, _BIAS, _RESIDUAL, _KEPT = range(6)
_TOKENS, _IMAGE = 3, 4  # Dimensions.
_POINT = Window((1, 1))
_NORMS = {"MaskedLayerNorm": "layer_norm", "MaskedRMSNorm": "rms_norm"}


@dataclasses.dataclass
class Gathered:
    """Nodes that became a stage, and why it ends where it does."""

    name: str
    nodes: list[str]
    ends: str


@dataclasses.dataclass
class _Part:
    """Nodes, by their places, and the steps that they become. `images` are those that they read, with their channels."""

    nodes: list[int]
    steps: list[Step]
    images: dict[str, int]
    mask: str
    rank: int  # How many dimensions its tensors have.


@dataclasses.dataclass
class _Chain:
    """Places of nodes: those of the chain, and those that read it and run behind it."""

    nodes: list[int] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    late: list[int] = dataclasses.field(default_factory=list)
    made: set[str] = dataclasses.field(default_factory=set)
    late_names: set[str] = dataclasses.field(default_factory=set)
    given: dict[str, int] = dataclasses.field(default_factory=dict)  # Images from before it, with their channels.
    masks: dict[str, None] = dataclasses.field(default_factory=dict)
    rank: int = 0

    def with_part(self, part: _Part) -> _Chain:
        given = self.given | {name: count for name, count in part.images.items() if name not in self.made}
        more = dict(
            nodes=[*self.nodes, *part.nodes],
            steps=[*self.steps, *part.steps],
            made=self.made | {step.output for step in part.steps},
            given=given,
            masks=self.masks | {part.mask: None},
            rank=part.rank,
        )
        return dataclasses.replace(self, **more)

    @property
    def fits(self) -> bool:
        return len(self.given) <= MOST_IMAGES and len(self.masks) <= MOST_MASKS


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if len(node.input) > place else ""


def gather(
    model: onnx.ModelProto, folder: str | pathlib.Path = "", shapes: dict[str, list] | None = None
) -> list[Gathered]:
    """Lets chains of masked layers of a converted model run as stages, in place: convolutions of one group and depthwise
    ones, and layers of tokens [N, T, C], in float32, which ONNX Runtime runs on a CPU. `folder` has the files with
    weights. `shapes` are those of tensors, their extents numbers, names, or None for unknown ones; those that the model
    says count, too. What makes queries, keys and values is a part of attention."""
    gathering = _Gathering(model, folder, shapes or {})
    gathering.run()
    return gathering.report


class _Gathering:
    def __init__(self, model: onnx.ModelProto, folder: str | pathlib.Path, shapes: dict[str, list]):
        self.graph, self.folder, self.nodes = model.graph, folder, list(model.graph.node)
        given = {value.name for value in model.graph.input}
        self.weights = {one.name: one for one in model.graph.initializer if one.name not in given}
        self.readers: dict[str, set[int]] = {value.name: {-1} for value in model.graph.output}
        self.producers: dict[str, int] = {}
        for place, node in enumerate(self.nodes):
            for name in reads(node):
                self.readers.setdefault(name, set()).add(place)
            self.producers |= {name: place for name in node.output if name}
        self.shapes = extents_of(model.graph) | {name: shape for name, shape in shapes.items() if shape is not None}
        self.views = Views(model, self.folder, self.producers, self.readers, self.shapes)
        self.parameters: dict[str, Callable[[], np.ndarray]] = {}  # By their names, output channels first.
        self.report: list[Gathered] = []
        self.stages: dict[int, tuple[onnx.NodeProto, list[int]]] = {}  # By the places of last nodes; what runs behind.
        self.gone: set[int] = set()
        self.attention: dict[int, _Part] = {}  # By the places of their last nodes.
        for place, node in enumerate(self.nodes):
            if self._is(node, "MaskedAttention") and (part := self._attention(place, node)) is not None:
                self.attention[place] = part
        self.waiting = {place for last, part in self.attention.items() for place in part.nodes if place != last}

    def run(self) -> None:
        chain = _Chain()
        for place, node in enumerate(self.nodes):
            if place not in self.waiting:  # Else it is taken with the attention behind it.
                chain = self._visit(place, node, chain)
        self._close(chain, "the model ends")
        if self.stages:
            self._rebuild()

    def _visit(self, place: int, node: onnx.NodeProto, chain: _Chain) -> _Chain:
        part = self.attention.get(place) or self._part(place, node)
        if part is None:
            if chain.late_names.intersection(reads(node)) or chain.made.intersection(reads(node)):
                chain.late.append(place)
                chain.late_names.update(node.output)
            return chain
        late = chain.late_names.intersection((*part.images, part.mask))
        longer = chain.with_part(part)
        why = None
        if late:
            why = f"{node.name} reads {min(late)}, which no step makes"
        elif chain.rank not in (0, part.rank):
            why = f"{node.name} takes {'tokens' if part.rank == _TOKENS else 'images'}"
        elif not longer.fits:
            why = f"{node.name} needs more images or masks than a stage has"
        if why is not None:
            self._close(chain, why)
            longer = _Chain().with_part(part)
        # Shapes are not inferred behind operators of distile.
        for step in part.steps:
            self.shapes.setdefault(step.output, [None] * part.rank)
        return longer

    @staticmethod
    def _is(node: onnx.NodeProto, *names: str) -> bool:
        return node.domain == "distile" and node.op_type in names

    def _rank(self, name: str) -> int:
        """How many dimensions a tensor has; 0 if nobody knows."""
        return len(self.shapes.get(name, ()))

    # ---- Parts

    def _part(self, place: int, node: onnx.NodeProto) -> _Part | None:
        """What a node becomes; None for what is no step of a stage."""
        if self._is(node, "MaskedConv"):
            return self._convolution(place, node)
        if self._is(node, "MaskedLinear"):
            return self._linear(place, node)
        if self._is(node, *_NORMS):
            return self._norm(place, node)
        return self._sum(place, node) if self._is(node, "MaskedAdd") else None

    def _take(self, name: str, arrays: list[str], make: Callable[..., np.ndarray] = lambda one: one) -> str | None:
        """Keeps a parameter that is made of weights, by a name; None where they are none of float32."""
        tensors = [self.weights.get(one) for one in arrays]
        if any(tensor is None or tensor.data_type != TensorProto.FLOAT for tensor in tensors):
            return None
        self.parameters[name] = lambda: make(*(array_of(tensor, self.folder) for tensor in tensors))
        return name

    def _convolution(self, place: int, node: onnx.NodeProto) -> _Part | None:
        values, name, bias = attributes(node), _input(node, _WEIGHTS), _input(node, _BIAS)
        weights = self._take(name, [name])
        if weights is None or values.get("layout") != "NHWC" or (bias and self._take(bias, [bias]) is None):
            return None
        channels, inner, *kernel = self.weights[name].dims
        groups = values.get("group", 1)
        if groups != 1 and (groups != channels or inner != 1):
            return None
        top, left, bottom, right = values.get("pads", [0, 0, 0, 0])
        strides, dilations = (tuple(values.get(key, (1, 1))) for key in ("strides", "dilations"))
        window = Window(tuple(kernel), strides, dilations, (top, bottom, left, right))
        return self._weighted(place, node, (inner * groups, channels), window, weights, bias, _IMAGE, groups)

    def _weighted(self, place, node, channels, window, weights, bias, rank, groups=1) -> _Part:
        """A convolution or a linear layer from and to such channels."""
        residual, kept = (_input(node, one) or None for one in (_RESIDUAL, _KEPT))
        step = Convolution(
            node.output[0], node.input[_X], channels[1], window, weights, bias or None, residual, kept,
            node.input[_MASK], activation=attributes(node).get("activation", "none"), groups=groups,
        )  # fmt: skip
        images = {node.input[_X]: channels[0], **{name: channels[1] for name in (residual, kept) if name}}
        return _Part([place], [step], images, node.input[_MASK], rank)

    def _weights_of(self, node: onnx.NodeProto) -> tuple[str, tuple[int, int]] | None:
        """The parameter with a linear layer's weights, and from how many channels to how many it leads."""
        name, turned = _input(node, _WEIGHTS), not attributes(node).get("transB", 0)
        tensor = self.weights.get(name)
        key = self._take(f"{name} turned" if turned else name, [name], np.transpose if turned else lambda one: one)
        if key is None or len(tensor.dims) != 2:
            return None
        ins, outs = tensor.dims if turned else reversed(tensor.dims)
        return key, (ins, outs)

    def _linear(self, place: int, node: onnx.NodeProto) -> _Part | None:
        found, bias, rank = self._weights_of(node), _input(node, _BIAS), self._rank(node.input[_X])
        if found is None or rank not in (_TOKENS, _IMAGE) or (bias and self._take(bias, [bias]) is None):
            return None
        alike = all(self._rank(name) == rank for name in (_input(node, _RESIDUAL), _input(node, _KEPT)) if name)
        return self._weighted(place, node, found[1], _POINT, found[0], bias, rank) if alike else None

    def _norm(self, place: int, node: onnx.NodeProto) -> _Part | None:
        x, mask, rank = node.input[0], node.input[1], self._rank(node.input[0])
        names = [name for name in node.input[2:4] if name]
        if rank not in (_TOKENS, _IMAGE) or any(self._take(name, [name]) is None for name in names):
            return None
        channels = self.weights[names[0]].dims[0] if names else (self.shapes[x] or [None])[-1]
        if not isinstance(channels, int):
            return None
        scale, bias = (_input(node, one) or None for one in (2, 3))
        epsilon = attributes(node).get("epsilon", 1e-5)
        step = Norm(node.output[0], x, _NORMS[node.op_type], scale, bias, epsilon, mask)
        return _Part([place], [step], {x: channels}, mask, rank)

    def _sum(self, place: int, node: onnx.NodeProto) -> _Part | None:
        a, b, mask = node.input[:3]
        values, rank = attributes(node), self._rank(a)
        shapes = [self.shapes.get(name) for name in (a, b)]
        # One pixel for each image would be added to all.
        alike = shapes[0] == shapes[1] and shapes[0] and None not in shapes[0] and a != b
        plain = not _input(node, 3) and values.get("other_activation", "none") == "none"
        if not alike or not plain or (rank != _TOKENS and (rank != _IMAGE or values.get("layout") != "NHWC")):
            return None
        if not isinstance(channels := shapes[0][-1], int):
            return None
        step = Layer(node.output[0], a, "sum", other=b, mask=mask, activation=values.get("activation", "none"))
        return _Part([place], [step], {a: channels, b: channels}, mask, rank)

    def _attention(self, place: int, node: onnx.NodeProto) -> _Part | None:
        """Attention of tokens to each other, with what makes its queries, keys and values of a layer before it, or with
        the layers that make them."""
        values = attributes(node)
        heads, mask, keys = values.get("num_heads", 0), node.input[3], _input(node, 4)
        channels = heads * values.get("head_dim", 0)
        if channels == 0 or values.get("is_causal", 0) or keys not in ("", mask) or _input(node, 5):
            return None
        step = Attention(node.output[0], "", heads, values.get("scale", 0.0) or None, mask, not keys)
        found = self.views.find(place, channels)
        if found is not None:
            source, views = found
            return _Part(
                [*views, place], [dataclasses.replace(step, input=source)], {source: 3 * channels}, mask, _TOKENS
            )
        return self._attention_of_layers(place, node, step, channels)

    def _attention_of_layers(self, place, node, step: Attention, channels: int) -> _Part | None:
        places = [self.producers.get(name) for name in node.input[:3]]
        if None in places or len(set(places)) != 3:
            return None
        layers = [self.nodes[one] for one in places]
        first, weights = layers[0], [self._weights_of(one) if self._is(one, "MaskedLinear") else None for one in layers]
        if None in weights or any(self.readers.get(one.output[0], set()) != {place} for one in layers):
            return None
        ins = weights[0][1][0]
        alike = all(
            (one.input[_X], one.input[_MASK]) == (first.input[_X], step.mask) and sizes == (ins, channels)
            for one, (_, sizes) in zip(layers, weights)
        )
        plain = all(
            attributes(one).get("activation", "none") == "none" and not any(_input(one, at) for at in (_RESIDUAL, _KEPT))
            for one in layers
        )
        if not alike or not plain or self._rank(first.input[_X]) != _TOKENS:
            return None
        arrays = [self.parameters[name] for name, _ in weights]
        made, weight, bias = (f"{node.output[0]}/{what}" for what in ("parts", "weights", "bias"))
        self.parameters[weight] = lambda: np.concatenate([one() for one in arrays])
        biases = [_input(one, _BIAS) for one in layers]
        if any(name and self._take(name, [name]) is None for name in biases):
            return None
        if any(biases):
            self.parameters[bias] = lambda: np.concatenate(
                [self.parameters[name]() if name else np.zeros(channels, np.float32) for name in biases]
            )
        parts = Convolution(
            made, first.input[_X], 3 * channels, _POINT, weight, bias if any(biases) else None, mask=step.mask
        )
        steps = [parts, dataclasses.replace(step, input=made)]
        return _Part([*sorted(places), place], steps, {first.input[_X]: ins}, step.mask, _TOKENS)

    # ---- Stages

    def _close(self, chain: _Chain, why: str) -> None:
        inside = set(chain.nodes)
        outputs = [name for place in chain.nodes for name in self.nodes[place].output if name in chain.made]
        results = [name for name in outputs if self.readers.get(name, set()) - inside]
        convolves = any(isinstance(step, Convolution) for step in chain.steps)
        if len(chain.steps) < 2 or not convolves or not 0 < len(results) <= MOST_RESULTS:
            return
        name = f"distile/stage_{len(self.report)}"
        self.report.append(Gathered(name, [self.nodes[place].name for place in chain.nodes], why))
        self.stages[chain.nodes[-1]] = self._stage(chain, name, results), chain.late
        self.gone |= inside

    def _stage(self, chain: _Chain, name: str, results: list[str]) -> onnx.NodeProto:
        tokens = tuple(chain.given) if chain.rank == _TOKENS else ()
        stage = Stage(tuple(chain.given.items()), tuple(chain.masks), tuple(chain.steps), tuple(results), tokens)
        numbers = stage.numbers()
        values = [np.asarray(self.parameters[one](), np.float32) for one in numbers.parameters]
        parameters = f"{name}/parameters"
        joined = np.concatenate([one.ravel() for one in values])
        self.graph.initializer.append(numpy_helper.from_array(joined, parameters))
        images, masks = list(chain.given), list(chain.masks)
        inputs = [images[0], parameters, *images[1:]]
        inputs += [""] * (1 + MOST_IMAGES - len(inputs))
        more = {"numbers": [float(one) for one in numbers.numbers]} if any(numbers.numbers) else {}
        node_attributes = dict(
            steps=numbers.steps,
            activations=numbers.activations,
            results=numbers.outputs,
            channels=[one.shape[0] for one in values],
            input_channels=list(chain.given.values()),
            **more,
        )
        return helper.make_node(
            "Stage", inputs + masks, results, name, stage.json(), domain="distile", **node_attributes
        )

    def _rebuild(self) -> None:
        """Writes the nodes anew, those that read a stage behind it, and leaves out weights that nobody reads."""
        waiting = {place for last, (_, late) in self.stages.items() for place in late if place < last}
        order: list[onnx.NodeProto] = []
        for place, node in enumerate(self.nodes):
            if place in self.stages:
                stage, late = self.stages[place]
                order += [stage, *(self.nodes[one] for one in late if one in waiting)]
            elif place not in self.gone and place not in waiting:
                order.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
        del self.graph.node[:]
        self.graph.node.extend(kept)
        read = {name for node in kept for name in reads(node)} | {value.name for value in self.graph.output}
        for place in reversed(range(len(self.graph.initializer))):
            name = self.graph.initializer[place].name
            if name in self.weights and name not in read:
                del self.graph.initializer[place]
