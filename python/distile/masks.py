"""Masks: tensors of type bool, [N, H, W] for images and [N, T] for tokens, and the mask that a block shares."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import warnings
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import is_fake

from . import recomputation
from ._library import ops
from .grids import Axis, Grid
from .halting import halt  # noqa: F401 Its masks are of tokens.
from .mappings import UNMAPPED, Layer, spans

PIXELS = Grid.of(1)  # Made once: each context of a mask has it.


class SharedMask:
    """A mask of images [N, H, W], or of tokens [N, T], for layers of several resolutions. What it gives for a layer is
    made once, and again after a write by PyTorch's operators. A mask for one image serves a whole batch.

    Args:
        mask: of type bool; or with a threshold, of any type: active where it is greater. NaN is inactive.
        stride: how many of the image's pixels a pixel of the mask is in height and width, a number or a pair.
        offset: the first of the image's pixels that it is for.
        windows: how a layer of lower resolution gets its mask. One of its pixels is active if any of its block is, of as
            many pixels as the layer's stride; with `windows`, if the windows of the strided layers before it read an
            active one, as where the mask is of pixels that changed.
    """

    def __init__(
        self, mask: torch.Tensor, *, stride=1, offset=0, windows: bool = False, threshold: float | None = None
    ):
        self.mask = as_mask(mask if threshold is None else mask > threshold)
        if self.mask.dim() not in (2, 3):
            raise ValueError(
                f"a mask is [N, H, W] for images or [N, T] for tokens, and this one is {list(mask.shape)}: give a mask "
                "[H, W] a batch by mask[None], and join the channels of one by mask.any(1)"
            )
        self._has_version = not torch.compiler.is_compiling() and not self.mask.is_inference()
        if not self._has_version and not torch.compiler.is_compiling():
            self.mask = self.mask.clone()  # No version would tell of a write, which layers might see or not.
        self.grid = PIXELS if (stride, offset) == (1, 0) else Grid.of(stride, offset)
        self.windows = windows
        self._version, self._made = self.mask._version if self._has_version else 0, {}

    def to(self, device) -> SharedMask:
        """This mask on a device."""
        strides, offsets = self.grid.stride, self.grid.offset
        return SharedMask(self.mask.to(device), stride=strides, offset=offsets, windows=self.windows)

    def fixed(self) -> fixed:
        """A context in which the mask does not change."""
        made = {id(one): one for one in (self.mask, *self._made.values()) if one is not None}
        return fixed(*made.values())

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of the image; for tokens, 1 and their number."""
        extents = (1, self.mask.shape[1]) if self.mask.dim() == 2 else tuple(self.mask.shape[1:])
        return tuple(extent * axis.step + axis.offset for extent, axis in zip(extents, self.grid))

    def _kept(self) -> dict:
        """What was made of the mask since it was last written."""
        if self._has_version and not torch.compiler.is_compiling() and self.mask._version != self._version:
            self._version, self._made = self.mask._version, {}
        return self._made

    def keep(self, key, make) -> torch.Tensor:
        """What `make()` gives; that again as long as the mask is not written."""
        kept = self._kept()
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def given(self, mapping: Layer, batch: int, size: tuple[int, ...]) -> torch.Tensor | None:
        """The mask of a batch of outputs of this size, by a layer's mapping; None if it says that they have none."""
        kept, key = self._kept(), (mapping, batch, size)
        found = kept.get(key, kept)  # The dictionary itself is no mask.
        if found is kept:
            found = mapping.of(self, batch, size)
            kept[key] = found = None if found is None else _for_batch(found, batch)
        return found

    def at(self, height: int, width: int) -> torch.Tensor:
        """The mask at a resolution that divides its own, or is a multiple of it."""
        have = tuple(self.mask.shape[1:])
        if len(have) != 2 or any(max(pair) % min(pair) for pair in zip(have, (height, width))):
            raise ValueError(
                f"the mask is for {have}, and {(height, width)} neither divides that nor is a multiple of it"
            )
        axes = (axis.resized(*pair) for axis, *pair in zip(self.grid, have, (height, width)))
        return self.on(Grid(*axes), (height, width))

    def on(self, grid: Grid, extents: tuple[int, int]) -> torch.Tensor:
        """The mask of a grid's cells, [N, *extents]."""
        return self.keep((grid, extents), lambda: self._on(grid, extents))

    def _on(self, grid: Grid, extents: tuple[int, int]) -> torch.Tensor:
        mask = self.mask if self.mask.dim() == 3 else self.mask[:, None]
        have = tuple(mask.shape[1:])
        if extents == have and (grid.place == self.grid.place or self.windows and grid.stride == self.grid.stride):
            return mask
        factors = None if self.windows else _blocks(grid, self.grid, have, extents)
        if factors:
            return make(ops.mask_pool, mask, *factors)
        repeats = [_repeats(*axes, *sizes) for *axes, sizes in zip(grid, self.grid, zip(have, extents))]
        if all(repeats):
            return mask.repeat_interleave(repeats[0], 1).repeat_interleave(repeats[1], 2)
        both = zip(grid, self.grid, extents, have)
        ranges = [spans(axis, cells, own, of, self.windows) for axis, own, cells, of in both]
        return make(functools.partial(_covered, ranges=ranges), mask)


def _blocks(grid: Grid, own: Grid, have: Sequence[int], extents: Sequence[int]) -> tuple[int, int] | None:
    """The blocks of a mask's pixels that a grid's cells are, if they begin at its first pixel."""
    factors = []
    for axis, mask, of, cells in zip(grid, own, have, extents):
        factor, rest = divmod(axis.step * mask.unit, axis.unit * mask.step)
        if rest or axis.offset * mask.unit != mask.offset * axis.unit or -(-of // max(factor, 1)) != cells:
            return None
        factors.append(factor)
    return tuple(factors)


def _repeats(axis: Axis, own: Axis, of: int, cells: int) -> int:
    """How many cells a mask's pixel becomes; 0 if they are no whole number."""
    factor, rest = divmod(own.step * axis.unit, own.unit * axis.step)
    same = not rest and axis.offset * own.unit == own.offset * axis.unit and of * factor == cells
    return factor if same else 0


def _covered(mask: torch.Tensor, ranges) -> torch.Tensor:
    """Cells over ranges of rows and columns, from the first to the last, with an active pixel."""
    marks = mask.bool()
    for axis, (first, last) in enumerate(ranges, 1):
        sums = F.pad(marks.int().cumsum(axis), (0, 0) * (2 - axis) + (1, 0))
        low, high = (torch.tensor(places, device=mask.device) for places in (first, last))
        marks = sums.index_select(axis, high + 1) > sums.index_select(axis, low)
    return marks


class _Compiled(threading.local):
    """Contexts entered in code that torch.compile traces, which cannot set context variables."""

    def __init__(self):
        self.entered: tuple = ()


class _Contexts:
    """Contexts that are entered and not left, in this thread and task. Each leaves by itself, in any order."""

    def __init__(self, name: str):
        self._entered: contextvars.ContextVar[tuple] = contextvars.ContextVar(name, default=())
        self._compiled = _Compiled()

    def enter(self, owner, value) -> None:
        if torch.compiler.is_compiling():
            self._compiled.entered = (*self._compiled.entered, (owner, value))
        else:
            self._entered.set((*self._entered.get(), (owner, value)))

    def leave(self, owner):
        """Takes out the last that this owner entered, and returns its value."""
        if torch.compiler.is_compiling():
            self._compiled.entered, value = _without(self._compiled.entered, owner)
        else:
            entered, value = _without(self._entered.get(), owner)
            self._entered.set(entered)
        return value

    def value(self):
        """What the innermost one holds; None outside of all."""
        entered = self._compiled.entered or self._entered.get()
        return entered[-1][1] if entered else None


def _without(entered: tuple, owner) -> tuple[tuple, object]:
    """Contexts without the last that an owner entered, and its value; None if it was in another thread or task."""
    for place in range(len(entered) - 1, -1, -1):
        if entered[place][0] is owner:
            return entered[:place] + entered[place + 1 :], entered[place][1]
    return entered, None


_shared, _spans, _fixed = (_Contexts(f"distile.{name}") for name in ("mask", "span", "fixed"))
_resolvers: list[list[torch.Tensor | None]] = []  # For `resolving`, in one thread at a time.


class fixed:
    """A context in which these masks do not change, and neither do those that mask units and the functions of this
    module make in it. On a GPU all calls in it, on one stream, share what they make of a mask, which otherwise each
    makes anew. On a CPU they always do.

        with distile.masks.fixed(m):
            y = second(first(x, m), m)

    A write by PyTorch's operators ends it for that mask, but in inference mode. No other write may happen.
    """

    def __init__(self, *masks: torch.Tensor):
        self._masks = [] if torch.compiler.is_compiling() else [mask for mask in masks if mask.is_cuda]

    def __enter__(self) -> None:
        _fixed.enter(self, list(self._masks))
        for mask in self._masks:
            ops._fix_mask(mask)

    def __exit__(self, *_) -> None:
        for mask in _fixed.leave(self) or ():
            ops._release_mask(mask)


def make(operator, like: torch.Tensor, *arguments, **keywords) -> torch.Tensor:
    """Calls an operator that makes a mask from a tensor, which is fixed in the context `fixed`."""
    made = None if torch.compiler.is_compiling() or not like.is_cuda else _fixed.value()
    if made is None:
        return operator(like, *arguments, **keywords)
    ops._fix_result(like, True)
    try:
        result = operator(like, *arguments, **keywords)
    finally:
        ops._fix_result(like, False)
    made.append(result)
    return result


class mask:
    """A context in which layers without a mask of their own take this one, each by its place over the image.

        with distile.mask(m):
            y = model(x)

    The mask is of the image's size, [N, H, W], or of tokens, [N, T]; `stride`, `offset`, `windows` and `threshold` are
    those of SharedMask. Where a layer's outputs are over the image is found by running the model once: in
    distile.convert by its example, or by distile.trace. Layers that were not found so take masks of just their output's
    size. With None, layers run without a mask. Masks by names, `distile.mask({"near": a, "mask": b})`, are for layers
    whose rule in distile.convert names one; other layers take "mask".

    It holds for this thread or task (contextvars): a thread starts without one.
    """

    def __init__(
        self, mask: torch.Tensor | SharedMask | dict[str, torch.Tensor | SharedMask | None] | None, **keywords
    ):
        self.shared = (
            {name: _share(one, keywords) for name, one in mask.items()}
            if isinstance(mask, dict)
            else _share(mask, keywords)
        )

    def __enter__(self) -> SharedMask | dict[str, SharedMask | None] | None:
        _shared.enter(self, self.shared)
        _spans.enter(self, recomputation.begin())
        return self.shared

    def __exit__(self, *_) -> None:
        _shared.leave(self)
        recomputation.end(_spans.leave(self))


def checkpoint_contexts() -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
    """The `context_fn` of torch.utils.checkpoint.checkpoint(..., use_reentrant=False): what is computed again has the
    mask that it had at first, wherever the backward pass runs."""
    return contextlib.nullcontext(), mask(_shared.value())


def is_set() -> bool:
    """Whether layers have the mask of a context here."""
    return _shared.value() is not None


def _share(mask: torch.Tensor | SharedMask | None, keywords: dict) -> SharedMask | None:
    if isinstance(mask, SharedMask) and keywords:
        raise ValueError(f"a SharedMask has its own {', '.join(keywords)}: give them where it is made")
    return mask if mask is None or isinstance(mask, SharedMask) else SharedMask(mask, **keywords)


def as_mask(mask: torch.Tensor) -> torch.Tensor:
    """A mask of type bool or uint8. Takes [N, 1, H, W] too, and other whole numbers: 0 is inactive."""
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"a mask is a tensor of PyTorch, not {type(mask).__name__}: give torch.as_tensor(mask)")
    if mask.dim() == 4 and mask.shape[1] == 1:
        mask = mask[:, 0]
    if mask.dtype in (torch.bool, torch.uint8):
        return mask
    if mask.is_floating_point() or mask.is_complex():
        raise ValueError(f"a mask of type {mask.dtype} does not say what is active: give `mask > 0.5`, or a threshold")
    return mask != 0


def resolve(
    mask: torch.Tensor | SharedMask | None, batch: int, *size: int, name: str = "mask", mapping: Layer = UNMAPPED
) -> torch.Tensor | None:
    """A layer's mask for a batch of outputs of this size: its own, or that of the context, by its name if there are
    several; None without either, and where `mapping` says that the output has none. Without a `size`, a layer has no
    positions, and no mask of a context."""
    if isinstance(mask, torch.Tensor):
        found = _for_batch(as_mask(mask), batch) if size else as_mask(mask)
    else:
        shared = mask
        if mask is None and size:
            if torch.is_grad_enabled():
                recomputation.check(_spans.value())
            shared = _shared.value()
            if shared is not None and torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
                _warn_of_export(shared)
        elif mask is not None and not isinstance(mask, (SharedMask, dict)):
            as_mask(mask)  # Says what is wrong.
        if isinstance(shared, dict):
            if name not in shared:
                names = ", ".join(map(repr, shared))
                raise ValueError(f"a layer takes the mask {name!r}, but distile.mask has {names}")
            shared = shared[name]
        found = None if shared is None else shared.given(mapping, batch, size)
    if _resolvers:
        _resolvers[-1].append(found)
    return found


def _warn_of_export(shared: SharedMask | dict[str, SharedMask | None]) -> None:
    given = shared.values() if isinstance(shared, dict) else [shared]
    if all(one is None or is_fake(one.mask) for one in given):
        return  # The program has the mask as an argument, or makes it.
    warnings.warn(
        "distile: the exported program keeps the mask of distile.mask as a constant; where calls have their own, let the "
        "model take it as an argument, and enter distile.mask(argument) in its forward()",
        stacklevel=3,
    )


def _for_batch(mask: torch.Tensor, batch: int) -> torch.Tensor:
    """A mask for a batch; one for a single image serves all."""
    have = mask.shape[0]
    if have == batch:
        return mask
    if have == 1:
        return mask.expand(batch, *mask.shape[1:])
    raise ValueError(
        f"a mask of {list(mask.shape)}, which is for a batch of {have}, does not fit an input with a batch of {batch}. "
        "Masks are [N, H, W], or [N, T] for tokens, of that batch or of 1 for all of it: give a mask [H, W] a batch by "
        "mask[None]. Give a layer whose input has another batch than the model's its own mask, or leave it dense"
    )


@contextlib.contextmanager
def resolving() -> Iterator[list[torch.Tensor | None]]:
    """Collects the masks that layers take inside."""
    found: list[torch.Tensor | None] = []
    _resolvers.append(found)
    try:
        yield found
    finally:
        _resolvers.remove(found)


def dilate(mask: torch.Tensor, radius: int | Sequence[int]) -> torch.Tensor:
    """Pixels with an active pixel at most `radius` rows and columns away."""
    radius_h, radius_w = (radius, radius) if isinstance(radius, int) else radius
    return make(ops.mask_dilate, mask, radius_h, radius_w)


def erode(mask: torch.Tensor, radius: int | Sequence[int]) -> torch.Tensor:
    """Pixels without an inactive pixel of the image at most `radius` rows and columns away."""
    return ~dilate(~mask.bool(), radius)


def pool(mask: torch.Tensor, factor: int | Sequence[int]) -> torch.Tensor:
    """One pixel for each block of `factor` x `factor` pixels, or of (rows, columns) pixels: active if any of them
    is."""
    factor_h, factor_w = (factor, factor) if isinstance(factor, int) else factor
    return make(ops.mask_pool, mask, factor_h, factor_w)


def difference(a: torch.Tensor, b: torch.Tensor, threshold: float = 0) -> torch.Tensor:
    """The pixels of images, or the tokens, that differ by more than the threshold in any channel."""
    return make(ops.mask_difference, a, b, threshold)


def needed_input(
    mask: torch.Tensor, size: Sequence[int], *, kernel, stride=1, dilation=1, padding=0, kind: str = "conv"
) -> torch.Tensor:
    """The pixels of an input of height and width `size` that the active outputs of a layer read."""
    return make(
        ops.mask_needed_input,
        mask,
        size,
        kernel=_pair(kernel),
        stride=_pair(stride),
        dilation=_pair(dilation),
        padding=_pair(padding),
        kind=KINDS.index(kind),
    )


def affected_output(
    mask: torch.Tensor, size: Sequence[int], *, kernel, stride=1, dilation=1, padding=0, kind: str = "conv"
) -> torch.Tensor:
    """The outputs of a layer, of height and width `size`, that read an active pixel of its input."""
    return make(
        ops.mask_affected_output,
        mask,
        size,
        kernel=_pair(kernel),
        stride=_pair(stride),
        dilation=_pair(dilation),
        padding=_pair(padding),
        kind=KINDS.index(kind),
    )


KINDS = ("conv", "transposed", "upsampled")


def _pair(value) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
