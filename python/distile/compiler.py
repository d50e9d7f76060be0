"""distile's compiler: PolyKernels from operators, as shared objects."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable

from .description import Operator


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


def compile_polykernel(
    operator: Operator,
    typical: dict[str, int] | None,
    target: pathlib.Path,
    compiler: pathlib.Path,
    check: Callable[[str], None] | None = None,
) -> None:
    """Compiles the PolyKernel of an operator into a shared object, with the compiler in this folder. `typical` is the
    size at which it runs most; `check` is called with the path of the object and raises where it cannot be used. Raises
    RuntimeError with the compiler's message if it fails."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        folder = pathlib.Path(folder)
        (folder / "operator.json").write_text(json.dumps(operator.to_json(typical)))
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
        if check:
            check(str(folder / "built.so"))
        os.replace(folder / "built.so", target)


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
