"""What is there: versions, devices, types, PolyKernels and the compiler. Works without PyTorch, too."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import platform

from . import _onnxruntime, on_demand
from .compiler import TENSOR_CORES
from ._facts import FLOAT_TYPES, QUANTIZED_TYPES
from .toolchain import compiler_folder, cuda_compiler, why_no_compiler, why_no_cuda_compiler

# What PolyKernels have code for, as Linux calls it.
CPU_FEATURES = (
    "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx_vnni", "avx512_vnni", "amx_bf16", "amx_fp16", "amx_int8",
    "asimd", "asimdhp", "asimddp",
)  # fmt: skip


WITHOUT_COMPILER = "other shapes than those that ship run slower code for any shape, or dense"


def overview() -> dict:
    """What `python -m distile --json` prints, without the demonstration."""
    from . import __version__

    compiler = compiler_folder()
    return {
        "distile": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "onnxruntime": _version("onnxruntime"),
        "cpu": _cpu(),
        "gpus": _gpus(),
        "types": [*FLOAT_TYPES, *QUANTIZED_TYPES],
        "polykernels": _polykernels(),
        "compiler": compiler and str(compiler),
        "no_compiler": None if compiler else why_no_compiler(),
        **_tensor_cores(compiler),
        "build": on_demand.when(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> dict:
    found: dict[str, str] = {}
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    except OSError:
        pass  # Another system.
    flags = found.get("flags", found.get("Features", "")).split()
    return {
        "name": found.get("model name") or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "features": [feature for feature in CPU_FEATURES if feature in flags],
    }


def _gpus() -> list[dict]:
    if not importlib.util.find_spec("torch"):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    return [
        {"name": one.name, "capability": f"{one.major}.{one.minor}"}
        for one in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]


def _tensor_cores(compiler: pathlib.Path | None) -> dict:
    """What compiles code for tensor cores, or why nothing does."""
    if compiler and not (compiler / TENSOR_CORES).is_file():
        return {"cuda_compiler": None, "no_cuda_compiler": "the compiler was built without kernels for tensor cores"}
    try:
        return {"cuda_compiler": cuda_compiler(), "no_cuda_compiler": why_no_cuda_compiler()}
    except RuntimeError as error:
        return {"cuda_compiler": None, "no_cuda_compiler": str(error)}


def _polykernels() -> dict:
    """The PolyKernels that ship, by device, and those in the cache folder."""
    folder = _onnxruntime.cache_folder()
    cached = list(folder.glob("*.so"))
    return {
        "shipped": {device: _onnxruntime.shipped(device) for device in _onnxruntime.DEVICES},
        "cached": len(cached),
        "cached_bytes": sum(path.stat().st_size for path in cached),
        "cache_folder": str(folder),
    }


def text(found: dict) -> str:
    """The overview for people."""
    cpu, kernels = found["cpu"], found["polykernels"]
    gpus = [f"{gpu['name']} (compute capability {gpu['capability']})" for gpu in found["gpus"]]
    shipped = [f"{len(names)} for {device}" for device, names in kernels["shipped"].items() if names]
    versions = f"PyTorch {found['torch'] or 'not installed'}, ONNX Runtime {found['onnxruntime'] or 'not installed'}"
    rows = {
        "distile": f"{found['distile']} (Python {found['python']}, {versions})",
        "CPU": f"{cpu['name']}, {cpu['cores']} cores: {' '.join(cpu['features']) or cpu['architecture']}",
        "GPUs": ", ".join(gpus) or "none that PyTorch finds",
        "types": ", ".join(found["types"]),
        "PolyKernels": f"shipped: {', '.join(shipped) or 'none'}; cached: {kernels['cached']} "
        f"({kernels['cached_bytes'] / 1e6:.0f} MB in {kernels['cache_folder']})",
        "compiler": found["compiler"] or f"not found ({found['no_compiler']}): {WITHOUT_COMPILER}",
        "tensor cores": found["cuda_compiler"] or f"new PolyKernels have no code for them: {found['no_cuda_compiler']}",
        "set_build": found["build"],
    }
    if not (gpus and found["compiler"]):
        del rows["tensor cores"]
    return "\n".join(f"{name + ':':14}{value}" for name, value in rows.items())
