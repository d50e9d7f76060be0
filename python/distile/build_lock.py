"""One process at a time builds a file. A killed one leaves neither a lock nor half a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

_held: set[int] = set()


class BuildError(RuntimeError):
    """Why PolyKernels could not be built."""


@contextlib.contextmanager
def writing_into(folder: pathlib.Path) -> Iterator[None]:
    """Raises BuildError that says what to do where a folder of PolyKernels cannot be written."""
    try:
        yield
    except BlockingIOError:
        raise  # It can be, by others.
    except OSError as error:
        raise BuildError(
            f"PolyKernels cannot be written into {folder}: {error.strerror or error}; name another folder in the "
            "environment variable DISTILE_CACHE"
        ) from None


@contextlib.contextmanager
def building(target: pathlib.Path, wait: bool = True) -> Iterator[pathlib.Path | None]:
    """An empty folder beside `target` in which to build it, removed in the end; None if the target is there. Waits
    while another thread or process builds it, or without `wait` raises BlockingIOError."""
    with writing_into(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(target.with_suffix(".lock"), wait):
        if target.is_file():
            yield None
            return
        # What a killed process left. Its compiler may still write there, so this folder has another name.
        for left in target.parent.glob(f"{target.stem}.*.building"):
            shutil.rmtree(left, ignore_errors=True)
        with writing_into(target.parent):
            made = tempfile.TemporaryDirectory(prefix=f"{target.stem}.", suffix=".building", dir=target.parent)
        with made as folder:
            yield pathlib.Path(folder)


@contextlib.contextmanager
def one_of(places: int, folder: pathlib.Path) -> Iterator[None]:
    """Holds one of some places, which all processes that build in a folder share; raises BlockingIOError if none is
    free."""
    with writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as held:
        for place in range(places):
            try:
                held.enter_context(_locked(folder / f"place{place}.lock", wait=False))
                break
            except BlockingIOError:
                if place == places - 1:
                    raise
        yield


@contextlib.contextmanager
def _locked(path: pathlib.Path, wait: bool) -> Iterator[None]:
    """Holds the lock on a file, which stays: the system frees the lock of a process that ends."""
    with writing_into(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _held.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _leave_to_parent() -> None:
    # A lock lasts until every process that inherited it has closed it.
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_leave_to_parent)
