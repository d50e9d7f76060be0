"""Masks of a grid's cells from that of another grid over the same image, as nodes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from onnx import TensorProto, helper

from ..grids import Axis, Grid, Step
from .graph import Graph, Nodes

HALF = Fraction(1, 2)


def place_of(grid: Grid, extents: tuple[int, int], fixed: bool) -> tuple:
    """What grids with one mask have in common. For an image of any size, the extents follow from it in one way."""
    return grid.place, extents, () if fixed else tuple(axis.extents for axis in grid)


class Cells:
    """Makes masks of cells [N, H, W] from a mask [N, H, W], with the operators of distile or, for a reference, with
    standard ones."""

    def __init__(self, graph: Graph, nodes: Nodes, reference: bool, fixed: bool):
        self._graph, self._nodes, self._reference, self._fixed = graph, nodes, reference, fixed
        self._made: dict[tuple, str] = {}

    def of(self, mask: str, grid: Grid, extents: tuple[int, int], wanted: Grid, size: tuple[int, int]) -> str:
        """The mask of the `size` cells of a grid from a mask of the cells of another."""
        if place_of(grid, extents, self._fixed) == place_of(wanted, size, self._fixed):
            return mask
        key = mask, place_of(wanted, size, self._fixed)
        if key not in self._made:
            self._made[key] = self._of(mask, grid, extents, wanted, size)
        return self._made[key]

    def follows(self, grid: Grid, wanted: Grid) -> bool:
        """Whether the extents of a grid are known from those of another."""
        return self._fixed or all(have.extents == axis.extents[: len(have.extents)] for have, axis in zip(grid, wanted))

    def _of(self, mask: str, grid: Grid, extents, wanted: Grid, size) -> str:
        steps = [axis.extents[len(have.extents) :] for have, axis in zip(grid, wanted)]
        ratios = [_ratio(*axes) for axes in zip(wanted, grid)]
        if not self._reference and all(step.denominator == 1 for step, _ in ratios):
            factors, offsets = [int(step) for step, _ in ratios], [math.ceil(first - HALF) for _, first in ratios]
            if not any(first for _, first in ratios) and self._rounds_up(extents, steps, factors, size):
                return self._nodes.add("MaskPool", mask, domain="distile", factor=factors)
            wanted_size = self._nodes.constant(np.array(size, np.int64)) if self._fixed else self._size(mask, steps)
            return self._nodes.add("MaskCells", mask, wanted_size, domain="distile", factor=factors, offset=offsets)
        if self._fixed:
            spans = [axis.spans(cells, have, of) for axis, cells, have, of in zip(wanted, size, grid, extents)]
            rows, columns = (_covered(of, pairs) for of, pairs in zip(extents, spans))
            rows, columns = self._nodes.constant(rows), self._nodes.constant(columns.T)
        else:
            rows, columns = (self._computed(mask, place, steps[place], *axes)
                             for place, axes in enumerate(zip(wanted, grid)))  # fmt: skip
            columns = self._nodes.add("Transpose", columns, perm=[1, 0])
        real = self._nodes.add("Cast", mask, to=TensorProto.FLOAT)
        sums = self._nodes.add("MatMul", self._nodes.add("MatMul", rows, real), columns)
        return self._nodes.add("Greater", sums, self._nodes.constant(np.float32(0)))

    def _rounds_up(self, extents, steps, factors, size) -> bool:
        """Whether there is a cell for every `factors` pixels of a mask, also for an incomplete group at the end, as in
        pooling."""
        if self._fixed:
            return all(-(-of // factor) == cells for of, factor, cells in zip(extents, factors, size))
        return all(map(_is_ceil, steps, factors))

    def _size(self, mask: str, steps) -> str:
        """The numbers of cells that steps make of a mask's rows and columns, when the model runs."""
        extents = [self._nodes.add("Unsqueeze", self._extent(mask, place, steps[place]), axes=[0]) for place in (0, 1)]
        return self._nodes.add("Concat", *extents, axis=0)

    def _computed(self, mask: str, place: int, steps: tuple[Step, ...], axis: Axis, own: Axis) -> str:
        """Which pixels each cell is over in an image of any size, 1 or 0: the numbers of both are known when the model
        runs."""
        add, one = self._nodes.add, self._nodes.constant(np.ones(1, np.int64))
        pixels, cells = self._extent(mask, place, ()), self._extent(mask, place, steps)
        step, offset = _ratio(axis, own)
        inner = self._count(add("Sub", cells, self._nodes.constant(np.array(1, np.int64))))
        if step < 1:  # A cell is in the pixel that its middle is in.
            low, high = (self._line(inner, step, offset + step / 2 + first) for first in (step, 0))
        else:  # Else a cell covers the pixels whose middle is in it.
            low = self._line(inner, step, offset - HALF + step, up=True)
            high = add("Sub", low, one)
        last = add("Sub", add("Unsqueeze", pixels, axes=[0]), one)
        low = add("Concat", self._nodes.constant(np.zeros(1, np.int64)), low, axis=0)
        return self._inside(pixels, low, add("Concat", high, last, axis=0), last)

    def _count(self, end: str) -> str:
        """The numbers from 0 to before the end."""
        value = helper.make_tensor("value", TensorProto.BOOL, [1], [True])
        ones = self._nodes.add("ConstantOfShape", self._nodes.add("Unsqueeze", end, axes=[0]), value=value)
        return self._nodes.add("Squeeze", self._nodes.add("NonZero", ones), axes=[0])

    def _line(self, places: str, step: Fraction, offset: Fraction, up: bool = False) -> str:
        """The numbers offset + i * step for the places i, rounded down or up."""
        add, number = self._nodes.add, lambda value: self._nodes.constant(np.array(value, np.int64))
        unit = math.lcm(step.denominator, offset.denominator)
        scaled = add("Add", add("Mul", places, number(int(step * unit))), number(int(offset * unit) + (unit - 1) * up))
        return add("Div", scaled, number(unit))

    def _inside(self, pixels: str, low: str, high: str, last: str) -> str:
        """1 for pixels from the low ones to the high ones and inside of the mask, and 0 for others: [cells, pixels]."""
        add = self._nodes.add
        real = lambda tensor: add("Cast", tensor, to=TensorProto.FLOAT)
        least, most = self._nodes.constant(np.zeros(1, np.float32)), real(last)
        low, high = (add("Min", add("Max", real(edge), least), most) for edge in (low, high))
        low, high = add("Unsqueeze", low, axes=[1]), add("Unsqueeze", add("Max", low, high), axes=[1])
        every = real(self._count(pixels))
        return real(add("Not", add("Or", add("Less", every, low), add("Greater", every, high))))

    def _extent(self, mask: str, place: int, steps: tuple[Step, ...]) -> str:
        """The number of a mask's pixels along an axis, or of the cells that steps make of them."""
        key = mask, "extent", place, steps
        if key not in self._made:
            if steps:
                self._made[key] = self._stepped(self._extent(mask, place, steps[:-1]), steps[-1])
            else:
                shape = self._nodes.add("Shape", mask)
                self._made[key] = self._nodes.add("Gather", shape, self._nodes.constant(np.array(1 + place, np.int64)))
        return self._made[key]

    def _stepped(self, extent: str, step: Step) -> str:
        add, number = self._nodes.add, lambda value: self._nodes.constant(np.array(value, np.int64))
        top = add("Mul", extent, number(step.multiply)) if step.multiply != 1 else extent
        more = step.add + (step.divide - 1 if step.ceil else 0)
        top = add("Add", top, number(more)) if more else top
        count = add("Div", top, number(step.divide)) if step.divide != 1 else top
        if not step.ceil:
            return count
        fewer = add("Sub", count, number(1))
        begin, end = add("Mul", fewer, number(step.divide)), add("Add", extent, number(step.before))
        begins_inside = add("Less", *(add("Cast", one, to=TensorProto.FLOAT) for one in (begin, end)))
        return add("Where", begins_inside, count, fewer)


def _covered(of: int, spans: list[tuple[int, int]]) -> np.ndarray:
    """Which pixels each cell is over: 1 or 0, [cells, pixels]."""
    low, high = np.array(spans)[:, :, None].transpose(1, 0, 2)
    return ((np.arange(of) >= low) & (np.arange(of) <= high)).astype(np.float32)


def _ratio(axis: Axis, own: Axis) -> tuple[Fraction, Fraction]:
    """How many pixels of a mask there are from one cell to the next, and before the first one."""
    offset = Fraction(axis.offset, axis.unit) - Fraction(own.offset, own.unit)
    return Fraction(axis.step * own.unit, axis.unit * own.step), offset * own.unit / own.step


def _is_ceil(steps: tuple[Step, ...], factor: int) -> bool:
    """Whether steps make one cell of every `factor` pixels, also of an incomplete group at the end."""
    after = Axis(extents=steps).extent
    return all(step.multiply == 1 for step in steps) and all(
        after(pixels) == -(-pixels // factor) for pixels in range(factor, 4 * factor + 1)
    )
