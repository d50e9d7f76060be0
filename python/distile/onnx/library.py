"""The library of operators for ONNX Runtime."""

from __future__ import annotations

import ctypes
import pathlib
import warnings

from .. import on_demand
from .._onnxruntime import cache_folder, library, library_path, version
from ..description import Operator
from ..weight_zeros import typical_of
from .keys import key_of, operator_of


def session_options(threads: int | None = None):
    """New options of ONNX Runtime with which a session knows the operators, and has PolyKernels built that it lacks as
    distile.onnx.set_build says. `threads`: those of the session, for which they choose how to work (default: one for
    each core)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
        options.add_session_config_entry("distile.threads", str(threads))
    options.register_custom_ops_library(str(library_path()))
    library().distile_onnxruntime_set_ask(_ask)
    return options


def has_cuda() -> bool:
    """Whether the library has the part for NVIDIA GPUs."""
    return bool(library().distile_onnxruntime_has_cuda())


def shared_object(operator: Operator) -> pathlib.Path:
    """The file of an operator's PolyKernel, which may not exist."""
    return cache_folder() / f"{operator.name}.so"


def has_polykernel(operator: Operator) -> bool:
    """Whether the library or the cache folder has the operator's PolyKernel for its device."""
    device, input_type, output_type, _, kind, *numbers = key_of(operator)
    numbers, skips = (ctypes.c_int32 * len(numbers))(*numbers), int(operator.skips_zeros)
    return bool(library().distile_onnxruntime_has_polykernel(device, kind, input_type, output_type, numbers, skips))


_ASK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_float)


@_ASK
def _ask(numbers, count: int, zeros: float) -> int:
    """Called by sessions that lack a PolyKernel, with the share of its weights that are 0. Returns an Answer
    (onnxruntime/wanted.h)."""
    try:
        if not on_demand.is_asked():
            return 0
        operator, typical = operator_of(numbers[:count]), typical_of(zeros)
        operator = operator.built_for(typical)
        if on_demand.ask(operator, typical if operator.skips_zeros else None, lambda: (cache_folder(), version())):
            return 1
        return 2 if on_demand.is_pending(operator) else 0
    except Exception as error:  # None can pass through the library.
        warnings.warn(f"distile: a PolyKernel that a session lacks was not asked for: {error}", stacklevel=2)
        return 0
