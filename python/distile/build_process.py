"""The process beside others that compiles PolyKernels for them (on_demand.py). It imports no PyTorch.

It reads requests from its standard input, a line of JSON each, and answers on its standard output. When its input ends,
because the process that asked has ended, it finishes what it has begun, but at least something, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

from .build_lock import one_of
from .compiler import compile_polykernel, reason_of
from .description import Operator

CORES_FOR_EACH = 8  # A compiler takes memory, and a core's caches, even where it gives way.
PATIENCE_S = 10.0
PAUSE_S = 0.1  # Before what a call asks for is begun: the call ends first, with all cores.
MOST_AT_ONCE = 8  # In all processes together, for each takes some hundred megabytes.


def check_version(path: str, version: int) -> None:
    """Raises RuntimeError if the PolyKernel in a shared object is not of this version."""
    found = ctypes.c_uint32.in_dll(ctypes.CDLL(path), "distile_built").value
    if found != version:
        raise RuntimeError(
            f"the compiler makes PolyKernels of version {found}, but this library runs version {version}: install a "
            "compiler of the same release of distile"
        )


def request(operator: Operator, typical: dict[str, int] | None, target: str, version: int, compiler: str) -> bytes:
    """A line that asks for a PolyKernel."""
    described = [operator.generator, operator.params, operator.device, operator.zeros]
    asked = dict(operator=described, typical=typical, target=target, version=version, compiler=compiler)
    return json.dumps(asked).encode() + b"\n"


def _at_once() -> int:
    return min(MOST_AT_ONCE, max(1, len(os.sched_getaffinity(0)) // CORES_FOR_EACH))


class _GivingWay:
    """Runs commands on cores that nobody else wants. Where those are too few, as beside a program that calls without a
    pause, it begins again with a tenth of a core."""

    def __init__(self, waits: bool):
        self._waits = waits

    def run(self, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        process, used = self._start(words, variables), 0.0
        while True:
            try:
                output, errors = process.communicate(timeout=PATIENCE_S if self._waits else None)
                return subprocess.CompletedProcess(words, process.returncode, output, errors)
            except subprocess.TimeoutExpired:
                before, used = used, self._seconds_used(process)
                if used - before < PATIENCE_S / 10:
                    self._waits = False
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    process = self._start(words, variables)

    def _start(self, words: list[str], variables: dict[str, str]) -> subprocess.Popen:
        # Nothing but these calls runs between fork and exec.
        begin = _wait_for_idle_cores if self._waits else _stay
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.Popen(words, env=variables, preexec_fn=begin, **pipes)

    @staticmethod
    def _seconds_used(process: subprocess.Popen) -> float:
        """By the process and those of its children that have ended."""
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _stay() -> None:
    os.setpgid(0, 0)  # So all that it starts can be killed.


def _wait_for_idle_cores() -> None:
    _stay()
    # A thread that wakes takes the core of this class at once, but that of a nice one after milliseconds. Reading and
    # writing comes last, too. Containers may forbid it.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _build(giving_way: _GivingWay, operator, typical, target, version, compiler) -> None:
    generator, params, device, zeros = operator
    with one_of(_at_once(), pathlib.Path(target).parent):
        compile_polykernel(
            Operator(generator, tuple((name, value) for name, value in params), device, zeros),
            typical,
            pathlib.Path(target),
            pathlib.Path(compiler),
            functools.partial(check_version, version=version),
            wait=False,
            run=giving_way.run,
        )


class _Worker(threading.Thread):
    """Compiles one after the other. What other processes compile, or have no place for, waits behind the rest."""

    def __init__(self, requests: queue.SimpleQueue, ended: threading.Event, waits: bool):
        super().__init__()
        self._requests, self._ended, self._waits = requests, ended, waits
        self.start()

    def run(self) -> None:
        giving_way = _GivingWay(self._waits)
        begun = False  # Programs that end within a second get something built, too.
        while (came := self._requests.get()) is not None and not (begun and self._ended.is_set()):
            arrived, line = came
            time.sleep(max(0.0, arrived + PAUSE_S - time.monotonic()))
            asked = json.loads(line)
            try:
                begun = True
                _build(giving_way, **asked)
            except BlockingIOError:
                time.sleep(0.1)
                self._requests.put(came)
            except Exception as error:
                _answer(asked["target"], reason_of(error))
            else:
                _answer(asked["target"], "")


_answering = threading.Lock()


def _answer(target: str, error: str) -> None:
    line = json.dumps({"target": target, "error": error}).encode() + b"\n"
    try:
        with _answering:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass  # Nobody is left to be told.


def serve(waits: bool = True) -> None:
    """Serves requests until the input ends. `waits`: its compilers wait for cores that nobody else wants."""
    # Ctrl-C is for the program, not for what it has begun. A session of its own would be scheduled apart from the
    # program, and the low priority would not count.
    os.setpgid(0, 0)
    os.environ["DISTILE_JOBS"] = "1"  # The compiler would run one a core for the variants of a PolyKernel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    requests: queue.SimpleQueue = queue.SimpleQueue()
    ended = threading.Event()
    workers = [_Worker(requests, ended, waits) for _ in range(_at_once())]
    for line in sys.stdin.buffer:
        requests.put((time.monotonic(), line))
    ended.set()
    for _ in workers:
        requests.put(None)
    for worker in workers:
        worker.join()
    sys.stdout = None  # What nobody has read is lost; Python would complain of it.
