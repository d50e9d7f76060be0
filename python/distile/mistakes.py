"""What users of commands and rules get wrong, and how they are told."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import warnings
from collections.abc import Iterable, Iterator

from .build_lock import BuildError


@contextlib.contextmanager
def told(parser: argparse.ArgumentParser) -> Iterator[None]:
    """What is wrong with files and options, and why a build failed, is text and status 2, as for argparse's own errors,
    without the usage above it."""
    try:
        yield
    except (OSError, ValueError, BuildError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def density_of(text: str) -> float | None:
    """The density that an option says; None for a file. Raises ValueError for one that is none."""
    try:
        density = float(text)
    except ValueError:
        return None
    if not 0 <= density <= 1:
        raise ValueError(f"--masks {text}: a density is from 0 to 1; .3 is 3 of 10 pixels")
    return density


def check_device(device: str) -> None:
    """Raises ValueError for a device that PyTorch does not find."""
    import torch

    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from None


def warn_of_unmatched(patterns: Iterable[str], names: Iterable[str], what: str, stacklevel: int) -> None:
    """A rule that matches nothing would be without effect unseen."""
    names = list(names)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            warnings.warn(f"distile: the rule {pattern!r} matches no {what} of the model", stacklevel=stacklevel + 1)
