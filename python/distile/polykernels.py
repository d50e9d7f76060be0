"""PolyKernels beyond those that ship: shared objects in a cache folder, built by distile.build()."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import threading
import warnings

from ._library import ops
from .operators import Operator, why_not_built

_lock = threading.Lock()
_tried: set[Operator] = set()
_missing: dict[Operator, dict[str, int]] = {}
_warned = False


def cache_folder() -> pathlib.Path:
    """Where PolyKernels lie: $DISTILE_CACHE, or in the user's cache. Code found there is run: keep it private."""
    root = (
        os.environ.get("DISTILE_CACHE")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "distile"
    )
    return pathlib.Path(root) / f"polykernels-{ops._polykernel_version()}-{platform.machine()}"


def shared_object(operator: Operator) -> pathlib.Path:
    """The file of an operator's PolyKernel, which may not exist."""
    return cache_folder() / f"{operator.name}.so"


def load(operator: Operator) -> bool:
    """Loads an operator's PolyKernel from the cache folder. False if there is none, or it was loaded before."""
    with _lock:
        if operator in _tried:
            return False
        _tried.add(operator)
        path = shared_object(operator)
        if not path.is_file():
            return False
        ops._load(str(path))
        return True


def forget(operator: Operator) -> None:
    """Lets load() look for an operator's PolyKernel again."""
    with _lock:
        _tried.discard(operator)
        _missing.pop(operator, None)


def note_missing(operator: Operator | None, typical: dict[str, int], reason: str) -> None:
    """Remembers an operator that ran dense, and warns of the first."""
    global _warned
    with _lock:
        if operator:
            _missing.setdefault(operator, typical)
        warn, _warned = not _warned, True
    if warn:
        what = f"no PolyKernel computes {operator}" if operator else reason
        why = operator and why_not_built(operator)
        warnings.warn(
            f"distile: {what}{f' ({why})' if why else ''}, so PyTorch's dense operator runs instead, and the mask "
            "after it. distile.missing() lists all such operators, and distile.build(*distile.missing()) compiles "
            "PolyKernels for those that can have one. This warning appears once.",
            stacklevel=3,
        )


def missing() -> list[Operator]:
    """The operators that ran dense so far because no PolyKernel computes them."""
    with _lock:
        return list(_missing)


def typical_size(operator: Operator) -> dict[str, int] | None:
    """The size at which a missing operator ran first."""
    with _lock:
        return _missing.get(operator)


@contextlib.contextmanager
def recording():
    """Collects the operators that run dense inside, whether or not they ran before."""
    with _lock:
        before = dict(_missing)
        _missing.clear()
    found: dict[Operator, dict[str, int]] = {}
    try:
        yield found
    finally:
        with _lock:
            found.update(_missing)
            _missing.update(before)
