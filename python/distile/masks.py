"""Masks: tensors of type bool, [N, H, W] for images and [N, T] for tokens, and the mask that a block shares."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from ._library import ops


class SharedMask:
    """A mask for layers of several resolutions: `at` gives it at each, and computes each once.

    At a lower resolution a pixel is active if any pixel of its block is; at a higher one, pixels are repeated.

    Tokens have the mask of an image if they are its square patches, row by row, after fewer class and register tokens
    than a row has patches. Those come first and are always active. At most one size of patches fits a number of tokens:
    a larger one makes fewer rows and columns, and so leaves more than a row over. The other way round, a mask of tokens
    serves images of one pixel a patch.
    """

    def __init__(self, mask: torch.Tensor):
        self.mask = as_mask(mask)
        self._at = {tuple(self.mask.shape[1:]): self.mask}

    def fixed(self) -> fixed:
        """A context in which the mask does not change."""
        return fixed(*self._at.values())

    def at(self, *size: int) -> torch.Tensor:
        """The mask for an output of height and width, or of a number of tokens."""
        found = self._at.get(size)
        if found is None:
            found = self._at[size] = self._resized(size)
        return found

    def _resized(self, size: tuple[int, ...]) -> torch.Tensor:
        have = tuple(self.mask.shape[1:])
        if len(have) == 2 and len(size) == 1:
            grid = _patches(have, size[0])
            if grid:
                leading = size[0] - grid[0] * grid[1]
                return F.pad(self.at(*grid).flatten(1), (leading, 0), value=1)
        if len(have) == 1 and len(size) == 2 and _leading(have[0], size) is not None:
            return self.mask[:, _leading(have[0], size) :].unflatten(1, size).contiguous()
        if len(size) == len(have) == 2:
            factors = [-(-have[axis] // size[axis]) for axis in (0, 1)]
            if all(-(-have[axis] // factors[axis]) == size[axis] for axis in (0, 1)):
                return make(ops.mask_pool, self.mask, *factors)
            if all(size[axis] % have[axis] == 0 for axis in (0, 1)):
                rows = self.mask.repeat_interleave(size[0] // have[0], 1)
                return rows.repeat_interleave(size[1] // have[1], 2)
        patches = len(size) == 1 and len(have) == 2
        what = "not the number of its patches" if patches else "neither a fraction nor a multiple of it"
        raise ValueError(
            f"the shared mask is for {have}, and a layer has an output of {size}: {what}. Give that layer its own "
            "mask, or leave it dense"
        )


def _leading(tokens: int, grid: Sequence[int]) -> int | None:
    """How many tokens come before those of a grid; None if the rest is no such grid."""
    count = tokens - grid[0] * grid[1]
    return count if 0 <= count < max(grid[1], 1) else None


def _patches(size: Sequence[int], tokens: int) -> tuple[int, int] | None:
    """The rows and columns of an image's patches that are so many tokens."""
    for patch in range(1, min(size) + 1):
        grid = size[0] // patch, size[1] // patch
        if not (size[0] % patch or size[1] % patch) and _leading(tokens, grid) is not None:
            return grid
    return None


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
        self._outer, _current.fixed = _current.fixed, self
        for mask in self._masks:
            ops._fix_mask(mask)

    def __exit__(self, *_) -> None:
        _current.fixed = self._outer
        for mask in self._masks:
            ops._release_mask(mask)

    def make(self, operator, like: torch.Tensor, *arguments, **keywords) -> torch.Tensor:
        """Calls an operator that makes a mask from a tensor."""
        if not like.is_cuda:
            return operator(like, *arguments, **keywords)
        ops._fix_result(like, True)
        try:
            made = operator(like, *arguments, **keywords)
        finally:
            ops._fix_result(like, False)
        self._masks.append(made)
        return made


class _Current(threading.local):
    shared: SharedMask | dict[str, SharedMask | None] | None = None
    fixed: fixed | None = None
    resolved: list[torch.Tensor | None] | None = None


_current = _Current()


def make(operator, like: torch.Tensor, *arguments, **keywords) -> torch.Tensor:
    """Calls an operator that makes a mask from a tensor, which is fixed in the context `fixed`."""
    context = None if torch.compiler.is_compiling() else _current.fixed
    call = operator if context is None else functools.partial(context.make, operator)
    return call(like, *arguments, **keywords)


class mask:
    """A context in which layers without a mask of their own take this one, each at its resolution.

        with distile.mask(m):
            y = block(x)

    With None, they run without a mask. Masks by names, `distile.mask({"near": a, "mask": b})`, are for layers whose
    rule in distile.convert names one; other layers take "mask".
    """

    def __init__(self, mask: torch.Tensor | SharedMask | dict[str, torch.Tensor | SharedMask | None] | None):
        self.shared = {name: _share(one) for name, one in mask.items()} if isinstance(mask, dict) else _share(mask)

    def __enter__(self) -> SharedMask | dict[str, SharedMask | None] | None:
        self._outer, _current.shared = _current.shared, self.shared
        return self.shared

    def __exit__(self, *_) -> None:
        _current.shared = self._outer


def _share(mask: torch.Tensor | SharedMask | None) -> SharedMask | None:
    return SharedMask(mask) if isinstance(mask, torch.Tensor) else mask


def as_mask(mask: torch.Tensor) -> torch.Tensor:
    """A mask of type bool. Takes [N, 1, H, W] too, and any type: 0 is inactive."""
    if mask.dim() == 4 and mask.shape[1] == 1:
        mask = mask[:, 0]
    return mask if mask.dtype in (torch.bool, torch.uint8) else mask != 0


def resolve(mask: torch.Tensor | SharedMask | None, *size: int, name: str = "mask") -> torch.Tensor | None:
    """A layer's mask: its own, or that of the context, by its name if there are several; None without either. Without
    a `size`, a layer has no positions, and no mask of a context."""
    if isinstance(mask, torch.Tensor):
        found = as_mask(mask)
    else:
        shared = _current.shared if mask is None and size else mask
        if isinstance(shared, dict):
            if name not in shared:
                names = ", ".join(map(repr, shared))
                raise ValueError(f"a layer takes the mask {name!r}, but distile.mask has {names}")
            shared = shared[name]
        found = None if shared is None else shared.at(*size)
    if _current.resolved is not None:
        _current.resolved.append(found)
    return found


@contextlib.contextmanager
def resolving() -> Iterator[list[torch.Tensor | None]]:
    """Collects the masks that layers take inside."""
    outer, _current.resolved = _current.resolved, []
    try:
        yield _current.resolved
    finally:
        _current.resolved = outer


def dilate(mask: torch.Tensor, radius: int | Sequence[int]) -> torch.Tensor:
    """Pixels with an active pixel at most `radius` rows and columns away."""
    radius_h, radius_w = (radius, radius) if isinstance(radius, int) else radius
    return make(ops.mask_dilate, mask, radius_h, radius_w)


def erode(mask: torch.Tensor, radius: int | Sequence[int]) -> torch.Tensor:
    """Pixels without an inactive pixel of the image at most `radius` rows and columns away."""
    return ~dilate(~mask.bool(), radius)


def pool(mask: torch.Tensor, factor: int | Sequence[int]) -> torch.Tensor:
    """One pixel for each block of so many pixels: active if any of them is."""
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
