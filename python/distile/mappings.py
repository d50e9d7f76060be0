"""Where a layer's outputs are over the image that a shared mask is for, and the mask that they get so."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from .grids import Axis, Grid
from .positions import Mapping

if TYPE_CHECKING:
    from .masks import SharedMask

Size = tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _spans(axis: Axis, cells: int, mask: Axis, of: int, windows: bool):
    return tuple(zip(*axis.spans(cells, mask, of, windows)))


@torch.compiler.assume_constant_result
def spans(axis: Axis, cells: int, mask: Axis, of: int, windows: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first and the last pixel of a mask that each cell is over."""
    return _spans(axis, cells, mask, of, windows)


def _batch_hint(shared: SharedMask, size: Size) -> str:
    """For a mask of an image without a batch, which counts as one of tokens."""
    is_image = len(size) == 2 and shared.mask.dim() == 2
    return f" This mask is {list(shared.mask.shape)}: give a mask [H, W] a batch by mask[None]." if is_image else ""


class Layer:
    """Where a layer's outputs are over an image."""

    def of(self, shared: SharedMask, batch: int, size: Size) -> torch.Tensor | None:
        """The mask of outputs of this size, without the batch, by the image's; None if they have none. Raises ValueError
        if it does not say."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self}>"  # Rows of reports are printed, and the words say more than the fields.


class Unmapped(Layer):
    """Nobody said where: the layer takes masks of just its output's size."""

    def of(self, shared: SharedMask, batch: int, size: Size) -> torch.Tensor:
        have = tuple(shared.mask.shape[1:])
        if have != size:
            raise ValueError(
                f"the shared mask is for {have}, and this layer has an output of {size}. Nothing says where that is "
                "over the mask: call distile.trace(model, example), give distile.convert an example, or a rule "
                "distile.image(...) or distile.tokens(...) for this layer; or give the layer a mask of its own."
                + _batch_hint(shared, size)
            )
        return shared.mask

    def __str__(self) -> str:
        return "unknown without an example"


UNMAPPED = Unmapped()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Nowhere(Layer):
    """Nowhere: its outputs stand for no pixels, and it has no mask of a context."""

    reason: str

    def of(self, shared: SharedMask, batch: int, size: Size) -> None:
        return None

    def __str__(self) -> str:
        return self.reason


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Traced(Layer):
    """What an example showed of a layer's calls: how the mask of each follows from the image's, and the extents of
    outputs that stand for no pixels."""

    calls: tuple[Mapping | Size, ...]

    def of(self, shared: SharedMask, batch: int, size: Size) -> torch.Tensor | None:
        if size in self.calls:
            return None
        fitting = [call for call in self.calls if isinstance(call, Mapping) and _fits(call, shared, batch, size)]
        if len(fitting) != 1:
            problem = f"{len(fitting)} of its places fit" if fitting else "that is no output of it over such an image"
            raise ValueError(
                f"the shared mask is for an image of {shared.image}, and this layer has an output of {size}: {problem}. "
                f"Its place: {self}. Give the mask of the whole image, or with its stride, distile.mask(m, stride=...), "
                "or an example of this size, or the layer a mask of its own." + _batch_hint(shared, size)
            )
        return _mask_of(fitting[0], shared, batch)

    def __str__(self) -> str:
        return "; ".join(str(call) for call in self.calls if isinstance(call, Mapping))


def _fits(call: Mapping, shared: SharedMask, batch: int, size: Size) -> bool:
    """Whether a call has outputs of this size over a mask's image."""
    if call.tokens is not None and shared.mask.dim() == 2 and call.image[0] > 1:
        (rows, columns), (before, after) = call.extents[0], call.tokens
        return size == shared.mask.shape[1:] == (before + rows * columns + after,)
    if call.index is not None:
        count, *extents = call.index.shape
        return shared.image == call.image and batch % count == 0 and size == tuple(extents)
    rows, columns = call.grids[0].extents(shared.image)
    if call.tokens is None:
        return size == (rows, columns)
    return size == (call.tokens[0] + rows * columns + call.tokens[1],)


def _mask_of(call: Mapping, shared: SharedMask, batch: int) -> torch.Tensor:
    if call.tokens is not None and shared.mask.dim() == 2 and call.image[0] > 1:
        return shared.mask
    if call.index is not None:
        images = batch // len(call.index)
        return shared.keep(("index", call, images), lambda: _indexed(call, shared, images))
    grid = call.grids[0]
    cells = shared.on(grid, grid.extents(shared.image))
    if call.tokens is None:
        return cells
    return shared.keep(("tokens", grid, call.tokens), lambda: _with_active(cells.flatten(1), call.tokens))


def _with_active(tokens: torch.Tensor, more: tuple[int, int]) -> torch.Tensor:
    return F.pad(tokens, more, value=1) if any(more) else tokens


def _indexed(call: Mapping, shared: SharedMask, images: int) -> torch.Tensor:
    """The mask of the windows of a batch of images, [N * windows, ...]."""
    parts = [shared.on(grid, extents).flatten(1) for grid, extents in zip(call.grids, call.extents)]
    cells = _with_active(torch.cat(parts, 1), (0, 1))
    index = torch.from_numpy(call.index).to(cells.device, torch.long)
    index = torch.where(index < 0, cells.shape[1] - 1, index)
    windows = cells[:, index.flatten()]
    windows = windows.expand(images, -1) if len(windows) == 1 else windows
    return windows.reshape(-1, *index.shape[1:])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Said(Layer):
    """The place of a layer's outputs as a rule says it: cells of an image in rows, `grid` of them or as many as have
    this stride. With `more`, they may also be tokens, the grid's cells in rows with `more` active ones before and after."""

    name: str
    grid: tuple[int, int] | None = None
    stride: int | tuple[int, int] | None = None
    offset: int | tuple[int, int] = 0
    more: tuple[int, int] | None = None

    def of(self, shared: SharedMask, batch: int, size: Size) -> torch.Tensor:
        have = shared.image
        extents = self.grid or size
        if len(extents) != 2:
            raise ValueError(f"a rule says that this layer's output is an image, but it has an output of {size}")
        if self.stride is None:
            if any(max(pair) % min(pair) for pair in zip(have, extents)):
                raise ValueError(
                    f"a rule says that this layer has a grid of {extents}, and the shared mask is for an image of "
                    f"{have}, which is no multiple of that: say the stride too"
                )
            axes = (axis.resized(*pair) for axis, *pair in zip(Grid(), have, extents))
            grid = Grid(*axes)
        else:
            grid = Grid.of(self.stride, self.offset)
        most = tuple(-(-(extent - axis.offset) * axis.unit // axis.step) for axis, extent in zip(grid, have))
        least = tuple((extent - axis.offset) * axis.unit // axis.step for axis, extent in zip(grid, have))
        more = self.more if len(size) == 1 else None  # An image has nothing beside its cells.
        wanted = extents if more is None else (extents[0] * extents[1] + sum(more),)
        if size != wanted or any(not low <= cells <= high for low, cells, high in zip(least, extents, most)):
            raise ValueError(
                f"a rule says that this layer has {self}; that is no output of {size} over an image of {have}."
                + _batch_hint(shared, size)
            )
        cells = shared.on(grid, extents)
        return cells if more is None else _with_active(cells.flatten(1), more)

    def __str__(self) -> str:
        parts = [] if self.stride is None else [f"stride {self.stride}, offset {self.offset}"]
        parts += [] if self.grid is None else [f"grid {self.grid[0]}x{self.grid[1]}"]
        parts += [] if self.more is None else [f"tokens {self.more[0]}+{self.grid[0] * self.grid[1]}+{self.more[1]}"]
        return ", ".join(parts)


def image(mask: str = "mask", *, stride=None, offset=0, grid: tuple[int, int] | None = None) -> Said:
    """For a rule of distile.convert: the layer's output is an image over that of the mask. One of its pixels is
    `stride` of the image's in height and width, from pixel `offset` on; or the image is divided into the rows and
    columns of `grid`. Raises ValueError without both."""
    if stride is None and grid is None:
        raise ValueError("say the stride or the grid of a layer's output")
    return Said(mask, grid, stride, offset)


def tokens(
    mask: str = "mask", *, grid: tuple[int, int], before: int = 0, after: int = 0, stride=None, offset=0
) -> Said:
    """For a rule of distile.convert: the layer's output is tokens, a grid of rows and columns over the mask's image, row
    by row, with `before` and `after` tokens at its ends, which are always active; or an image of the grid. `stride` and
    `offset` are as in image."""
    return Said(mask, tuple(grid), stride, offset, (before, after))
