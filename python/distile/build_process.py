"""The process beside others that compiles PolyKernels for them (on_demand.py). It imports no PyTorch.

It reads requests from its standard input, a line of JSON each, and answers on its standard output. When its input ends,
because the process that asked has ended, it finishes what it has begun, but at least something, and ends.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pathlib
import queue
import signal
import sys
import threading
import time

from .build_lock import one_of
from .compiler import compile_polykernel
from .description import Operator

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
    described = [operator.generator, operator.params, operator.device]
    asked = dict(operator=described, typical=typical, target=target, version=version, compiler=compiler)
    return json.dumps(asked).encode() + b"\n"


def _at_once() -> int:
    return min(MOST_AT_ONCE, max(1, len(os.sched_getaffinity(0)) // 2))


def _build(operator, typical, target, version, compiler) -> None:
    generator, params, device = operator
    with one_of(_at_once(), pathlib.Path(target).parent):
        compile_polykernel(
            Operator(generator, tuple((name, value) for name, value in params), device),
            typical,
            pathlib.Path(target),
            pathlib.Path(compiler),
            functools.partial(check_version, version=version),
            wait=False,
        )


class _Worker(threading.Thread):
    """Compiles one after the other. What other processes compile, or have no place for, waits behind the rest."""

    def __init__(self, requests: queue.SimpleQueue, ended: threading.Event):
        super().__init__()
        self._requests, self._ended = requests, ended
        self.start()

    def run(self) -> None:
        begun = False  # Programs that end within a second get something built, too.
        while (asked := self._requests.get()) is not None and not (begun and self._ended.is_set()):
            try:
                begun = True
                _build(**asked)
            except BlockingIOError:
                time.sleep(0.1)
                self._requests.put(asked)
            except Exception as error:
                _answer(asked["target"], str(error) or type(error).__name__)
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


def serve(niceness: int = 19) -> None:
    """Serves requests until the input ends, at a low priority."""
    # Ctrl-C is for the program, not for what it has begun. A session of its own would be scheduled apart from the
    # program, and the low priority would not count.
    os.setpgid(0, 0)
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    requests: queue.SimpleQueue = queue.SimpleQueue()
    ended = threading.Event()
    workers = [_Worker(requests, ended) for _ in range(_at_once())]
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    ended.set()
    for _ in workers:
        requests.put(None)
    for worker in workers:
        worker.join()
    sys.stdout = None  # What nobody has read is lost; Python would complain of it.
