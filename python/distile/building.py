"""Compiles PolyKernels for operators that have none, into the cache folder."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable

import torch

from . import polykernels
from ._library import ops
from .operators import Operator


def compiler_folder() -> pathlib.Path | None:
    """The folder lib/distile of an installation with its compiler (docs/install.md): $DISTILE_COMPILER, or beside the
    command `distile` on the PATH; None without one."""
    candidates = [os.environ.get("DISTILE_COMPILER")]
    command = shutil.which("distile")
    if command:
        candidates.append(os.path.dirname(os.path.realpath(command)))
    for candidate in candidates:
        if candidate and (pathlib.Path(candidate) / "distile_builder").is_file():
            return pathlib.Path(candidate)
    return None


def needed_by(model: torch.nn.Module, *example, mask=None) -> list[Operator]:
    """The operators of a model for which no PolyKernel exists. Runs the model once, on an example and its masks."""
    from . import masks

    with polykernels.recording() as found, torch.no_grad():
        if mask is None:
            model(*example)
        else:
            with masks.mask(mask):
                model(*example)
    return list(found)


def build(*what, mask=None, progress: Callable[[str], None] | None = None) -> list[Operator]:
    """Compiles PolyKernels into the cache folder, where every later process finds them: for CPUs of this architecture,
    and for NVIDIA GPUs those of operators that ran there.

    `what` is operators, as distile.missing() lists them, or a model and its example inputs, which then runs once, in
    the context of `mask` if one is given. Each takes some seconds, and `progress` is called with a line of text before
    it. Those in the folder are not built again, so after an interruption the same call goes on. Returns the operators
    built. Raises FileNotFoundError without a compiler, and RuntimeError with its message if one fails.
    """
    operators = needed_by(*what, mask=mask) if what and isinstance(what[0], torch.nn.Module) else list(what)
    for operator in operators:
        if polykernels.shared_object(operator).is_file():
            polykernels.forget(operator)
    operators = [operator for operator in operators if not polykernels.shared_object(operator).is_file()]
    if not operators:
        return []
    folder = compiler_folder()
    if folder is None:
        raise FileNotFoundError(
            "distile.build() needs distile's compiler: install distile (docs/install.md) and put its "
            "command `distile` on the PATH, or set DISTILE_COMPILER to its folder lib/distile"
        )
    for number, operator in enumerate(operators, 1):
        if progress:
            progress(f"PolyKernel {number} of {len(operators)}: {operator}")
        _build(operator, folder)
    return operators


def _build(operator: Operator, compiler: pathlib.Path) -> None:
    target = polykernels.shared_object(operator)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        folder = pathlib.Path(folder)
        (folder / "operator.json").write_text(json.dumps(operator.to_json(polykernels.typical_size(operator))))
        _run(
            [
                compiler / "distile_builder",
                "build",
                "--operator",
                folder / "operator.json",
                "--symbol",
                "distile_built",
                "--object",
                folder / "built.o",
                "--header",
                folder / "built.h",
                "--folder",
                folder / "parts",
                *_backend_options(operator, compiler),
            ],
            operator,
        )
        compile = [*os.environ.get("CC", "cc").split(), "-shared", "-o", folder / "built.so", folder / "built.o", "-lm"]
        _run(compile, operator)
        ops._load(str(folder / "built.so"))  # A compiler of another version made what this library cannot run.
        os.replace(folder / "built.so", target)
    polykernels.forget(operator)


def _backend_options(operator: Operator, compiler: pathlib.Path) -> list[str]:
    if operator.device == "cpu":
        return []
    headers = pathlib.Path(os.environ.get("DISTILE_CUTLASS") or compiler / "cutlass") / "cute" / "tensor.hpp"
    tensor_cores = headers.is_file() and shutil.which(os.environ.get("CUDACXX") or "nvcc")
    return ["--backend", operator.device, *(["--tensor-cores"] if tensor_cores else [])]


def _run(command, operator: Operator) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"no PolyKernel could be built for {operator}: {done.stderr.strip() or done.stdout.strip()}")
