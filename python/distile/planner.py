"""Output tensors for a chain of layers, from a few buffers that take turns."""

from __future__ import annotations

import ctypes
import functools
import weakref

import torch
from torch.utils.dlpack import from_dlpack

from ._library import ops
from .masks import as_mask

CLEARINGS = ("written", "all", "background")

_NAME = b"dltensor"  # A capsule keeps only its address.
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Planner:
    """Tensors to give to layers as `out`: zero wherever the layer writes nothing, without an allocation or a full clear
    for each.

        planner = distile.Planner()
        hidden = first(x, mask, out=planner.next(mask, 256))
        result = second(hidden, mask, out=planner.next(mask, 256))

    A few buffers take turns, so a tensor is valid until the `buffers - 1`th call after the one that gave it. It aliases
    its buffer, which lives as long as any such tensor. Several threads may call; on a GPU, streams that take turns must
    wait for each other, as for any memory that is used again.

    Args:
        buffers: how many take turns, 2 to 64. 3 are enough if each layer reads the output before it only.
        clearing: "written" clears, when it hands out a buffer, the pixels that were written and will not be again;
            "all" clears every pixel; "background" clears what was written as soon as the buffer is free, on a thread,
            or on a GPU a stream, of its own.
        device: of the masks and the tensors; PyTorch's default without one.
    """

    def __init__(self, *, buffers: int = 3, clearing: str = "written", device: torch.device | str | None = None):
        if clearing not in CLEARINGS:
            raise ValueError(f"there is no clearing {clearing!r}; there are {', '.join(CLEARINGS)}")
        if not 2 <= buffers <= 64:
            raise ValueError(f"a planner has 2 to 64 buffers, not {buffers}")
        like = torch.empty(0, device=device)
        self._options = {"buffers": buffers, "clearing": clearing, "device": like.device}
        if like.device.type not in ("cpu", "cuda"):
            raise ValueError(f"a planner is for a CPU or an NVIDIA GPU, not for {like.device}")
        self._number = ops._planner_make(like, buffers, CLEARINGS.index(clearing))
        weakref.finalize(self, ops._planner_free, self._number).atexit = False

    @torch.compiler.disable
    def next(
        self, mask: torch.Tensor, channels: int, *, dtype: torch.dtype = torch.float32, whole: bool = False
    ) -> torch.Tensor:
        """The output of a layer with this mask: [N, channels, H, W] with channels innermost for a mask [N, H, W], or
        [N, T, channels] for [N, T]. The layer writes the active pixels, which hold anything before, and no others. With
        `whole`, all of the tensor is zero, and any pixel may be written. torch.compile leaves this call out of its
        graphs."""
        address = ops._planner_next(as_mask(mask), self._number, channels, dtype, whole)
        return from_dlpack(_capsule(address, _NAME, None))

    @property
    def nbytes(self) -> int:
        """The size of the buffers now."""
        return ops._planner_bytes(self._number)

    def __reduce__(self):
        """A copy has buffers of its own."""
        return functools.partial(Planner, **self._options), ()
