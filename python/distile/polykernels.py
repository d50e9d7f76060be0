"""PolyKernels beyond those that ship: shared objects in a cache folder, built by distile.build() or when needed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import threading
import warnings

import torch

from . import numerics, on_demand
from ._library import ops
from .description import NARROW
from .operators import Operator, why_not_built
from .weight_zeros import FORMS

_lock = threading.Lock()
_tried: set[Operator] = set()
_loaded: set[Operator] = set()
_broken: set[str] = set()  # Files that could not be loaded.
_missing: dict[Operator, dict[str, int]] = {}
_own_weights: dict[Operator, dict[str, int]] = {}
_warned = False
_recorders = 0  # How many collect what runs dense.
# A thread that holds the lock does not live in the child of a fork.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_OWN_WEIGHTS = dict.fromkeys((NARROW, *(form.ending for form in FORMS)))  # How the names of their operators end.
NOT_ASKED = "no PolyKernel (distile.build compiles one)"


def cache_folder() -> pathlib.Path:
    """Where PolyKernels lie: $DISTILE_CACHE, or in the user's cache. Code found there is run: keep it private. Raises
    RuntimeError where neither is known."""
    root = os.environ.get("DISTILE_CACHE")
    if not root:
        try:
            root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "distile"
        except RuntimeError:
            raise RuntimeError(
                "distile: there is no home folder, so no cache folder for PolyKernels: name one in the environment "
                "variable DISTILE_CACHE"
            ) from None
    return pathlib.Path(root) / f"polykernels-{ops._polykernel_version()}-{platform.machine()}"


def shared_object(operator: Operator) -> pathlib.Path:
    """The file of an operator's PolyKernel, which may not exist."""
    return cache_folder() / f"{operator.name}.so"


def _files(operator: Operator) -> list[str]:
    """The existing files of an operator's PolyKernels: its own, and those that skip zeros and compute it too."""
    try:
        folder = str(cache_folder())  # Every first call comes here, and text is faster than paths.
    except RuntimeError:
        return []
    return [path for way in operator.ways if os.path.isfile(path := f"{folder}/{way.name}.so")]


def load(operator: Operator) -> bool:
    """Loads an operator's PolyKernels from the cache folder. False if there is none, or they were loaded before."""
    with _lock:
        if operator in _tried:
            return False
        _tried.add(operator)
        files = [path for path in _files(operator) if _load(path)]
        if files:
            _loaded.add(operator)
        return bool(files)


def _load(path: str) -> bool:
    """Loads a file of the cache folder. Warns if it cannot be: calls do what they do without it."""
    try:
        ops._load(path)
    except RuntimeError as error:
        _broken.add(path)
        warnings.warn(f"distile: {error}; remove the file, and distile.build makes it again", stacklevel=2)
        return False
    return True


def is_built(operator: Operator) -> bool:
    """Whether the file of an operator's PolyKernel is there. Removes one that could not be loaded."""
    path = shared_object(operator)
    if str(path) in _broken:
        _broken.discard(str(path))
        path.unlink(missing_ok=True)
    return path.is_file()


def load_own_weights() -> None:
    """Loads the PolyKernels in the cache folder that skip zeros or have weights of 16 bits: calls find those that ship
    before they ask for more. Warns of those that cannot be loaded: the import of the package must not fail."""
    try:
        paths = [path for ending in _OWN_WEIGHTS for path in cache_folder().glob(f"*{ending}.so")]
    except (OSError, RuntimeError):  # There is no home folder, or it cannot be read.
        return
    for path in paths:
        _load(str(path))


def note_own_weights(found: dict[Operator, dict[str, int]]) -> None:
    """Remembers the typical sizes of operators that could have PolyKernels for their weights."""
    with _lock:
        _own_weights.update(found)


def forget(operator: Operator) -> None:
    """Lets load() look for an operator's PolyKernel again."""
    with _lock:
        for one in operator.ways if operator in operator.plain.ways else (operator,):
            _tried.discard(one)
            _missing.pop(one, None)


def provide(operator: Operator | None, typical: dict[str, int], reason: str) -> bool:
    """Whether the PolyKernel of an operator that the library lacks is loaded now: from the cache folder, where
    distile.set_build may have it built. Else the call runs dense, which this notes."""
    if operator is None:
        _note_missing(None, typical, reason)
        return False
    built = operator.built_for(typical, numerics.math())
    # One that serves no other calls is looked for, built and missed by itself.
    operator = operator if built in operator.ways else built
    if _is_captured(operator):
        _note_missing(operator, typical, reason)
        return False
    if load(operator) or _build_on_demand(operator, typical):
        return True
    _note_missing(operator, typical, reason)
    return False


def _is_captured(operator: Operator) -> bool:
    """Whether a graph captures the call. The first call of a PolyKernel packs weights and makes memory, which a graph
    cannot capture."""
    return operator.device == "cuda" and torch.cuda.is_current_stream_capturing()


def find_or_note(operator: Operator) -> bool:
    """As provide(), for callers that run nothing in its place, or nothing dense: nobody is warned."""
    if load(operator) or _build_on_demand(operator, {}):
        return True
    with _lock:
        _missing.setdefault(operator, {})
    return False


_KEPT, _ONCE, _ALWAYS, _FORGOTTEN = range(4)  # General in csrc/twins.h.
_general = threading.local()


def takes_general_code(operator: Operator | None) -> bool:
    """Whether the library's code for any shape computes an operator that has no PolyKernel."""
    return operator is not None and operator.has_general_code and not getattr(_general, "runs", False)


@contextlib.contextmanager
def general_code(operator: Operator, typical: dict[str, int]):
    """An operator that has no PolyKernel runs by the library's code for any shape. Later calls do so without asking
    here, until a PolyKernel has come, or somebody collects what has none."""
    asked = operator.built_for(typical, numerics.math())
    keeps = not _recorders and on_demand.is_final(asked)
    _general.runs = True
    ops._allow_general(_ALWAYS if keeps else _ONCE)
    try:
        yield
    finally:
        ops._allow_general(_KEPT)
        _general.runs = False
        if keeps and (_recorders or not on_demand.is_final(asked)):  # It came, or somebody began, meanwhile.
            ask_again()


def ask_again() -> None:
    """Calls of operators that have no PolyKernel ask for one again."""
    ops._allow_general(_FORGOTTEN)


on_demand.on_change(ask_again)


def _build_on_demand(operator: Operator, typical: dict[str, int]) -> bool:
    if not on_demand.is_asked() or operator in _loaded or _is_captured(operator):
        return False
    if why := why_not_built(operator):
        on_demand.refuse(operator, why)
        return False
    asked = operator.built_for(typical, numerics.math())
    if _broken:
        for way in (operator, asked):
            is_built(way)  # Removes what was broken, so that it is built again.
    if not on_demand.ask(asked, typical, lambda: (cache_folder(), ops._polykernel_version())):
        return False
    forget(operator)
    return load(operator)


def _note_missing(operator: Operator | None, typical: dict[str, int], reason: str) -> None:
    """Remembers an operator that ran dense, and warns of the first, unless it is built on demand."""
    global _warned
    comes = operator is not None and on_demand.is_asked() and not why_not_built(operator)
    with _lock:
        if operator is not None and operator not in _loaded:  # Another thread may have loaded it meanwhile.
            _missing[operator] = _missing.get(operator) or typical
        warn = not (_warned or comes or _recorders or takes_general_code(operator))
        _warned = _warned or warn
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
    """The operators that ran so far and have no PolyKernel: by the library's code for any shape, or dense."""
    with _lock:
        return list(_missing)


def still_dense() -> dict[Operator, str]:
    """The operators that ran dense so far and still would, and why."""
    found = {operator: why_not_built(operator) or NOT_ASKED for operator in missing()}
    ready = [operator for operator in found if _files(operator)]
    found = {operator: why for operator, why in found.items() if not operator.has_general_code}
    return {operator: why for operator, why in {**found, **on_demand.still_dense()}.items() if operator not in ready}


def typical_size(operator: Operator) -> dict[str, int] | None:
    """The size at which a missing operator ran first, or one with weights of its own kind."""
    with _lock:
        return _own_weights.get(operator) or _missing.get(operator) or _missing.get(operator.plain)


@contextlib.contextmanager
def recording():
    """Collects the operators that have no PolyKernel inside, whether or not they ran before. None is warned of."""
    global _recorders
    with _lock:
        _recorders += 1
        before = dict(_missing)
        _missing.clear()
    ask_again()
    found: dict[Operator, dict[str, int]] = {}
    try:
        yield found
    finally:
        with _lock:
            _recorders -= 1
            found.update(_missing)
            _missing.update(before)
