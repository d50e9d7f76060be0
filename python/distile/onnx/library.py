"""The library of operators for ONNX Runtime."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib

from .._facts import ACTIVATIONS, FLOAT_TYPES, OPERATOR_KINDS, QUANTIZED_TYPES
from ..description import Operator

# A depthwise convolution has a generator of its own.
KINDS = OPERATOR_KINDS | {"masked_depthwise_conv2d": OPERATOR_KINDS["masked_conv2d"]}
DEVICES = {"cpu": 1, "cuda": 2}
TYPES = {name: number for name, (number, _) in (FLOAT_TYPES | QUANTIZED_TYPES).items()}


def library_path() -> pathlib.Path:
    """The shared object to register: $DISTILE_ONNXRUNTIME, or that of this package."""
    path = os.environ.get("DISTILE_ONNXRUNTIME")
    return pathlib.Path(path) if path else pathlib.Path(__file__).parent.parent / "distile_onnxruntime.so"


def session_options(threads: int | None = None):
    """New options of ONNX Runtime with which a session knows the operators. `threads`: those of the session, for
    which they choose how to work (default: one for each core)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
        options.add_session_config_entry("distile.threads", str(threads))
    options.register_custom_ops_library(str(library_path()))
    return options


@functools.cache
def _library():
    library = ctypes.CDLL(str(library_path()))
    library.distile_onnxruntime_cache_folder.restype = ctypes.c_char_p
    return library


def has_cuda() -> bool:
    """Whether the library has the part for NVIDIA GPUs."""
    return bool(_library().distile_onnxruntime_has_cuda())


def cache_folder() -> pathlib.Path:
    """Where PolyKernels lie that `convert --build` compiled. Code found there is run: keep it private."""
    return pathlib.Path(_library().distile_onnxruntime_cache_folder().decode())


def has_polykernel(operator: Operator) -> bool:
    """Whether the library or the cache folder has the operator's PolyKernel for its device."""
    params = dict(operator.params)
    numbers = _numbers(operator.generator, params)
    types = [TYPES[params["dtype"]], TYPES[params.get("output_dtype", params["dtype"])]]
    what = DEVICES[operator.device], KINDS[operator.generator], *types
    return bool(_library().distile_onnxruntime_has_polykernel(*what, (ctypes.c_int32 * len(numbers))(*numbers)))


def _numbers(generator: str, params: dict) -> list[int]:
    """The numbers of the operator's struct in polykernel.h."""
    if generator == "masked_attention":
        return [params["heads"], params["head_dim"], int(params["causal"])]
    end = [list(ACTIVATIONS).index(params["epilogue"]), int(params["residual"])]
    if generator == "masked_linear":
        return [params["in_channels"], params["out_channels"], *end]
    channels = [params["channels"]] * 3 if "channels" in params else [params["in_channels"], params["out_channels"]]
    steps = "scale" if generator == "masked_upsample_conv2d" else "stride"
    more = [params.get(f"output_padding_{axis}", 0) for axis in "hw"]
    return [
        *channels[:2],
        channels[0] if "channels" in params else params.get("groups", 1),
        *(params[f"{name}_{axis}"] for name in ("kernel", steps) for axis in "hw"),
        params["pad_top"],
        params["pad_bottom"] - more[0],
        params["pad_left"],
        params["pad_right"] - more[1],
        *(params[f"dilation_{axis}"] for axis in "hw"),
        *end,
    ]
