"""distile's compiler: PolyKernels from operators, as shared objects."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable

from .build_lock import BuildError, building, writing_into
from .description import Operator
from .toolchain import cuda_compiler, environment, why_no_cuda_compiler

TENSOR_CORES = "distile_tensor_core.o"  # The file of a compiler with kernels for tensor cores.
_told: set[str] = set()  # Reasons.

FULL = 1 << 20  # Bytes: with less left, a compiler that fails does so for them.

# Runs words with environment variables.
Run = Callable[[list[str], dict[str, str]], subprocess.CompletedProcess[str]]


def _run_as_this(words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=variables, capture_output=True, text=True, check=False)


class CompilerError(BuildError):
    """What the compiler says of an operator. `reason` does not name it."""

    def __init__(self, operator: Operator, reason: str):
        super().__init__(f"no PolyKernel could be built for {operator}: {reason}")
        self.reason = reason


def reason_of(error: Exception) -> str:
    """Why a build failed, for those who name the operator themselves."""
    return error.reason if isinstance(error, CompilerError) else str(error) or type(error).__name__


class Machine:
    """This machine, on which others compile at the same time, but measure only alone."""

    def __init__(self):
        self._changed = threading.Condition()
        self._sharing, self._alone = 0, False

    @contextlib.contextmanager
    def shared(self):
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self):
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True  # From now on nobody begins to share.
            self._changed.wait_for(lambda: self._sharing == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


def compile_polykernel(
    operator: Operator,
    typical: dict[str, int] | None,
    target: pathlib.Path,
    compiler: pathlib.Path,
    check: Callable[[str], None] | None = None,
    machine: Machine | None = None,
    wait: bool = True,
    run: Run = _run_as_this,
) -> None:
    """Compiles the PolyKernel of an operator into a shared object, with the compiler in this folder, unless it is
    there. `typical` is the size at which it runs most; `check` is called with the path of the object and raises where
    it cannot be used. With a `machine`, the times by which it chooses variants are measured there; else they are
    estimates. Where another process compiles it, waits for that, or without `wait` raises BlockingIOError. `run` runs the
    command, by default in no other way than this process. Raises RuntimeError with the compiler's message if it fails."""
    with building(target, wait) as folder:
        if folder is None:
            return
        with writing_into(target.parent):
            (folder / "operator.json").write_text(json.dumps(operator.to_json(typical)))
        plans = ["--plan", *_measured_plans(operator, folder, compiler, machine)] if machine else []
        build = [
            compiler / "distile_builder",
            "build",
            "--operator",
            folder / "operator.json",
            "--symbol",
            "distile_built",
            "--shared",
            folder / "built.so",
            "--folder",
            folder / "parts",
            *(plans or _backend_options(operator, compiler)),
        ]
        with machine.shared() if machine else contextlib.nullcontext():
            _run(build, operator, target.parent, run)
        if check:
            check(str(folder / "built.so"))
        with writing_into(target.parent):
            os.replace(folder / "built.so", target)
        for doubt in {_doubt(plan) for plan in plans[1:]} - {None}:
            warnings.warn(
                f"the times that choose between the variants for {operator} are doubtful; {doubt}; to measure them again "
                f"when nothing else runs, remove {target} and build it again",
                stacklevel=2,
            )


def _measured_plans(
    operator: Operator, folder: pathlib.Path, compiler: pathlib.Path, machine: Machine
) -> list[pathlib.Path]:
    """The plans that ship for an operator, or that the bound makes. Those that this machine runs have times measured
    on it."""
    command = _command(compiler)
    plan = [command, "plan", folder / "operator.json", "--unmeasured", "--backend", operator.device]
    if operator.device == "cuda" and "--tensor-cores" in _backend_options(operator, compiler):
        plan += ["--math", "tf32"]
    with machine.shared():
        written = json.loads(_run([*plan, "--json", "-o", folder / "plans"], operator, folder))
    plans = [pathlib.Path(row["plan"]) for row in written["plans"]]
    if operator.device == "cpu":
        with machine.alone():
            _run([command, "profile", *plans, "--into-plan", "-q"], operator, folder)
        return plans
    for plan in _run_by_this_gpu(plans, dict(operator.params).get("dtype", "float32") == "float32"):
        with machine.shared():
            _run([command, "compile", plan, "-o", f"{plan}.so", "-q"], operator, folder)
        with machine.alone():
            _run([command, "profile", plan, "--object", f"{plan}.so", "--into-plan", "-q"], operator, folder)
    return plans


def _doubt(plan: pathlib.Path) -> str | None:
    """Why the times of a plan are doubtful; None if they are not."""
    return json.loads(plan.read_text()).get("profile", {}).get("doubt")


def _run_by_this_gpu(plans: list[pathlib.Path], is_float32: bool) -> list[pathlib.Path]:
    """The first plan for tensor cores that the GPU runs, and the first for its other cores if it takes that too: in
    float32, which tensor cores multiply only as TF32, or without the former."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    found: dict[bool, pathlib.Path] = {}
    for plan in plans:
        content = json.loads(plan.read_text())
        number, exact = re.search(r"cuda_capability_(\d+)(a?)", content["target"]).groups()
        runs = int(number) == 10 * major + minor if exact else int(number) <= 10 * major + minor
        if runs:
            found.setdefault(content["layout"].startswith("cuda-k"), plan)
    if True in found and not is_float32:
        return [found[True]]
    return list(found.values())


def _command(compiler: pathlib.Path) -> pathlib.Path:
    """The command `distile` of this compiler: in its folder, as in a build tree, or in that of programs beside it."""
    for folder in (compiler, compiler.parent.parent / "bin"):
        if (folder / "distile").is_file():
            return folder / "distile"
    found = shutil.which("distile")
    if found is None:
        raise RuntimeError(f"measuring needs the command `distile` of the compiler in {compiler}: put it on the PATH")
    return pathlib.Path(found)


def _backend_options(operator: Operator, compiler: pathlib.Path) -> list[str]:
    if operator.device == "cpu":
        return []
    tensor_cores = (compiler / TENSOR_CORES).is_file() and cuda_compiler()
    return ["--backend", operator.device, *(["--tensor-cores"] if tensor_cores else [])]


def warn_without_tensor_cores(operators: list[Operator], compiler: pathlib.Path) -> None:
    """Warns once if PolyKernels of these operators get no code for tensor cores that others would have."""
    if not any(operator.can_use_tensor_cores for operator in operators):
        return
    has_code = (compiler / TENSOR_CORES).is_file()
    why = why_no_cuda_compiler() if has_code else f"the compiler in {compiler} was built without them"
    if why and why not in _told:
        _told.add(why)
        warnings.warn(
            f"distile: PolyKernels for GPUs are built without code for tensor cores, and are slower: {why}; then remove "
            "them from distile.cache_folder(), and build them again",
            stacklevel=3,
        )


def _run(command, operator: Operator, folder: pathlib.Path, run: Run = _run_as_this) -> str:
    """What the command prints, which writes into a folder."""
    variables = environment(pathlib.Path(command[0]).parent)
    done = run([str(word) for word in command], variables)
    if done.returncode != 0:
        reason = done.stderr.strip() or done.stdout.strip() or f"{command[0]} ended with status {done.returncode}"
        if shutil.disk_usage(folder).free < FULL:
            reason += f" (the disk of {folder} is full: free some space, or name another folder in DISTILE_CACHE)"
        raise CompilerError(operator, reason)
    return done.stdout
