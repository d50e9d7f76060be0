"""Which cell of an image each element of a tensor stands for, while an example runs through a model.

Elements have labels: arrays of int64 with the tensor's shape. What moves elements, as a transpose or a concatenation,
moves labels in the same way; the functions here are for what computes. Then `Positions.mapping` says how the mask of a
layer's output follows from the mask of the image, in images, in tokens, and in windows of any order.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from .grids import Grid

# Labels of elements that stand for no cell: a constant, as a class token; another input than the image; all cells.
CONSTANT, OTHER, ALL = -1, -2, -3
WHY = {
    CONSTANT: "it sees no pixel of the image",
    OTHER: "it sees another input than the image",
    ALL: "each of its outputs sees all pixels",
}
_BITS = 20  # For each of y and x; 8 for the image in the batch, and the rest for the grid.
_PLACES = (1 << 2 * _BITS + 8) - 1  # All but the grid.


class NoPositions(Exception):
    """Why a layer's outputs stand for no cells of an image."""


@dataclasses.dataclass(frozen=True)
class Mapping:
    """How the mask of a layer's output, [N, ...], follows from the image's: it is that of `grids[0]`; or with tokens,
    that of the cells in rows after `before` active tokens and before `after` active ones; or with `index`, of shape
    [windows, ...], the elements at these places of the cells of all grids, of one image after the other grid's, where
    -1 is active. There are `windows` of those for each image. `image` is the example's size, the only one that an
    index is for."""

    grids: tuple[Grid, ...]
    extents: tuple[tuple[int, int], ...]
    image: tuple[int, int]
    tokens: tuple[int, int] | None = None
    index: np.ndarray | None = dataclasses.field(default=None, compare=False)
    key: bytes = b""  # The index, to compare.

    def __str__(self) -> str:
        (grid, *others), ((rows, columns), *_) = self.grids, self.extents
        stride, offset = ("x".join(f"{float(one):g}" for one in pair) for pair in (grid.stride, grid.offset))
        text = f"stride {stride}, offset {offset}, grid {rows}x{columns}"
        if self.tokens is not None:
            text += f", tokens {self.tokens[0]}+{rows * columns}+{self.tokens[1]}"
        if self.index is not None:
            text += f", {len(self.index)} windows" if not others else f" and {len(others)} more grids"
        return text


class Positions:
    """The grids over an image, [N, C, H, W], that a run meets, and the labels of their cells."""

    def __init__(self, batch: int, height: int, width: int):
        self.batch, self.image = batch, (height, width)
        self._grids: list[Grid] = []
        self._extents: list[tuple[int, int]] = []
        self._known: dict[tuple, int] = {}

    def whole(self, grid: Grid = Grid(), extents: tuple[int, int] | None = None) -> np.ndarray:
        """The labels of all cells of a grid, [N, H, W]."""
        rows, columns = extents or self.image
        number = self._number(grid, (rows, columns))
        images = np.arange(self.batch, dtype=np.int64)[:, None, None] << 2 * _BITS
        y, x = np.arange(rows, dtype=np.int64)[:, None] << _BITS, np.arange(columns, dtype=np.int64)
        return number << 2 * _BITS + 8 | images | y | x

    def _number(self, grid: Grid, extents: tuple[int, int]) -> int:
        key = self._key(grid, extents)
        if key not in self._known:
            self._known[key] = len(self._grids)
            self._grids.append(grid)
            self._extents.append(extents)
        number = self._known[key]
        self._grids[number] = Grid(*(have.with_windows_of(axis) for have, axis in zip(self._grids[number], grid)))
        return number

    def _key(self, grid: Grid, extents: tuple[int, int]) -> tuple:
        """What is the same for grids whose cells are one."""
        return grid.place, extents

    def like(self, extents: tuple[int, int], stride: float) -> Grid | None:
        """The only grid with these extents and about this stride of rows."""
        found = [grid for grid, have in zip(self._grids, self._extents)
                 if have == extents and 0.7 < grid.rows.stride / stride < 1.4]  # fmt: skip
        return found[0] if len(found) == 1 else None

    def windowed(self, labels: np.ndarray, change, extents: tuple[int, int]) -> np.ndarray:
        """The labels of a layer's output with these extents, [N, H, W]. `change` makes its grid from the input's. Where
        the input is no grid, as windows of an image are, a layer whose outputs are as its inputs keeps their places."""
        found = self.grid_of(labels)
        if isinstance(found, Grid):
            return self.whole(change(found), extents)
        if labels.shape[1:] == extents and change(Grid()) == Grid():
            return labels
        return np.full((len(labels), *extents), found, np.int64)

    def resized(self, labels: np.ndarray, extents: tuple[int, int]) -> np.ndarray:
        """The labels of an image after interpolation to these extents, [N, H, W]."""
        before = labels.shape[1:]

        def change(grid: Grid) -> Grid:
            if any(max(pair) % min(pair) for pair in zip(before, extents)):  # To the size of another feature map.
                known = self.like(extents, grid.rows.stride * before[0] / extents[0])
                if known:
                    return known
            return Grid(*(axis.resized(*pair) for axis, *pair in zip(grid, before, extents)))

        if before == extents:
            return labels
        return self.windowed(labels, change, extents)

    def grid_of(self, labels: np.ndarray) -> Grid | int:
        """The grid whose cells these are, [N, H, W], with constant borders, a step, or
        repetitions if it has them; or if there is none, the label without a cell that its elements have."""
        inside = labels >= 0
        if not inside.any():
            return int(labels.min()) if labels.size else CONSTANT
        (top, bottom), (left, right) = (_ends(inside.any(axis)) for axis in ((0, 2), (0, 1)))
        within = labels[:, top:bottom, left:right]
        if len(labels) != self.batch or (within < 0).any() or (labels[~inside] != CONSTANT).any():
            return ALL
        number, image, y, x = _parts(within)
        rows, columns = y[0, :, 0], x[0, 0]
        regular = (
            (number == number[0, 0, 0]).all()
            and (image == np.arange(self.batch)[:, None, None]).all()
            and (y == rows[:, None]).all()
            and (x == columns).all()
        )
        if not regular:
            return ALL
        axes = []
        for axis, place, whole, (low, high), extent in zip(
            self._grids[number[0, 0, 0]], (rows, columns), self._extents[number[0, 0, 0]],
            ((top, bottom), (left, right)), labels.shape[1:],
        ):  # fmt: skip
            found = _taken(axis, place, whole)
            if found is None:
                return ALL
            axes.append(dataclasses.replace(found, border=(low, extent - high)))
        return Grid(*axes)

    def reduced(self, labels: np.ndarray, axis: int) -> np.ndarray:
        """The labels of results, each from all elements along an axis: of their cell if it is one, also of maps of
        features over each other; or of a block of cells, as a product by weights over patches has them."""
        high = labels.max(axis)
        cells = labels >= 0
        low = np.where(cells, labels, np.iinfo(np.int64).max).min(axis)
        none = high < 0
        placed = np.where(cells, labels, np.expand_dims(low, axis))
        numbers = np.unique(_parts(placed[np.broadcast_to(cells.any(axis, keepdims=True), placed.shape)])[0])
        together = all(self._over_each_other(number, numbers[0]) for number in numbers)
        places = placed & _PLACES if together else placed
        same = (places.min(axis) == places.max(axis)) | none
        blocks = None if same.all() else self._blocks(placed, axis, none)
        return np.where(none, labels.min(axis), np.where(same, low, ALL)) if blocks is None else blocks

    def merged(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The labels of results, each of an element of two tensors. A cell counts more than what is no cell; of cells at
        one place of two grids over each other, that of the grid met first; of cells of a fine and a coarse grid, the
        smaller one; and other two places are all cells."""
        both = np.where((a & _PLACES) == (b & _PLACES), np.minimum(a, b), ALL)
        cells = (a >= 0) & (b >= 0)
        one, other = np.broadcast_arrays(_parts(a)[0], _parts(b)[0])
        differ = cells & (one != other)
        for number, second in np.unique([one[differ], other[differ]], axis=1).T:
            if not self._over_each_other(number, second):
                finer = a if np.prod(self._extents[number]) > np.prod(self._extents[second]) else b
                both = np.where(differ & (one == number) & (other == second), finer, both)
        alone = np.where((a < 0) & (b < 0), np.minimum(a, b), np.maximum(a, b))
        return np.where(cells, both, alone)

    def _over_each_other(self, number: int, other: int) -> bool:
        """Whether cells of two grids with the same row and column lie at the same pixels."""
        same_size = self._extents[number] == self._extents[other]
        return same_size or self._grids[number].place == self._grids[other].place

    def together(self, *labels: np.ndarray) -> np.ndarray:
        """The labels of results, each of an element of all tensors, which broadcast."""
        shape = np.broadcast_shapes(*(one.shape for one in labels))
        return broadcast(functools.reduce(self.merged, map(compact, labels)), shape)

    def of_product(self, *labels: np.ndarray) -> np.ndarray:
        """The labels of products, of those that their factors give them, which broadcast: rows of the left matrix and
        columns of the right one. Those of the first factor with cells count, but if they are one along the axes that it
        alone has, as those of channels, and another's are not. Where that has no cell, others make it all cells."""
        shape = np.broadcast_shapes(*(one.shape for one in labels))
        placed = [place for place, one in enumerate(labels) if (compact(one) >= 0).any()]
        if not placed:
            return self.together(*labels)
        others_of = [labels[:place] + labels[place + 1 :] for place in range(len(labels))]
        differing = [place for place in placed if _differs(labels[place], others_of[place])]
        place = (differing or placed)[0]
        chosen = labels[place]
        if (compact(chosen) >= 0).all():
            return broadcast(chosen, shape)
        rest = self.together(*others_of[place])
        return broadcast(np.where(chosen >= 0, chosen, np.where(rest >= 0, ALL, np.minimum(chosen, rest))), shape)

    def _blocks(self, labels: np.ndarray, axis: int, none: np.ndarray) -> np.ndarray | None:
        """The labels of results that are each from a block of cells, the last of a row or a column perhaps from fewer;
        None if they are not."""
        parts = [(part.min(axis), part.max(axis)) for part in _parts(labels)]
        (number, last_number), (image, last_image), *places = parts
        one_grid = (number == number.flat[0]).all() and (last_number == number).all()
        if none.any() or not one_grid or (image != last_image).any():
            return None
        grid, extents = self._grids[number.flat[0]], self._extents[number.flat[0]]
        axes, blocks, shifted = [], [], []
        for along, extent, (low, high) in zip(grid, extents, places):
            sizes = high - low + 1
            size = int(sizes.max())
            first = int(low.min()) % size
            whole = (sizes == size) | (high == extent - 1)
            if not whole.all() or ((low - first) % size).any() or size == extent > 1:
                return None
            missing = (first - extent) % size if (sizes < size).any() else 0
            axes.append(along.windowed(size, size, before=-first, after=missing) if size > 1 else along)
            blocks.append((extent - first + missing) // size)
            shifted.append((low - first) // size)
        if np.prod([int((high - low).max()) + 1 for low, high in places]) > labels.shape[axis]:
            return None
        number = self._number(Grid(*axes), tuple(blocks))
        return number << 2 * _BITS + 8 | image << 2 * _BITS | shifted[0] << _BITS | shifted[1]

    def _thinned(self, labels: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Labels of every n-th cell of a grid, as tokens may be, as labels of larger cells."""
        number, image, y, x = _parts(labels[cells])
        if (number != number[0]).any():
            return labels
        grid, extents = self._grids[number[0]], self._extents[number[0]]
        steps = [_step(places, extent) for places, extent in zip((y, x), extents)]
        if all(step == 1 for _, step in steps):
            return labels
        axes = [axis.windowed(1, step, before=-first) if step > 1 else axis for axis, (first, step) in zip(grid, steps)]
        counts = tuple(-(-(extent - first) // step) for extent, (first, step) in zip(extents, steps))
        y, x = ((places - first) // step for places, (first, step) in zip((y, x), steps))
        result = labels.copy()
        result[cells] = self._number(Grid(*axes), counts) << 2 * _BITS + 8 | image << 2 * _BITS | y << _BITS | x
        return result

    def mapping(self, labels: np.ndarray) -> Mapping:
        """How the mask of outputs with these labels, [N, ...] without channels, follows from that of the image. Raises
        NoPositions."""
        cells = labels >= 0
        if not cells.any():
            raise NoPositions(WHY[int(labels.min())] if labels.size else "its output is empty")
        if len(labels) % self.batch:
            raise NoPositions("its output does not have the batch of the image")
        labels = self._thinned(labels, cells)
        number, image, y, x = _parts(np.where(cells, labels, 0))
        each = labels.reshape(self.batch, -1)
        if (cells & (image != np.arange(self.batch).repeat(labels[0].size * (len(labels) // self.batch)).reshape(
            labels.shape))).any():  # fmt: skip
            raise NoPositions("its outputs mix the images of the batch")
        own = np.where(each < 0, each, each & ~(255 << 2 * _BITS))
        if (own != own[0]).any():
            raise NoPositions("its outputs stand for other pixels in each image")
        numbers = np.unique(number[cells])
        grids, extents = (tuple(values[one] for one in numbers) for values in (self._grids, self._extents))
        common = dict(grids=grids, extents=extents, image=self.image)
        if len(numbers) == 1 and labels.ndim == 3 and len(labels) == self.batch and (
            labels.shape[1:] == extents[0] and (own[0] == self.whole(grids[0], extents[0])[0].ravel()).all()
        ):
            return Mapping(**common)
        first, places = 0, np.full(labels.shape, -1, np.int64)
        for one, (rows, columns) in zip(numbers, extents):
            places = np.where(cells & (number == one), first + y * columns + x, places)
            first += rows * columns
        index = places.reshape(self.batch, len(labels) // self.batch, *labels.shape[1:])[0]
        taken, counts = np.unique(index[index >= 0], return_counts=True)
        if (counts > 1).any():
            raise NoPositions("a pixel stands in several of its outputs")
        if len(numbers) == 1 and index.ndim == 2 and len(index) == 1:
            (low, high), count = _ends(index[0] >= 0), extents[0][0] * extents[0][1]
            if high - low == count == len(taken) and (index[0, low:high] == np.arange(count)).all():
                return Mapping(**common, tokens=(low, index.size - high))
        return Mapping(**common, index=index.astype(np.int32), key=index.astype(np.int32).tobytes())


def broadcast(labels, shape) -> np.ndarray:
    return np.broadcast_to(np.asarray(labels, np.int64), tuple(shape))


def compact(labels: np.ndarray) -> np.ndarray:
    """Labels with one element along the axes where all are the same memory."""
    return labels[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in labels.strides)]


def _differs(labels: np.ndarray, others: tuple[np.ndarray, ...]) -> bool:
    """Whether labels differ along an axis that others, with which they broadcast, lack; or have no such axis."""
    axes = [
        axis for axis in range(-labels.ndim, 0)
        if labels.shape[axis] > 1 and all(other.ndim < -axis or other.shape[axis] == 1 for other in others)
    ]  # fmt: skip
    small = compact(labels)
    return not axes or any((small != small.take([0], axis)).any() for axis in axes)


def _parts(labels: np.ndarray) -> tuple[np.ndarray, ...]:
    """The grid, the image, y and x of labels."""
    low = (1 << _BITS) - 1
    return labels >> 2 * _BITS + 8, labels >> 2 * _BITS & 255, labels >> _BITS & low, labels & low


def _ends(inside: np.ndarray) -> tuple[int, int]:
    """The first place that is inside, and the one after the last."""
    return int(inside.argmax()), len(inside) - int(inside[::-1].argmax())


def _step(places: np.ndarray, extent: int) -> tuple[int, int]:
    """The first of some places along an axis, and the step between them, if they are all from it on; or 0 and 1."""
    unique = np.unique(places)
    first, step = int(unique[0]), int(unique[1] - unique[0]) if len(unique) > 1 else 1
    every = first < step and np.array_equal(unique, np.arange(first, extent, step))
    return (first, step) if every else (0, 1)


def _taken(axis, places: np.ndarray, extent: int):
    """The axis of cells at these places of another: a part, with a step, or repeated. None if they are
    in no such order."""
    first, count = int(places[0]), len(places)
    repeats = int((places == first).sum())
    unique = places[::repeats]
    step = int(unique[1] - unique[0]) if len(unique) > 1 else 1
    if count % repeats or step < 1 or (places != (first + step * np.arange(len(unique))).repeat(repeats)).any():
        return None
    if first or step > 1 or len(unique) != extent:
        whole = first < step and -(-(extent - first) // step) == len(unique)
        axis = axis.windowed(1, step, before=-first) if whole else axis.cropped(first, step, len(unique))
    return axis.upsampled(repeats)
