"""The masks of a converted model: its inputs, and what they are for each node."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..grids import Grid
from ..positions import Mapping, NoPositions
from .cells import Cells, place_of
from .graph import Graph, Nodes
from .positions import Example


@dataclasses.dataclass
class Source:
    """A mask by its name: of the cells of a grid over an image, or with `tokens`, of those in rows between as many
    other tokens as that says. `problem` says why it is none."""

    name: str
    shape: list
    is_new: bool
    image: tuple[int, int]
    grid: Grid
    extents: tuple[int, int]
    tokens: tuple[int, int] | None = None
    problem: str | None = None


class Masks:
    """Makes masks where they are needed, with the operators of distile or, for a reference, with standard ones."""

    def __init__(self, graph: Graph, example: Example, nodes: Nodes, reference: bool):
        self._graph, self._example, self._nodes = graph, example, nodes
        self._cells = Cells(graph, nodes, reference, example.fixed)
        self.sources: dict[str, Source] = {}
        self._made: dict[tuple, str] = {}

    def declare(self, name: str, wanted: list[Mapping], size: tuple[int, ...] | None) -> None:
        """A mask, existing or new, for what is wanted of it. A new one has the size given, or that of all tokens, or of
        the largest image."""
        if name in self._graph.types:
            self.sources[name] = self._existing(name, wanted)
            return
        source = self._largest(name, wanted)
        self.sources[name] = self._sized(source, size, wanted) if size else source
        self.sources[name].shape = [self._batch(), *(size or self._size(source))]

    def _largest(self, name: str, wanted: list[Mapping]) -> Source:
        """A new mask: of the tokens if all that is wanted has these, or else of the largest image."""
        first = max(wanted, key=lambda one: math.prod(one.extents[0]))
        source = Source(name, [], True, first.image, first.grids[0], first.extents[0])
        if not self._is_fixed(source):
            rows = first.image[0] > 1
            return dataclasses.replace(source, grid=Grid(), extents=first.image, tokens=None if rows else (0, 0))
        one_place = {self._place(one) for one in wanted} == {self._place(first)}
        return dataclasses.replace(source, tokens=first.tokens if one_place else None)

    def _batch(self) -> int | str | None:
        image = self._example.image
        return self._graph.shapes[image.name][0] if image and "batch" in image.axes else 1

    def _size(self, source: Source) -> list:
        if not self._is_fixed(source):
            return self._example.open_extents
        return list(source.extents if source.tokens is None else [sum(source.tokens) + math.prod(source.extents)])

    @property
    def _image(self) -> tuple[int, int] | None:
        return self._example.positions.image if self._example.positions else None

    def _existing(self, name: str, wanted: list[Mapping]) -> Source:
        shape = self._graph.shapes.get(name)
        if self._graph.types[name] != TensorProto.BOOL or shape is None or len(shape) > 3:
            raise ValueError(f"the tensor '{name}' is no mask: a mask is of type bool, [N, H, W] or [N, T]")
        source = Source(name, shape, False, wanted[0].image, Grid(), wanted[0].image)
        try:
            found = self._example.of_mask(name)
            if found.index is None and len(found.grids) == 1:
                return dataclasses.replace(
                    source, image=found.image, grid=found.grids[0], extents=found.extents[0], tokens=found.tokens
                )
        except NoPositions:
            pass  # It is over the image, and its size says how.
        size = tuple(shape[1:]) if len(shape) > 1 else tuple(shape)
        if all(isinstance(extent, int) for extent in size):
            return self._sized(source, size, wanted)
        if list(size) != list(self._example.open_extents):
            source.problem = f"the size of the mask '{name}' is not known"
        return source

    def _sized(self, source: Source, size: tuple[int, ...], wanted: list[Mapping]) -> Source:
        """A mask of this size: that of a grid with such extents, or that has whole pixels of the image in a pixel, or
        the other way round."""
        if not self._is_fixed(source):
            problem = f"the mask '{source.name}' has a fixed size, and the image has none"
            return dataclasses.replace(source, problem=problem)
        if len(size) == 1:
            for one in wanted:
                for tokens in (one.tokens, (0, 0)):
                    if tokens is not None and sum(tokens) + math.prod(one.extents[0]) == size[0]:
                        return dataclasses.replace(
                            source, image=one.image, grid=one.grids[0], extents=one.extents[0], tokens=tokens
                        )
        fitting = [one for one in wanted if one.extents[0] == size]
        if fitting:
            return dataclasses.replace(
                source, image=fitting[0].image, grid=fitting[0].grids[0], extents=size, tokens=None
            )
        if len(size) == 2 and not any(max(pair) % min(pair) for pair in zip(source.image, size)):
            axes = (axis.resized(*pair) for axis, *pair in zip(Grid(), source.image, size))
            return dataclasses.replace(source, grid=Grid(*axes), extents=size, tokens=None)
        outputs = sorted({_extents(one) for one in wanted})
        names = ", ".join(str(list(one)) for one in outputs)
        problem = (
            f"the mask '{source.name}' is for {list(size)}, which neither divides the image's {list(source.image)} "
        )
        return dataclasses.replace(source, problem=problem + f"nor is the size of an output of {names}")

    def _is_fixed(self, source: Source) -> bool:
        return self._example.fixed or source.image != self._image

    def reason_against(self, name: str, wanted: Mapping) -> str | None:
        """Why a mask does not serve outputs with a mapping."""
        source = self.sources[name]
        if source.problem:
            return source.problem
        if source.image != wanted.image:
            return f"the mask '{name}' is for {list(source.image)}, and its output is for {list(wanted.image)}"
        if not all(self._cells.follows(source.grid, grid) for grid in wanted.grids):
            return f"its size does not follow from that of the mask '{name}'"
        if self._place(wanted) != self._place(source) and source.tokens is not None and not self._is_fixed(source):
            return f"the mask '{name}' is for tokens of an image whose size is not fixed"
        return None

    def _place(self, one: Mapping | Source) -> tuple:
        """What those with one mask have in common."""
        if isinstance(one, Source):
            return (place_of(one.grid, one.extents, self._example.fixed),), one.image, one.tokens, b""
        places = tuple(place_of(*pair, self._example.fixed) for pair in zip(one.grids, one.extents))
        return places, one.image, one.tokens, one.key

    def key(self, name: str, wanted: Mapping) -> tuple:
        """What is equal for equal masks."""
        return name, self._place(wanted)

    def at(self, name: str, wanted: Mapping) -> str:
        """The tensor with a mask for outputs with a mapping."""
        source = self.sources[name]
        if self._place(wanted) == self._place(source):
            return name
        key = self.key(name, wanted)
        if key not in self._made:
            made = self._made[key] = self._mapped(source, wanted)
            if made not in self._graph.types:
                extents = _extents(wanted) if self._is_fixed(source) else [None] * len(_extents(wanted))
                self._graph.add_shape(
                    made, TensorProto.BOOL, [self._batch() if wanted.index is None else None, *extents]
                )
        return self._made[key]

    def _mapped(self, source: Source, wanted: Mapping) -> str:
        planes = [self._cells.of(self._as_image(source), source.grid, source.extents, *pair)
                  for pair in zip(wanted.grids, wanted.extents)]  # fmt: skip
        if wanted.tokens is None and wanted.index is None:
            return planes[0]
        add = self._nodes.add
        cells = [add("Reshape", plane, self._nodes.constant(np.array([0, -1], np.int64))) for plane in planes]
        if wanted.index is None:
            before, after = (self._active(cells[0], count) for count in wanted.tokens)
            return add("Concat", *before, *cells, *after, axis=1) if before or after else cells[0]
        count = sum(math.prod(extents) for extents in wanted.extents)
        index = np.where(wanted.index < 0, count, wanted.index).astype(np.int64)
        taken = add("Concat", *cells, *self._active(cells[0], 1), axis=1)
        taken = add("Gather", taken, self._nodes.constant(index.ravel()), axis=1)
        taken = self._for_each_image(taken, index.size)
        return add("Reshape", taken, self._nodes.constant(np.array([-1, *index.shape[1:]], np.int64)))

    def _as_image(self, source: Source) -> str:
        """A mask as [N, H, W]."""
        if source.tokens is None:
            return source.name
        key = source.name, "image"
        if key not in self._made:
            before, count = source.tokens[0], math.prod(source.extents)
            kept = source.name
            if any(source.tokens):
                places = self._nodes.constant(np.arange(before, before + count))
                kept = self._nodes.add("Gather", kept, places, axis=1)
            extents = self._nodes.constant(np.array([-1, *source.extents], np.int64))
            self._made[key] = self._nodes.add("Reshape", kept, extents)
        return self._made[key]

    def _active(self, cells: str, count: int) -> list[str]:
        """`count` active tokens for each image, [N, count]."""
        if not count:
            return []
        add = self._nodes.add
        first = add("Gather", cells, self._nodes.constant(np.array([0], np.int64)), axis=1)
        active = add("Or", first, add("Not", first))
        return [active if count == 1 else add("Tile", active, self._nodes.constant(np.array([1, count], np.int64)))]

    def _for_each_image(self, mask: str, count: int) -> str:
        """A mask [N, count] of a batch, where it may be that of one image for all."""
        image = self._example.image.name
        if self._graph.shapes[image][0] == 1 or "batch" not in self._example.image.axes:
            return mask
        add, constant = self._nodes.add, self._nodes.constant
        batch = add("Gather", add("Shape", image), constant(np.array([0], np.int64)))
        return add("Expand", mask, add("Concat", batch, constant(np.array([count], np.int64)), axis=0))

    def spread(self, name: str, wanted: Mapping, unit) -> str:
        """For a reference: the mask with a dimension for the channels of a unit's output."""
        mask, shape = self.at(name, wanted), self._example.shape(unit.output)
        rank = len(self.sources[name].shape if mask == name else self._graph.shapes[mask])
        if unit.is_apart:
            extents = [1 if rank == 1 else 0, 1, -1, 1]
            return self._nodes.add("Reshape", mask, self._nodes.constant(np.array(extents, np.int64)))
        if rank == len(shape) - 1:
            return self._nodes.add("Unsqueeze", mask, axes=[1 if unit.images else rank])
        # One row of tokens, or the pixels of an image as tokens.
        extents = [-1, 1] if len(shape) == 2 else [0, -1, 1] if len(shape) == 3 else [0, *shape[1:-1], 1]
        return self._nodes.add("Reshape", mask, self._nodes.constant(np.array(extents, np.int64)))

    def new_inputs(self) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(source.name, TensorProto.BOOL, source.shape)
            for source in self.sources.values()
            if source.is_new
        ]


def _extents(wanted: Mapping) -> tuple[int, ...]:
    """The size of a mask for outputs with a mapping, without the batch."""
    if wanted.tokens is not None:
        return (sum(wanted.tokens) + math.prod(wanted.extents[0]),)
    return tuple(wanted.extents[0] if wanted.index is None else wanted.index.shape[1:])
