"""How the masks of a graph's nodes follow from that of its image: an example runs through the graph as labels."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto

from .. import rules
from .._facts import FLOAT_TYPES, QUANTIZED_TYPES
from ..grids import Grid
from ..positions import ALL, CONSTANT, OTHER, Mapping, NoPositions, Positions
from . import constants
from .graph import Graph, attributes, bodies_of, bound, reads
from .labels import CARRIERS, Call, Unknown, broadcast, over
from .unit import Unit

IMAGE_TYPES = {getattr(TensorProto, of_onnx) for _, of_onnx in (FLOAT_TYPES | QUANTIZED_TYPES).values()}
IMAGE_TYPES.add(TensorProto.DOUBLE)
# Extents for those that a model leaves open. Those of images are divisible by all strides, and unlikely in a model.
BATCH, ROWS, COLUMNS = 2, 64 * 5, 64 * 7
LARGEST_BATCH = 255
SMALL = 1 << 14  # Elements up to which values are followed, as those of shapes.


class ExamplePositions(Positions):
    """Positions in an image that may have any size: then grids whose extents follow from the image's in different ways
    are two. Labels of grids are kept, because many tensors have those of one."""

    def __init__(self, batch: int, height: int, width: int, fixed: bool):
        super().__init__(batch, height, width)
        self._fixed = fixed
        self._whole: dict[int, np.ndarray] = {}
        self._grid_of: dict[int, tuple[np.ndarray, Grid | int]] = {}

    def _key(self, grid: Grid, extents: tuple[int, int]) -> tuple:
        steps = () if self._fixed else tuple(axis.extents for axis in grid)
        return *super()._key(grid, extents), steps

    def whole(self, grid: Grid = Grid(), extents: tuple[int, int] | None = None) -> np.ndarray:
        number = self._number(grid, extents or self.image)
        if number not in self._whole:
            self._whole[number] = super().whole(grid, extents)
        return self._whole[number]

    def grid_of(self, labels: np.ndarray) -> Grid | int:
        # The labels are kept with what is known of them, so that no others get their identity.
        key = id(labels) if labels.base is None else id(labels.base), labels.shape, labels.strides
        key = *key, labels.__array_interface__["data"]
        if key not in self._grid_of:
            self._grid_of[key] = labels, super().grid_of(labels)
        return self._grid_of[key][1]

    def resized(self, labels: np.ndarray, extents: tuple[int, int], of_another: bool = False) -> np.ndarray:
        """With `of_another`, to the size of another feature map: its extents follow from the image's as that one's."""
        if self._fixed or not of_another or labels.shape[1:] == extents:
            return super().resized(labels, extents)
        grid = self.grid_of(labels)
        if isinstance(grid, int):
            return super().resized(labels, extents)
        strides = [axis.stride * before / after for axis, before, after in zip(grid, labels.shape[1:], extents)]
        for known, have in zip(self._grids, self._extents):
            if have == extents and [axis.stride for axis in known] == strides:
                return self.whole(known, extents)
        return super().resized(labels, extents)


@dataclasses.dataclass
class Place:
    """An input with the roles of its axes: "batch", "rows", "columns", "tokens", "heads", "channels"."""

    name: str
    axes: tuple[str, ...]


_AXES = {4: ("batch", "channels", "rows", "columns"), 3: ("batch", "tokens", "channels"), 2: ("tokens", "channels")}
_CHOSEN = {"batch": BATCH, "rows": ROWS, "columns": COLUMNS, "tokens": ROWS, "channels": 8, "heads": 2}
_OF_A_CELL = {"channels", "heads"}
_OTHER = 24  # An extent of another input.


def tokens_of(count: int) -> Mapping:
    """The mask of `count` tokens that are no part of the image."""
    return Mapping((Grid(),), ((1, count),), (1, count), (0, 0))


def image_inputs(graph: Graph, named: list[str] | None) -> list[Place]:
    """The inputs that are images [N, C, H, W]: those named, or those of numbers and of rank 4; without any, tokens
    [N, T, C], or [T, C]."""
    inputs = [value.name for value in graph.proto.input if value.name not in graph.initializers]
    for name in named or []:
        if name not in inputs or len(graph.shapes.get(name) or ()) not in _AXES:
            raise ValueError(f"'{name}' is no input [N, C, H, W], [N, T, C] or [T, C] of the model")
    found = named or [name for name in inputs if graph.types.get(name) in IMAGE_TYPES]
    for rank in _AXES:
        images = [name for name in found if len(graph.shapes.get(name) or ()) == rank]
        if images:
            return [Place(name, _axes(graph, name, rank)) for name in images]
    return []


# Operators that take channels as the last axis of their first input.
_CHANNELS_LAST = {"LayerNormalization", "MatMul", "RMSNormalization"}


def _axes(graph: Graph, name: str, rank: int) -> tuple[str, ...]:
    """The roles of axes: of rank 4 they follow from what reads the input."""
    readers = graph.readers(name) if rank == 4 else []
    if readers and all(node.op_type == "Attention" for node in readers):
        return "batch", "heads", "tokens", "channels"
    if readers and all(_takes_channels_last(node, name) for node in readers):
        return "batch", "rows", "columns", "channels"
    return _AXES[rank]


def _takes_channels_last(node: onnx.NodeProto, name: str) -> bool:
    if node.op_type == "Transpose":
        return attributes(node).get("perm") == [0, 3, 1, 2]
    return node.op_type in _CHANNELS_LAST and node.input[0] == name


def with_fixed_image(model: onnx.ModelProto, images: list[str] | None = None) -> onnx.ModelProto:
    """The model, with an example's size for images whose size it leaves open; their batch stays."""
    example = Example(Graph(model), images)
    if example.fixed:
        return model
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in list(zip(dims, example.shape(value.name) or []))[1:]:
            dim.dim_value = extent
    for value in [*fixed.graph.value_info, *fixed.graph.output]:  # What inference then finds.
        for dim in value.type.tensor_type.shape.dim[1:]:
            if not dim.HasField("dim_value"):
                dim.Clear()
    return fixed


class Example:
    """A run of a graph on an image, in which labels stand for numbers.

    Extents that the model leaves open get values. Where those of the image are open, masks follow from its size when
    the model runs."""

    def __init__(self, graph: Graph, images: list[str] | None = None):
        self.graph, self.fixed, self.open_extents = graph, True, []
        self.positions: ExamplePositions | None = None
        self.labels: dict[str, np.ndarray] = {}
        self._known: dict[str, np.ndarray] = {}
        self._constant: set[str] = set()
        self._kinds: dict[str, int] = {}  # The types of tensors whose shapes are not known.
        places = image_inputs(graph, images)
        self._shapes = bound(graph, *self._chosen(places))
        self.image = max(places, key=lambda place: np.prod(self._size(place)), default=None)
        if self.image is None:
            self.problem = "the model has no input that is an image [N, C, H, W] or tokens [N, T, C]"
            return
        extents = dict(zip(self.image.axes, graph.shapes[self.image.name]))
        self.fixed = all(isinstance(extents.get(axis, 1), int) for axis in ("rows", "columns", "tokens"))
        self.open_extents = [extents[axis] for axis in ("rows", "columns", "tokens") if axis in extents]
        batch, height, width = self._size(self.image)
        self.problem = f"its batch of {batch} is larger than {LARGEST_BATCH}" if batch > LARGEST_BATCH else None
        if not self.problem:
            self.positions = ExamplePositions(batch, height, width, self.fixed)
            self._begin(places)
            for node in graph.nodes:
                self._carry(node)
            graph.sizes = {name: list(labels.shape) for name, labels in self.labels.items()}

    def shape(self, name: str) -> list[int] | None:
        """A tensor's shape in the example; None if it is not known."""
        labels = self.labels.get(name)
        return self._shapes.get(name) if labels is None else list(labels.shape)

    def size(self, unit: Unit) -> tuple[int, ...]:
        """The extents of a unit's output, without the batch and the channels."""
        shape = self.shape(unit.output) or []
        return tuple(shape[2:] if unit.images else shape[2:-1] if unit.is_apart else shape[1:-1])

    def mapping(self, unit: Unit) -> Mapping:
        """How the mask of a unit's output follows from the image's. Raises NoPositions."""
        labels = self._found(unit.output)
        labels = over(self.positions, labels, 1) if unit.is_apart else labels
        return self._mapping(labels, 1 if unit.images else -1)

    def keys(self, unit: Unit) -> Mapping:
        """How the mask of the keys of attention follows from the image's. Raises NoPositions."""
        keys = unit.inputs[1]
        labels = self._found(keys.name)
        if keys.perm is not None:
            labels = over(self.positions, labels.transpose(keys.perm), -1)
        return self._mapping(labels, -1)

    def of_mask(self, name: str) -> Mapping:
        """How a mask that the graph computes lies over the image. Raises NoPositions."""
        return self._mapping(self._found(name), None)

    def said(self, grid: rules.Grid, unit: Unit) -> Mapping:
        """The mapping as a rule says it. Raises NoPositions."""
        size, cells = list(self.size(unit)), (grid.rows, grid.columns)
        tokens = None if len(size) == 2 else (grid.before, grid.after)
        if size != (list(cells) if tokens is None else [sum(tokens) + cells[0] * cells[1]]):
            raise NoPositions(f"a rule says that its grid is {grid}, and its output is {self.shape(unit.output)}")
        image = self.positions.image if self.positions else cells
        if not self.fixed:
            raise NoPositions(f"a rule says that its grid is {grid}, and the size of the image is not fixed")
        if grid.stride is not None:
            return Mapping((Grid.of(grid.stride),), (cells,), image, tokens)
        if any(max(pair) % min(pair) for pair in zip(image, cells)):
            raise NoPositions(
                f"a rule says that its grid is {grid}, which does not divide the image, {list(image)}: say its stride too"
            )
        axes = (axis.resized(*pair) for axis, *pair in zip(Grid(), image, cells))
        return Mapping((Grid(*axes),), (cells,), image, tokens)

    def _found(self, name: str) -> np.ndarray:
        if self.positions is None:
            raise NoPositions(self.problem)
        if name not in self.labels:
            raise NoPositions("the shape of its output is not known")
        return self.labels[name]

    def _mapping(self, labels: np.ndarray, channels: int | None) -> Mapping:
        rows = labels if channels is None else over(self.positions, labels, channels)
        if rows.ndim == 1 and self.positions.batch == 1:
            rows = rows[None]
        if rows.ndim == 3 and len(rows) == self.positions.batch:  # Also a part of a grid, or with padding around it.
            if isinstance(self.positions.grid_of(rows), Grid):
                settled = lambda grid: Grid(*(axis.windowed(1) for axis in grid))
                rows = self.positions.windowed(rows, settled, rows.shape[1:])
        found = self.positions.mapping(rows)
        if not self.fixed:
            if found.index is not None:
                raise NoPositions("it works on parts of an image whose size is not fixed: fix the shapes of the inputs")
            if any(step.multiply == 0 for grid in found.grids for axis in grid for step in axis.extents):
                raise NoPositions("its extents do not follow from those of an image whose size is not fixed")
        return found

    # How the example begins.

    def _chosen(self, places: list[Place]) -> tuple[dict[str, list[int]], dict[str, int]]:
        """Shapes of the inputs, and the values of extents with names."""
        names: dict[str, int] = {}
        axes = {place.name: place.axes for place in places}
        others = [value.name for value in self.graph.proto.input if value.name not in axes]
        shapes = {}
        for name in [*axes, *others]:
            shape = []
            for place, extent in enumerate(self.graph.shapes.get(name) or []):
                role = axes[name][place] if name in axes else "batch" if place == 0 else None
                if isinstance(extent, int):
                    shape.append(extent)
                elif extent is None:
                    shape.append(_CHOSEN.get(role, _OTHER))
                else:
                    shape.append(names.setdefault(extent, _CHOSEN.get(role, _OTHER)))
            shapes[name] = shape
        return shapes, names

    def _size(self, place: Place) -> tuple[int, int, int]:
        """The batch, the rows and the columns of an image."""
        extents = dict(zip(place.axes, self._shapes[place.name]))
        if "tokens" in extents:
            return extents.get("batch", 1), 1, extents["tokens"]
        return extents["batch"], extents["rows"], extents["columns"]

    def _begin(self, places: list[Place]) -> None:
        """Labels the inputs and the initializers."""
        for name, tensor in self.graph.initializers.items():
            self.labels[name] = broadcast(CONSTANT, tensor.dims)
            if name not in self.graph.inputs:
                self._constant.add(name)
        for value in self.graph.proto.input:
            if value.name not in self.graph.initializers:
                self._set(value.name, OTHER)
        for place in places:
            if self._size(place) == self._size(self.image):
                cells = self.positions.whole()
                cells = cells[:, 0] if "tokens" in place.axes else cells
                cells = cells[0] if "batch" not in place.axes else cells
                cells = np.expand_dims(cells, [axis for axis, role in enumerate(place.axes) if role in _OF_A_CELL])
                self.labels[place.name] = broadcast(cells, self._shapes[place.name])

    def _set(self, name: str, kind: int) -> None:
        """Labels a tensor whose elements all stand for the same, or for nothing."""
        shape = self._shapes.get(name)
        if shape is None or None in shape:
            self._kinds[name] = kind
        else:
            self.labels[name] = broadcast(kind, shape)

    # How it goes through nodes.

    def _carry(self, node: onnx.NodeProto) -> None:
        if self._evaluate(node):
            return
        carrier = CARRIERS.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
        results: list[np.ndarray] = []
        if carrier:
            try:
                results = carrier(self._call(node))
            except (
                Unknown,
                ValueError,
                IndexError,
            ):  # The last two, where shapes do not fit, as they do at other sizes.
                results = []
        kind = self._kind(node)
        for place, name in enumerate(node.output):
            if name and place < len(results) and results[place] is not None:
                self.labels[name] = results[place]
            elif name:
                self._set(name, kind)

    def _call(self, node: onnx.NodeProto) -> Call:
        return Call(
            node,
            self.positions,
            [self.labels.get(name) for name in node.input],
            [self._value(name) for name in node.input],
            [name in self._constant for name in node.input],
            [None if self._shapes.get(name) is None or None in self._shapes[name] else tuple(self._shapes[name])
             for name in node.output],
            self.graph.opset,
            self.fixed,
        )  # fmt: skip

    def _kind(self, node: onnx.NodeProto) -> int:
        """What results of a node stand for if each comes from all inputs."""
        kinds = {self._kind_of(name) for name in reads(node) if name}
        return CONSTANT if kinds <= {CONSTANT} else OTHER if kinds <= {CONSTANT, OTHER} else ALL

    def _kind_of(self, name: str) -> int:
        labels = self.labels.get(name)
        if labels is None or not labels.size:
            return self._kinds.get(name, CONSTANT)
        least, most = labels.min(), labels.max()
        return int(least) if most < 0 and least != ALL else ALL

    # Values, as those of shapes.

    def _value(self, name: str) -> np.ndarray | None:
        labels = self.labels.get(name)
        if name and name not in self._known and labels is not None and labels.size <= SMALL:
            value = self.graph.constant(name) if name in self._constant else None
            if value is not None:
                self._known[name] = value
        return self._known.get(name)

    def _evaluate(self, node: onnx.NodeProto) -> bool:
        """Computes a node all of whose inputs have known values."""
        if node.op_type in ("Shape", "Size"):
            labels = self.labels.get(node.input[0])
            if labels is None:
                return False
            shape = np.array(labels.shape, np.int64)
            values = attributes(node)
            found = [shape[values.get("start", 0) : values.get("end")] if node.op_type == "Shape" else np.prod(shape)]
            return self._keep(node, [np.asarray(one, np.int64) for one in found], constant=False)
        if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM or bodies_of(node):
            return False
        values = {name: self._value(name) for name in node.input if name}
        sizes = [np.prod([extent or 1 for extent in self._shapes.get(name) or []]) for name in node.output]
        if any(value is None for value in values.values()) or max(sizes) > SMALL:
            return False
        opsets = self.graph.model.opset_import
        results = [constants.value(node, values, place, opsets) for place, name in enumerate(node.output) if name]
        return self._keep(node, results, all(name in self._constant for name in values))

    def _keep(self, node: onnx.NodeProto, results: list, constant: bool) -> bool:
        if any(result is None for result in results):
            return False
        for name, result in zip(filter(None, node.output), results):
            self.labels[name] = broadcast(CONSTANT, result.shape)
            if result.size <= SMALL:
                self._known[name] = result
            if constant:
                self._constant.add(name)
        return True


_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
