"""How GPUs multiply float32."""

from __future__ import annotations

from ._library import ops

MATHS = ("default", "float32", "tf32")


_math = MATHS[0]


def math() -> str:
    """What set_math said last."""
    return _math


def set_math(math: str) -> str:
    """How NVIDIA GPUs multiply float32 in later calls of all threads (docs/cuda.md, Numerics).

    "default": convolutions may multiply in TF32, linear layers and attention may not. "float32": none may. "tf32": all
    may. What was captured in a CUDA graph stays as it is. PyTorch's own operators have torch.backends. Returns what it
    was before.
    """
    global _math
    if math not in MATHS:
        raise ValueError(f"there is no math {math!r}; there are {', '.join(MATHS)}")
    ops._set_math(MATHS.index(math))
    before, _math = _math, math
    return before
