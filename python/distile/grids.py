"""Grids of cells over an image: how the pixels of a feature map lie over those of the image that a mask is for."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Step:
    """The extent of a layer's output from that of its input: `(multiply * input + add) // divide`. With `ceil`, as in
    pooling, windows may reach over the end, but each begins in the input or in the `before` pixels of padding."""

    multiply: int = 1
    add: int = 0
    divide: int = 1
    ceil: bool = False
    before: int = 0

    def __call__(self, extent: int) -> int:
        top = self.multiply * extent + self.add
        if not self.ceil:
            return top // self.divide
        count = -(-top // self.divide)
        return count - 1 if (count - 1) * self.divide >= extent + self.before else count


@dataclasses.dataclass(frozen=True)
class Axis:
    """Cells along one axis of an image. Cell i is over the pixels from `(offset + i * step) / unit` on, and as long as
    the stride, `step / unit`. The first cell reaches to the image's start and the last to its end, so that no pixel is
    in none. `first` and `last` are the pixels at both ends of what the windows of the strided layers before a cell
    read, as the offset is, in units. `extents` say how many cells an image has. `border` is padding that a window is
    still to take in as its own.
    """

    step: int = 1
    unit: int = 1
    offset: int = 0
    first: int = 0
    last: int = 0
    extents: tuple[Step, ...] = ()
    border: tuple[int, int] = (0, 0)

    @property
    def stride(self) -> float | int:
        """Pixels from one cell to the next."""
        return self.step // self.unit if self.step % self.unit == 0 else self.step / self.unit

    @property
    def start(self) -> float | int:
        """The first pixel of cell 0."""
        return self.offset // self.unit if self.offset % self.unit == 0 else self.offset / self.unit

    @property
    def place(self) -> tuple[int, int, int]:
        """What two axes with cells at the same pixels have in common."""
        divisor = math.gcd(self.step, self.unit, self.offset)
        return self.step // divisor, self.unit // divisor, self.offset // divisor

    def extent(self, pixels: int) -> int:
        """The number of cells over an image of this extent in pixels."""
        for step in self.extents:
            pixels = step(pixels)
        return pixels

    def _changed(self, count: Step, /, **fields) -> Axis:
        return _lowest(dataclasses.replace(self, extents=(*self.extents, count), border=(0, 0), **fields))

    def windowed(self, kernel: int, stride=1, dilation=1, before=0, after=0, ceil=False) -> Axis:
        """The outputs of a convolution or a pool over these cells, with `before` and `after` of padding.

        Blocks of `stride` cells become one. They begin at cell 0 where the padding makes the outputs as many as such
        blocks, and otherwise in the middle of the windows.
        """
        before, after = before + self.border[0], after + self.border[1]
        window = dilation * (kernel - 1) + 1
        more = window - stride
        count = Step(1, before + after - window + stride, stride, ceil, before)
        twice = 0 if 0 <= before + after - more < stride else more - 2 * before
        if stride == 1 and not twice and before + after == more:
            return dataclasses.replace(self, border=(0, 0)) if any(self.border) else self
        cell = self._finer(2) if twice % 2 else self
        moved = twice * cell.step // 2
        first, last = moved, moved
        if stride > 1:
            first, last = min(-before * cell.step, moved), max((window - 1 - before) * cell.step, moved)
        return cell._changed(
            count,
            step=cell.step * stride,
            offset=cell.offset + moved,
            first=cell.first + first,
            last=cell.last + last,
        )

    def _settled(self) -> Axis:
        """With the border as cells of their own."""
        return self.windowed(1) if any(self.border) else self

    def transposed(self, kernel: int, stride=1, dilation=1, before=0, after=0, more=0) -> Axis:
        """The outputs of a transposed convolution with this padding, and `more` outputs at the end."""
        window = dilation * (kernel - 1) + 1
        extra = window + more - before - after - stride
        twice = 0 if -stride < extra <= 0 else window - stride - 2 * before
        finer = self._settled()._finer(stride * (2 if twice % 2 else 1))
        moved = -twice * finer.step // stride // 2
        return finer._changed(
            Step(stride, extra),
            step=finer.step // stride,
            offset=finer.offset + moved,
            first=finer.first + moved,
            last=finer.last + moved,
        )

    def upsampled(self, factor: int) -> Axis:
        """Each cell as `factor` cells."""
        settled = self._settled()
        finer = settled._finer(factor)
        return settled if factor == 1 else finer._changed(Step(factor), step=finer.step // factor)

    def _finer(self, factor: int) -> Axis:
        """This axis in smaller units."""
        fields = {name: getattr(self, name) * factor for name in ("step", "unit", "offset", "first", "last")}
        return dataclasses.replace(self, **fields)

    def cropped(self, start: int, step: int, count: int) -> Axis:
        """Every step-th cell from one on: `count` cells, whatever the image."""
        moved = start * self.step
        fields = dict(offset=self.offset + moved, first=self.first + moved, last=self.last + moved)
        if step > 1:
            fields["last"] += (step - 1) * self.step
        return self._changed(Step(0, count), step=self.step * step, **fields)

    def resized(self, before: int, after: int) -> Axis:
        """`before` cells as `after` cells of one length."""
        if after % before == 0:
            return self.upsampled(after // before)
        if before % after == 0:
            return self.windowed(before // after, before // after)
        finer = self._settled()._finer(after)
        return finer._changed(Step(0, after), step=finer.step // after * before)

    def spans(self, cells: int, mask: Axis, of: int, windows: bool = False) -> list[tuple[int, int]]:
        """For each cell, the first and the last of the `of` cells of a mask that are its own: those whose middle is in it,
        or if they are larger, the one that its middle is in. With `windows`, those of which the windows
        of strided layers read any pixel for it."""
        found, size, origin = [], 2 * mask.step * self.unit, 2 * mask.offset * self.unit
        for i in range(cells):
            moved = i * self.step
            if windows:
                begin, end = self.first + moved, self.last + self.unit + moved
                low, high = (2 * begin * mask.unit - origin) // size, -((origin - 2 * end * mask.unit) // size) - 1
            else:
                begin, end = self.offset + moved, self.offset + moved + self.step
                low, high = (-((origin + size // 2 - 2 * edge * mask.unit) // size) for edge in (begin, end))
                middle = ((begin + end) * mask.unit - origin) // size
                low, high = (low, high - 1) if low < high else (middle, middle)
            low, high = 0 if i == 0 else low, of - 1 if i == cells - 1 else high
            low = min(max(low, 0), of - 1)
            found.append((low, min(max(high, low), of - 1)))
        return found

    def with_windows_of(self, other: Axis) -> Axis:
        """An axis with the same cells, whose windows are also those of another with these cells."""
        unit = math.lcm(self.unit, other.unit)
        own, others = self._finer(unit // self.unit), other._finer(unit // other.unit)
        return _lowest(dataclasses.replace(own, first=min(own.first, others.first), last=max(own.last, others.last)))


def _lowest(axis: Axis) -> Axis:
    """An axis in the largest units."""
    divisor = math.gcd(axis.step, axis.unit, axis.offset, axis.first, axis.last)
    if divisor == 1:
        return axis
    return dataclasses.replace(
        axis,
        step=axis.step // divisor,
        unit=axis.unit // divisor,
        offset=axis.offset // divisor,
        first=axis.first // divisor,
        last=axis.last // divisor,
    )


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells over an image in rows and columns."""

    rows: Axis = Axis()
    columns: Axis = Axis()

    def __iter__(self):
        return iter((self.rows, self.columns))

    def extents(self, image: tuple[int, int]) -> tuple[int, int]:
        """The rows and columns of cells over an image of this size."""
        return self.rows.extent(image[0]), self.columns.extent(image[1])

    @property
    def stride(self) -> tuple[float | int, float | int]:
        return self.rows.stride, self.columns.stride

    @property
    def offset(self) -> tuple[float | int, float | int]:
        return self.rows.start, self.columns.start

    @property
    def place(self) -> tuple:
        return self.rows.place, self.columns.place

    @staticmethod
    def of(stride, offset=0) -> Grid:
        """Cells of `stride` pixels from pixel `offset` on, each a number, or a pair for rows and columns."""
        pair = lambda value: (value, value) if isinstance(value, int) else tuple(value)
        axes = []
        for length, start in zip(pair(stride), pair(offset)):
            if length < 1:
                raise ValueError(f"a grid has cells of at least one pixel, not {length}")
            count = (Step(1, -start, length, True),) if (length, start) != (1, 0) else ()
            axes.append(Axis(length, 1, start, start, start + length - 1, count))
        return Grid(*axes)
