"""When the library packs the weights of modules again."""

from __future__ import annotations

import torch

from ._library import ops

CONVERTED = "_float32"  # Where vectors.py keeps its copies in a module.
CHECKS = ("contents", "version")

_check = CHECKS[0]


def set_weights_check(check: str) -> str:
    """How later calls of all threads find out that the weights of a module were written, and must be packed again.

    "contents": on a CPU, each call reads them, which finds every write. "version": by PyTorch's count of writes, which
    costs nothing, but misses those through `.data`, a view of NumPy or a pointer. On a GPU it is always the latter; after
    other writes, call distile.forget(). Returns what it was before.
    """
    global _check
    if check not in CHECKS:
        raise ValueError(f"there is no check {check!r}; there are {', '.join(CHECKS)}")
    ops._check_contents(check == "contents")
    before, _check = _check, check
    return before


def counts_writes(parameter: torch.Tensor) -> bool:
    """Whether PyTorch's count alone says that a parameter was written."""
    return _check == "version" or parameter.is_cuda


def forget(model: torch.nn.Module) -> None:
    """Frees the packed weights of a model's modules, and what was converted of others. Their next calls do that again."""
    for module in model.modules():
        module.__dict__.pop(CONVERTED, None)
        if hasattr(module, "_place"):
            ops._free_weights(module._place.number)
