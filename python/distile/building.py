"""Compiles PolyKernels for operators that have none, into the cache folder."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import warnings
from collections.abc import Callable

import torch

from . import numerics, polykernels
from ._library import ops
from .compiler import Machine, compile_polykernel, warn_without_tensor_cores
from .operators import Operator, why_not_built
from .own_weights import OwnWeightCalls
from .toolchain import find_compiler


def needed_by(model: torch.nn.Module, *example, mask=None) -> list[Operator]:
    """The operators of a model for which no PolyKernel exists, or none for its weights (own_weights.py). Runs the model
    once, on an example and its masks."""
    from . import masks

    with polykernels.recording() as found, torch.no_grad(), OwnWeightCalls() as own:
        if mask is None:
            model(*example)
        else:
            with masks.mask(mask):
                model(*example)
    polykernels.note_own_weights(own.found)
    for operator in own.found:
        polykernels.load(operator)
    missing = [operator for operator in found if not any(way in own.found for way in operator.ways)]
    more = [operator for operator in own.found if not polykernels.is_built(operator)]
    return list(dict.fromkeys([*missing, *more]))


def build(*what, mask=None, measure: bool = False, progress: Callable[[str], None] | None = None) -> list[Operator]:
    """Compiles PolyKernels into the cache folder, where every later process finds them: for CPUs of this architecture,
    and for NVIDIA GPUs those of operators that ran there.

    `what` is operators, as distile.missing() lists them, or a model and its example inputs, which then runs once, in
    the context of `mask` if one is given. Each takes some seconds of a CPU core, and all cores are used. With `measure`,
    the times by which a PolyKernel chooses its variant are measured here, one operator after the other, which takes some
    seconds more for each and wants a machine that does nothing else; else they are estimates. `progress` is called with
    a line of text after each. A warning names operators that no PolyKernel can compute. Those in the folder are not
    built again, so after an interruption the same call goes on.
    Returns the operators built. Raises FileNotFoundError without a compiler, and RuntimeError with its message if one
    fails.
    """
    if what and isinstance(what[0], torch.nn.Module):
        operators = _needed_by_call(*what, mask=mask)
    else:
        for one in what:
            if not isinstance(one, Operator):
                raise TypeError(
                    "distile.build takes a model and its example inputs, or operators, as "
                    f"distile.build(*distile.missing()), not {type(one).__name__}"
                )
        operators = list(what)
    math = numerics.math()
    operators = [one.built_for(polykernels.typical_size(one), math) for one in operators if _can_be_built(one)]
    for operator in operators:
        if polykernels.is_built(operator):
            polykernels.forget(operator)
    operators = [operator for operator in operators if not polykernels.is_built(operator)]
    if not operators:
        return []
    folder = find_compiler("distile.build()")
    warn_without_tensor_cores(operators, folder)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        machine = Machine() if measure else None
        running = {pool.submit(_build, operator, folder, machine): operator for operator in operators}
        try:
            for number, future in enumerate(concurrent.futures.as_completed(running), 1):
                future.result()
                if progress:
                    progress(f"PolyKernel {number} of {len(operators)}: {running[future]}")
        except BaseException:
            pool.shutdown(cancel_futures=True)  # Compilations that have started still end.
            raise
    return operators


def _needed_by_call(model: torch.nn.Module, *example, mask) -> list[Operator]:
    """needed_by(), with a warning of a model that ran without masks, and so needs nothing."""
    from . import masks
    from .nn_base import Masked

    if not example:
        raise TypeError("distile.build takes a model and its example inputs: distile.build(model, x, mask=mask)")
    with masks.resolving() as taken:
        operators = needed_by(model, *example, mask=mask)
    if not operators and all(one is None for one in taken):
        is_masked = any(isinstance(layer, Masked) for layer in model.modules())
        why = (
            "no layer ran with a mask: give one, as distile.build(model, x, mask=mask)"
            if is_masked
            else "the model has no masked layer: distile.convert(model.eval(), example=x) makes them"
        )
        warnings.warn(f"distile.build: {why}", stacklevel=4)
    return operators


def _can_be_built(operator: Operator) -> bool:
    why = why_not_built(operator)
    if why:
        warnings.warn(f"distile.build: {operator} stays dense: {why}", stacklevel=3)
    return not why


def _build(operator: Operator, compiler: pathlib.Path, machine: Machine | None) -> None:
    # A compiler of another version makes what this library cannot run.
    compile_polykernel(
        operator,
        polykernels.typical_size(operator),
        polykernels.shared_object(operator),
        compiler,
        ops._load,
        machine,
    )
    polykernels.forget(operator)
