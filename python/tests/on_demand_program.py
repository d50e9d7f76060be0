"""A program that asks for PolyKernels, without PyTorch: its arguments are names of operators, and then what to do."""

import os
import pathlib
import sys
import time
import types

if __name__ == "__main__":
    package = types.ModuleType("distile")
    package.__path__ = [str(pathlib.Path(__file__).parents[1] / "distile")]
    sys.modules["distile"] = package

from distile import on_demand
from distile.description import Operator

VERSION = 17


def ask(name: str) -> bool:
    operator = Operator.make("masked_linear", in_channels=len(name), text=name)
    return on_demand.ask(operator, {"batch": 1}, lambda: (pathlib.Path(os.environ["DISTILE_CACHE"]), VERSION))


def wait_for(name: str) -> None:
    end = time.monotonic() + 300
    while not ask(name):
        assert time.monotonic() < end, on_demand.still_dense()
        time.sleep(0.01)


if __name__ == "__main__":
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])  # One at a time.
    when, *names, what = sys.argv[1:]
    if what != "hang":  # A low priority would let tests wait long on a busy machine.
        hasty = on_demand._Helper._PROGRAM.replace("os.nice(10)", "").replace("serve()", "serve(waits=False)")
        on_demand._Helper._PROGRAM = hasty
    on_demand.set_build(when, progress=[].append)
    if what == "wait":
        print("asks", flush=True)
    assert any([ask(name) for name in names]) == (when == "now")
    if what == "leave":
        print("left", flush=True)
    elif what == "wait":
        for name in names:
            wait_for(name)
    elif what == "fork":
        child = os.fork()
        for name in names:
            wait_for(name)
        if child:
            assert os.waitpid(child, 0)[1] == 0
    elif what == "hang":
        print(on_demand._builder.helper._process.pid, flush=True)
        time.sleep(60)
