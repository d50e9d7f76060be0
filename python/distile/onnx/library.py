"""The library of operators for ONNX Runtime."""

from __future__ import annotations

import ctypes
import pathlib
import warnings

import numpy as np

from .. import on_demand
from .._facts import FLOAT_TYPES
from .._onnxruntime import cache_folder, library, library_path, version
from ..description import Operator
from ..weight_zeros import TWO_FOUR, typical_of
from .keys import key_of, operator_of

OIHW, IO = 1, 3  # As distile.h numbers the orders of weights, those of linear layers too.
FIRST_CHANNELS = 64


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
    numbers, zeros = (ctypes.c_int32 * len(numbers))(*numbers), (operator.skips_zeros, operator.zeros == TWO_FOUR)
    types = input_type, output_type
    return bool(library().distile_onnxruntime_has_polykernel(device, kind, *types, numbers, *map(int, zeros)))


def keeps_pattern(weights: np.ndarray, order: int, operator: Operator) -> bool:
    """Whether a filter has the pattern 2:4. `order`: OIHW, also for [out, in], or IO."""
    # Most lack it in the first output channels, and are not read further.
    first = weights[:FIRST_CHANNELS] if order == OIHW else weights[:, :FIRST_CHANNELS]
    return _keeps_pattern(first, order, operator) and _keeps_pattern(weights, order, operator)


def _keeps_pattern(weights: np.ndarray, order: int, operator: Operator) -> bool:
    filter = np.ascontiguousarray(weights)
    outputs, inputs = filter.shape[:2] if order == OIHW else filter.shape[::-1]
    extents = outputs, inputs, *(filter.shape[2:] or (1, 1))
    address, type_of = ctypes.c_void_p(filter.ctypes.data), lambda name: FLOAT_TYPES[name][0]
    return library().distile_onnxruntime_keeps_two_of_four(
        address, type_of(filter.dtype.name), order, *extents, type_of(operator.dtype)
    ) > 0


_ASK = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_float, ctypes.c_int32
)


@_ASK
def _ask(numbers, count: int, zeros: float, two_of_four: int) -> int:
    """Called by sessions that lack a PolyKernel, with the share of its weights that are 0, and whether they have the
    pattern 2:4. Returns an Answer (onnxruntime/wanted.h)."""
    try:
        if not on_demand.is_asked():
            return 0
        operator, typical = operator_of(numbers[:count]), typical_of(zeros, bool(two_of_four))
        operator = operator.built_for(typical)
        if on_demand.ask(operator, typical if operator.skips_zeros else None, lambda: (cache_folder(), version())):
            return 1
        return 2 if on_demand.is_pending(operator) else 0
    except Exception as error:  # None can pass through the library.
        warnings.warn(f"distile: a PolyKernel that a session lacks was not asked for: {error}", stacklevel=2)
        return 0
