"""PolyKernels when they are needed: compiled beside this process, or in the call that lacks them (distile.set_build).

docs/python.md says what users see. The process beside is in build_process.py.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

from .build_process import check_version, request
from .compiler import compile_polykernel, reason_of, warn_without_tensor_cores
from .description import Operator
from .toolchain import compiler_folder, find_compiler

TIMES = ("never", "background", "now")
CALLER = "distile.set_build()"
AFTER_CALL_S = 0.1
Progress = Callable[[str], None]


class State(enum.Enum):
    WANTED = "its PolyKernel was not built"
    BUILDING = "its PolyKernel is being built, for later calls and later processes"
    BUILT = ""
    FAILED = "it cannot be built"


@dataclasses.dataclass(eq=False)
class _Request:
    operator: Operator
    target: pathlib.Path
    typical: dict[str, int] | None
    version: int
    state: State = State.WANTED
    reason: str = ""
    alone: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def fail(self, reason: str) -> None:
        self.state, self.reason = State.FAILED, reason

    @property
    def why_dense(self) -> str:
        return self.reason or self.state.value


def _print(line: str) -> None:
    print(f"distile: {line}", file=sys.stderr, flush=True)


class _Helper:
    """The process beside this one, with a thread that waits for what it says. `answered` is called there with each
    answer, and `ended` with the helper and its status."""

    # The package's own __init__ would load PyTorch. The empty path is the working folder. A line from this process would
    # wake a process of another class at once, on a core that the call needs which writes the line.
    _PROGRAM = """
import sys, types
sys.path = [path for path in sys.path if path]
package = types.ModuleType("distile")
package.__path__ = [sys.argv[1]]
sys.modules["distile"] = package
import os
os.nice(10)
try:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
except OSError:
    pass  # Containers may forbid it.
from distile.build_process import serve
serve()
"""

    def __init__(self, answered: Callable[[dict], None], ended: Callable[[_Helper, int], None]):
        if not sys.executable:
            raise FileNotFoundError(
                "distile.set_build(): no Python interpreter is known (sys.executable) that could build"
            )
        folder = str(pathlib.Path(__file__).parent)
        # It may outlive this process, whose output others read to its end. So it has none of it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, folder],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._has_left = False
        self._telling = threading.Lock()
        threading.Thread(target=self._read, args=(answered, ended), name="distile builds", daemon=True).start()

    def _read(self, answered: Callable[[dict], None], ended: Callable[[_Helper, int], None]) -> None:
        part = b""
        while said := self._process.stdout.read(1 << 16):
            *lines, part = (part + said).split(b"\n")
            for line in lines:
                self._tell(lambda: answered(json.loads(line)))
        if not self._has_left:
            status = self._process.wait()
            self._tell(lambda: ended(self, status))

    def _tell(self, what: Callable[[], None]) -> None:
        """Nothing once the program ends: a thread that then comes back to Python from a library is ended inside it."""
        with self._telling:
            if not self._has_left:
                what()

    def send(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # It has ended, which the thread that reads says.
            self._process.stdin.write(line)

    def leave(self) -> None:
        """Lets it finish what it has begun, and end, which nobody waits for."""
        with self._telling:
            self._has_left = True
        self.close()

    def close(self) -> None:
        """Closes its input. All that the child of a fork does, in which the thread does not live."""
        self._process.stdin.close()
        self._process.returncode = 0


def _checked(when: str) -> str:
    if when not in TIMES:
        raise ValueError(f"PolyKernels are built {', '.join(TIMES)}, not {when!r} (distile.set_build, DISTILE_BUILD)")
    return when


class _Builder:
    def __init__(self):
        self.when = _checked(os.environ.get("DISTILE_BUILD") or "never")
        self.progress: Progress | None = None
        self.helper: _Helper | None = None
        self.forget_process()

    def forget_process(self) -> None:
        """Begins anew, without a process beside. Also in the child of a fork, whose parent has it."""
        self.lock = threading.RLock()
        self.requests: dict[Operator, _Request] = {}
        self.untold: list[_Request] = []  # Answered, by the thread that reads, which calls nothing of the program's.
        self.told: set[str] = set()
        self.compiler: pathlib.Path | None = None
        if self.helper is not None:
            self.helper.close()  # Its input ends when the parent's does.
        self.helper = None

    def request(self, operator: Operator, typical, cache: Callable[[], tuple[pathlib.Path, int]]) -> _Request:
        with self.lock:
            found = self.requests.get(operator)
            if found is None:
                try:
                    folder, version = cache()
                except RuntimeError as error:  # There is no home folder.
                    found = _Request(operator, pathlib.Path(), typical, 0)
                    found.fail(str(error))
                    self.untold.append(found)
                else:
                    found = _Request(operator, (folder / f"{operator.name}.so").absolute(), typical, version)
                self.requests[operator] = found
            return found

    def start(self) -> None:
        """Starts the process beside, if it does not run."""
        with self.lock:
            if self.helper is None:
                self.helper = _Helper(self._take, self._take_end)

    def begin(self, wanted: _Request) -> None:
        try:
            self.compiler = self.compiler or find_compiler(CALLER).absolute()
            self.start()
        except OSError as error:  # Without a compiler, or a process.
            wanted.fail(str(error))
            return
        wanted.state = State.BUILDING
        target, compiler = str(wanted.target), str(self.compiler)
        self.helper.send(request(wanted.operator, wanted.typical, target, wanted.version, compiler))

    def _take(self, answer: dict) -> None:
        """Takes in what the process beside has said. In the thread that reads."""
        with self.lock:
            for one in self.requests.values():
                if one.state is State.BUILDING and str(one.target) == answer["target"]:
                    one.state = State.BUILT
                    if answer["error"]:
                        one.fail(answer["error"])
                    self.untold.append(one)
        _call_listeners()

    def _take_end(self, helper: _Helper, status: int) -> None:
        """The process beside has ended before this one."""
        with self.lock:
            if self.helper is not helper:
                return
            self.helper = None
            for one in self.requests.values():
                if one.state is State.BUILDING:
                    one.fail(f"the process that builds ended with status {status}")
                    self.untold.append(one)
        _call_listeners()

    def is_final(self, wanted: _Request) -> bool:
        """Whether calls need not ask again, until the listeners are called."""
        with self.lock:
            return wanted.state in (State.BUILDING, State.FAILED) and wanted not in self.untold

    def tell(self) -> None:
        """Reports what is built, and each reason of a failure once. In a call, whose caller sees the warnings."""
        with self.lock:
            untold, self.untold = self.untold, []
        for one in untold:
            if one.state is State.BUILT and self.progress:
                self.progress(f"the PolyKernel of {one.operator} is ready")
            if one.state is State.FAILED and one.reason not in self.told:
                self.told.add(one.reason)
                how = "keeps its code for any shape" if one.operator.has_general_code else "stays dense"
                warnings.warn(f"distile: {one.operator} {how}: {one.reason}", stacklevel=3)

    def beside(self, wanted: _Request) -> None:
        with self.lock:
            begins = wanted.state is State.WANTED
            if begins:
                self.begin(wanted)
                if wanted.state is State.FAILED:
                    self.untold.append(wanted)
        if begins and wanted.state is State.BUILDING:
            with contextlib.suppress(RuntimeError):  # The process beside says it.
                warn_without_tensor_cores([wanted.operator], self.compiler)

    def now(self, wanted: _Request) -> None:
        with wanted.alone:
            if wanted.state in (State.BUILT, State.FAILED):
                return
            progress, start = self.progress or _print, time.monotonic()
            try:
                compiler = find_compiler(CALLER)
                progress(f"building the PolyKernel of {wanted.operator}")
                warn_without_tensor_cores([wanted.operator], compiler)
                check = lambda path: check_version(path, wanted.version)
                compile_polykernel(wanted.operator, wanted.typical, wanted.target, compiler, check)
            except Exception as error:
                wanted.fail(reason_of(error))
                self.untold.append(wanted)
            except KeyboardInterrupt:
                wanted.fail("its build was interrupted")
                # Raised here, the library would make it a RuntimeError. So it comes once the call has ended.
                main = threading.main_thread().ident
                threading.Timer(AFTER_CALL_S, signal.pthread_kill, (main, signal.SIGINT)).start()
            else:
                wanted.state = State.BUILT
                progress(f"built it in {time.monotonic() - start:.1f} s")


def _found_compiler() -> pathlib.Path | None:
    folder = compiler_folder()
    return None if folder is None else folder.absolute()


def _is_worker() -> bool:
    """Whether this process is one that another has started by multiprocessing, as the workers of a DataLoader: most of
    them call no layer."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return False
    current = multiprocessing.current_process()
    return current.name != "MainProcess" or getattr(current, "_inheriting", False)


_listeners: list[Callable[[], None]] = []
_builder = _Builder()
os.register_at_fork(after_in_child=_builder.forget_process)


def set_build(when: str, *, progress: Progress | None = None) -> None:
    """When PolyKernels are compiled that a call lacks.

    Args:
        when: "never": such calls run code for any shape, or dense where there is none (the default, or what the
            environment variable DISTILE_BUILD says). "background": they do so too, and return at once, while a process
            compiles on idle cores; later calls run the PolyKernel as soon as it is there. "now": the first such call compiles it, and waits.
        progress: called with a line of text about each; default: "now" prints to standard error.

    What cannot be compiled is dense, and a warning says why, once. Setting it again tries those again. At the exit of
    Python, what is still dense is printed to standard error; distile.still_dense() returns it. The process beside ends
    when this one has: it finishes what it has begun, at least one, and leaves the rest. Raises ValueError for other
    words.
    """
    with _builder.lock:
        _builder.when, _builder.progress = _checked(when), progress
        _builder.told.clear()
        _builder.compiler = _found_compiler() if when == "background" else None
        for operator, one in list(_builder.requests.items()):
            if one.state is State.FAILED:
                del _builder.requests[operator]
        if _builder.compiler is not None and not _is_worker():
            with contextlib.suppress(OSError):  # The call that needs it says why.
                _builder.start()  # So no call waits for it.
    _call_listeners()


def start_early() -> None:
    """Does what set_build does, where the environment variable asks for "background"."""
    if _builder.when == "background":
        set_build("background")


def on_change(listener: Callable[[], None]) -> None:
    """Has a function called after each set_build, and, in another thread, after each answer of the process beside."""
    _listeners.append(listener)


def _call_listeners() -> None:
    for listener in list(_listeners):
        listener()


def when() -> str:
    """What set_build said last."""
    return _builder.when


def is_asked() -> bool:
    """Whether calls ask for what they lack."""
    return _builder.when != "never"


def ask(operator: Operator, typical: dict[str, int] | None, cache: Callable[[], tuple[pathlib.Path, int]]) -> bool:
    """Whether the PolyKernel that a call lacks is in the cache folder now. "background" returns at once. `cache`
    returns the folder and the version of its PolyKernels; it is called once for each operator."""
    wanted = _builder.request(operator, typical, cache)
    if wanted.state is not State.BUILT and wanted.state is not State.FAILED:
        (_builder.now if _builder.when == "now" else _builder.beside)(wanted)
    if _builder.untold:
        _builder.tell()
    return wanted.state is State.BUILT


def is_final(operator: Operator) -> bool:
    """Whether calls of an operator that has no PolyKernel need not ask again until the listeners are called."""
    if not is_asked():
        return True
    found = _builder.requests.get(operator)
    return found is not None and _builder.is_final(found)


def is_pending(operator: Operator) -> bool:
    """Whether its PolyKernel is being built."""
    found = _builder.requests.get(operator)
    return found is not None and found.state is State.BUILDING


def pending() -> list[Operator]:
    """The operators whose PolyKernels are being built."""
    with _builder.lock:
        found = [one.operator for one in _builder.requests.values() if one.state is State.BUILDING]
    _builder.tell()
    return found


def refuse(operator: Operator, reason: str) -> None:
    """Notes that no PolyKernel can compute an operator."""
    _builder.request(operator, None, lambda: (pathlib.Path(), 0)).fail(reason)


def _not_built() -> dict[Operator, str]:
    """The operators asked for that have no PolyKernel yet, and why."""
    with _builder.lock:
        found = {one.operator: one.why_dense for one in _builder.requests.values() if one.state is not State.BUILT}
    _builder.tell()
    return found


def still_dense() -> dict[Operator, str]:
    """The operators asked for that have no PolyKernel yet, nor code for any shape, and why."""
    return {operator: why for operator, why in _not_built().items() if not operator.has_general_code}


def _finish() -> None:
    """At the exit of Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The summary says it.
        found = _not_built()
    if is_asked():
        ran = {operator: "code for any shape" if operator.has_general_code else "dense" for operator in found}
        for how, why in dict.fromkeys(zip(ran.values(), found.values())):
            operators = [operator for operator, reason in found.items() if (ran[operator], reason) == (how, why)]
            _print(f"{len(operators)} {'operators' if len(operators) > 1 else 'operator'} ran {how} to the end: {why}")
            for operator in operators:
                print(f"  {operator}", file=sys.stderr)
            if why == State.BUILDING.value:
                print("distile.build compiles a model's PolyKernels ahead, on all cores", file=sys.stderr)
    if _builder.helper is not None:
        _builder.helper.leave()


atexit.register(_finish)
