"""Loads the library for ONNX Runtime, without ONNX Runtime and ONNX: what it says of itself."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib

DEVICES = {"cpu": 1, "cuda": 2}  # As distile.h numbers them.


def library_path() -> pathlib.Path:
    """The shared object to register: $DISTILE_ONNXRUNTIME, or that of this package."""
    path = os.environ.get("DISTILE_ONNXRUNTIME")
    return pathlib.Path(path) if path else pathlib.Path(__file__).parent / "distile_onnxruntime.so"


@functools.cache
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library_path()))
    loaded.distile_onnxruntime_cache_folder.restype = ctypes.c_char_p
    loaded.distile_onnxruntime_linked_polykernels.restype = ctypes.c_char_p
    return loaded


def cache_folder() -> pathlib.Path:
    """Where PolyKernels lie that were compiled for it. Code found there is run: keep it private."""
    return pathlib.Path(library().distile_onnxruntime_cache_folder().decode())


def version() -> int:
    """The version of the PolyKernels that it runs."""
    return library().distile_onnxruntime_polykernel_version()


def shipped(device: str) -> list[str]:
    """The names of the PolyKernels in it for a device."""
    return library().distile_onnxruntime_linked_polykernels(DEVICES[device]).decode().split()
