"""distile's compiler: where its programs lie, and what they find of other packages.

It runs without PyTorch and without the rest of the package, as the command `distile` of the wheel, too.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shlex
import shutil
import sys

HALIDE = "21."  # The release that the programs are linked with; the extra `compiler` names it too.
FOLDER = pathlib.Path(__file__).resolve().parent / "tools"  # The programs of this wheel, which may have none.


def compiler_folder() -> pathlib.Path | None:
    """The folder of distile's compiler: $DISTILE_COMPILER, this wheel's if all that it needs is installed, or that of an
    installation (docs/install.md) whose command `distile` is on the PATH; None without one."""
    candidates = [os.environ.get("DISTILE_COMPILER")]
    if _halide_folder() and _c_compiler():
        candidates.append(FOLDER)
    for folder in os.get_exec_path():
        candidates.append(os.path.dirname(os.path.realpath(os.path.join(folder, "distile"))))
    for candidate in candidates:
        if candidate and (pathlib.Path(candidate) / "distile_builder").is_file():
            return pathlib.Path(candidate)
    return None


def why_no_compiler() -> str:
    """What compiler_folder() misses of what the wheel's compiler needs."""
    if not (FOLDER / "distile_builder").is_file():
        return "this package was built without it"
    if not _halide_folder():
        try:
            found = f"version {importlib.metadata.version('halide')} of Halide's package is installed"
        except importlib.metadata.PackageNotFoundError:
            found = "Halide's package is not installed"
        return f"{found}, and it needs {HALIDE}*"
    return "there is no C compiler: no cc, no $CC, and the package ziglang is not installed"


def find_compiler(caller: str) -> pathlib.Path:
    """compiler_folder(), or FileNotFoundError that says what the caller needs."""
    folder = compiler_folder()
    if folder is None:
        raise FileNotFoundError(
            f"{caller} needs distile's compiler ({why_no_compiler()}): pip install \"distile[compiler]\" (docs/python.md "
            "says for which Pythons), or put the command `distile` of an installation (docs/install.md) on the PATH, or set DISTILE_COMPILER to its "
            "folder lib/distile"
        )
    return folder


def environment(folder: pathlib.Path) -> dict[str, str]:
    """The environment in which the programs of a folder run: this process's, with the packages that they need."""
    variables = dict(os.environ)
    compiler = _c_compiler()
    if compiler:
        variables["CC"] = compiler
    halide = _halide_folder() if folder == FOLDER else None
    if variables.get("DISTILE_CACHE") and compiler and _zig() and compiler.startswith(_zig()):
        # Where zig keeps what it makes once, by default in the home folder, which may not be writable.
        variables.setdefault("ZIG_GLOBAL_CACHE_DIR", os.path.abspath(os.path.join(variables["DISTILE_CACHE"], "zig")))
    libraries = [halide, variables.get("LD_LIBRARY_PATH"), _nvrtc_folder()]
    if any(libraries):
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    return variables


def cuda_compiler() -> str | None:
    """What compiles kernels for tensor cores: the program in $CUDACXX or `nvcc`, or NVRTC, which PyTorch for CUDA
    brings; None without either. Raises RuntimeError if $CUDACXX is no command."""
    program = _cuda_program()
    if found := shutil.which(program):
        return found
    return "NVRTC" if program in _WITH_NVRTC and (_nvrtc_folder() or _can_load_nvrtc()) else None


def why_no_cuda_compiler() -> str | None:
    """What cuda_compiler() misses, and what to do; None if it finds one."""
    if cuda_compiler():
        return None
    program = _cuda_program()
    if program not in _WITH_NVRTC:
        return (
            f"the environment variable CUDACXX names the program '{program}', which does not exist: name an nvcc there, "
            "or unset it, for NVRTC"
        )
    return (
        "there is neither nvcc nor NVRTC: pip install nvidia-cuda-nvrtc (nvidia-cuda-nvrtc-cu12 for CUDA 12), or name an "
        "nvcc in the environment variable CUDACXX"
    )


_WITH_NVRTC = ("nvcc", "nvrtc")  # The names of programs that NVRTC stands in for.


def _cuda_program() -> str:
    given = os.environ.get("CUDACXX", "")
    try:
        words = [given] if shutil.which(given) else shlex.split(given) or ["nvcc"]  # A path may hold spaces.
    except ValueError as error:
        raise RuntimeError(f"the environment variable CUDACXX names no program: {error} in: {given}") from None
    return words[0]


def _package(name: str) -> pathlib.Path | None:
    """The folder of an installed package."""
    spec = importlib.util.find_spec(name)
    return pathlib.Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _halide_folder() -> str | None:
    """The folder of the library of Halide's package, if it is of the release that the programs of the wheel need."""
    package = _package("halide")
    folder = package / "lib64" if package else None
    if not folder or not (folder / "libHalide.so").is_file():
        return None
    try:
        return str(folder) if importlib.metadata.version("halide").startswith(HALIDE) else None
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvrtc_folder() -> str | None:
    """The folder of NVRTC's library in NVIDIA's packages, of which PyTorch for CUDA needs this one."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for library in sorted(pathlib.Path(folder).glob("*/lib/libnvrtc.so.1[23]"), reverse=True):
            return str(library.parent)
    return None


def _can_load_nvrtc() -> bool:
    """Whether NVRTC's library is in the folders of the system or of LD_LIBRARY_PATH."""
    for number in (13, 12):
        try:
            ctypes.CDLL(f"libnvrtc.so.{number}")
        except OSError:
            continue
        return True
    return False


def _c_compiler() -> str | None:
    """The C compiler in the words of a shell: $CC, `cc`, or that of the package ziglang; None without one."""
    if os.environ.get("CC"):
        return os.environ["CC"]
    if shutil.which("cc"):
        return "cc"
    if not _zig():
        return None
    # Without a target, zig compiles for this very CPU and C library, but other machines may share the cache folder.
    return f"{_zig()} cc -target {platform.machine()}-linux-gnu.2.28"


def _zig() -> str:
    """The program of the package ziglang as a word of a shell; nothing without it."""
    package = _package("ziglang")
    return shlex.quote(str(package / "zig")) if package else ""


def main() -> None:
    """The command `distile`."""
    program = FOLDER / "distile"
    if not program.is_file():
        sys.exit("distile: error: this wheel was built without distile's compiler (docs/install.md).")
    os.execve(program, [str(program), *sys.argv[1:]], environment(FOLDER))


if __name__ == "__main__":
    main()
