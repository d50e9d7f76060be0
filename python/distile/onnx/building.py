"""Compiles the PolyKernels that a converted model lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .._onnxruntime import version
from ..build_process import check_version
from ..compiler import compile_polykernel, warn_without_tensor_cores
from ..description import Operator
from ..toolchain import find_compiler
from .conversion import Left, Replaced
from .library import has_polykernel, shared_object


def missing(report: list[Replaced | Left], device: str = "cpu") -> dict[Operator, dict[str, int]]:
    """The operators of a converted model without a PolyKernel for a device, "cpu" or "cuda", with a size at which each
    runs."""
    wanted = {}
    for row in report:
        if isinstance(row, Replaced) and row.operator:
            operator = row.operator.on(device)
            # What computes its weights may compute no others.
            wanted.setdefault((operator, operator.built_for(row.typical)), row.typical)
    return {one: typical for (one, built), typical in wanted.items() if not (has_polykernel(one) or has_polykernel(built))}


def running_dense(report: list[Replaced | Left], device: str = "cpu") -> dict[Operator, dict[str, int]]:
    """The operators of missing() for which the library has no code either: their nodes run dense, and then the mask."""
    return {one: typical for one, typical in missing(report, device).items() if not one.has_general_code}


def to_build(report: list[Replaced | Left], device: str = "cpu") -> dict[Operator, dict[str, int]]:
    """What build() compiles: missing(), and operators with pruned weights whose PolyKernel skips no zeros."""
    wanted = {}
    for row in report:
        if isinstance(row, Replaced) and row.operator:
            wanted.setdefault(row.operator.on(device).built_for(row.typical), row.typical)
    # One that skips zeros has code for all weights, too.
    wanted = {one: typical for one, typical in wanted.items() if one.skips_zeros or not wanted.keys() & set(one.ways[1:])}
    return {operator: typical for operator, typical in wanted.items() if not has_polykernel(operator)}


def build(
    report: list[Replaced | Left], progress: Callable[[str], None] = lambda line: None, device: str = "cpu"
) -> list[Operator]:
    """Compiles what a converted model lacks into the cache folder, where every later process finds it; each PolyKernel
    takes some seconds. Calls `progress` with a line of text before each. Returns the operators built. Raises
    FileNotFoundError without distile's compiler, and RuntimeError with its message if it fails."""
    wanted = to_build(report, device)
    if not wanted:
        return []
    folder = find_compiler("--build")
    warn_without_tensor_cores(list(wanted), folder)
    for number, (operator, typical) in enumerate(wanted.items(), 1):
        progress(f"PolyKernel {number} of {len(wanted)}: {operator}")
        check = functools.partial(check_version, version=version())
        compile_polykernel(operator, typical, shared_object(operator), folder, check)
    return list(wanted)
