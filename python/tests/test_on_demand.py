"""PolyKernels that are compiled when they are needed, by a compiler that waits for a file; and one by the real one."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
import torch

import distile
from distile import build_process, compiler, on_demand, polykernels, toolchain
from distile.build_lock import one_of
from distile.description import Operator
from distile.nn import MaskedConv2d, MaskedLinear
from on_demand_program import VERSION, ask, wait_for

PROGRAM = pathlib.Path(__file__).with_name("on_demand_program.py")
BUILDER = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        --object) how=-c; object=$2 ;;
        --shared) how=-shared; object=$2 ;;
        --operator) operator=$2 ;;
    esac
    shift
done
cat "$operator" >> {folder}/log
echo >> {folder}/log
echo "$$ $DISTILE_JOBS" > {folder}/last
while [ ! -e {folder}/go ]; do sleep .02; done
if grep -q wrong "$operator"; then
    echo "no kernel is wrong" >&2
    exit 1
fi
version=$(grep -q old "$operator" && echo 3 || echo {version})
echo "unsigned distile_built = $version;" | cc -fPIC $how -x c - -o "$object"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a compiler that builds once a file `go` is there, and notes what it builds."""
    builder = tmp_path / "distile_builder"
    builder.write_text(BUILDER.format(folder=tmp_path, version=VERSION))
    builder.chmod(0o755)
    monkeypatch.setenv("DISTILE_COMPILER", str(tmp_path))
    monkeypatch.setenv("DISTILE_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    (tmp_path / "go").touch()


@pytest.fixture(autouse=True)
def own_builder(monkeypatch):
    """Each test has its own process beside, and none is left. Its priority is that of the test, which would wait long on
    a busy machine."""
    hasty = on_demand._Helper._PROGRAM.replace("os.nice(10)", "").replace("serve()", "serve(waits=False)")
    monkeypatch.setattr(on_demand._Helper, "_PROGRAM", hasty)
    monkeypatch.setattr(on_demand, "_builder", on_demand._Builder())
    yield
    if helper := on_demand._builder.helper:
        helper.leave()
        os.waitpid(helper._process.pid, 0)


def begun(folder: pathlib.Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.is_file() else []


def wait_until(condition) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def program(*words: str, when: str = "background") -> subprocess.Popen:
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, str(PROGRAM), when, *words], **pipes)


def built(folder: pathlib.Path) -> int:
    return len(list((folder / "cache").glob("*.so")))


def test_beside(folder):
    lines: list[str] = []
    on_demand.set_build("background", progress=lines.append)
    assert not ask("a")  # It returns although the compiler waits.
    wait_until(lambda: begun(folder))
    assert not ask("a") and list(on_demand.still_dense().values()) == [on_demand.State.BUILDING.value]
    (folder / "go").touch()
    wait_for("a")
    assert len(begun(folder)) == 1 and not on_demand.still_dense()
    assert len(lines) == 1 and lines[0].endswith("is ready")
    assert sorted(path.suffix for path in (folder / "cache").iterdir()) == [".lock", ".lock", ".so"]


def test_call_ends_first(folder):
    """A compiler begins after the call that asks, which wants all cores."""
    on_demand.set_build("background")
    begin = time.monotonic()
    assert not ask("a")
    wait_until(lambda: begun(folder))
    assert time.monotonic() - begin > build_process.PAUSE_S


def test_environment(folder, monkeypatch):
    """The process beside starts with the program where the environment asks for it, so no call waits for that."""
    on_demand.start_early()
    assert on_demand._builder.helper is None
    monkeypatch.setenv("DISTILE_BUILD", "background")
    monkeypatch.setattr(on_demand, "_builder", on_demand._Builder())
    on_demand.start_early()
    assert on_demand._builder.helper and on_demand._builder.compiler == folder


WORKERS = """
import multiprocessing
import distile
from distile import on_demand

def helper(_):
    return on_demand._builder.when, on_demand._builder.helper is not None

distile.set_build("background")
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(helper(None), pool.map(helper, [None]))
"""


def test_workers(folder, tmp_path):
    """Processes that multiprocessing starts have a process beside only once they need one."""
    program = tmp_path / "workers.py"
    program.write_text(WORKERS)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "('background', True) [('background', False)]\n" * 2, done.stderr


FAILING = """#!/bin/sh
echo >> {folder}/log
while [ ! -e {folder}/go ]; do sleep .02; done
echo "no kernel today" >&2
exit 1
"""


@torch.no_grad()
@pytest.mark.parametrize("when", on_demand.TIMES[1:])
def test_calls_ask_once(folder, monkeypatch, when):
    """Calls of code for any shape ask again only when there is an answer."""
    (folder / "distile_builder").write_text(FAILING.format(folder=folder))
    asked: list[object] = []
    provide = polykernels.provide
    monkeypatch.setattr(polykernels, "provide", lambda *of: asked.append(of) or provide(*of))
    layer = MaskedLinear(9, 19 if when == "now" else 17)
    call = lambda: layer(torch.zeros(1, 3, 9), torch.ones(1, 3, dtype=torch.bool))
    on_demand.set_build(when, progress=[].append)
    if when == "now":
        (folder / "go").touch()
    else:
        for _ in range(5):
            call()
        wait_until(lambda: begun(folder))
        call()
        assert len(asked) == 1 and len(on_demand.pending()) == 1
        (folder / "go").touch()
        wait_until(lambda: on_demand._builder.untold)
    with pytest.warns(UserWarning, match="keeps its code for any shape: .*no kernel today") as warned:
        wait_until(lambda: call() is not None and len(asked) == (1 if when == "now" else 2))
        for _ in range(5):
            call()
    assert len(warned) == 1 and len(begun(folder)) == 1 and len(asked) == (1 if when == "now" else 2)
    on_demand.set_build(when, progress=[].append)
    with pytest.warns(UserWarning, match="no kernel today"):
        wait_until(lambda: call() is not None and len(begun(folder)) == 2 and not on_demand.pending())


@pytest.mark.cpu
def test_answer_meanwhile(monkeypatch):
    """An answer that comes while the call runs that asked is not lost."""
    finals = [True, False]
    monkeypatch.setattr(on_demand, "is_final", lambda _: finals.pop(0))
    asked: list[object] = []
    monkeypatch.setattr(polykernels, "provide", lambda *of: bool(asked.append(of)))
    layer = MaskedLinear(9, 21)
    with torch.no_grad():
        for number in (1, 2):
            finals[:] = [True, number > 1]
            layer(torch.zeros(1, 3, 9), torch.ones(1, 3, dtype=torch.bool))
            assert len(asked) == number
        layer(torch.zeros(1, 3, 9), torch.ones(1, 3, dtype=torch.bool))
    assert len(asked) == 2


@pytest.mark.parametrize("when", on_demand.TIMES[1:])
def test_four_processes_build_each_once(folder, when):
    """All ask before any is built."""
    running = [program("a", "bb", "ccc", "wait", when=when) for _ in range(4)]
    for one in running:
        assert one.stdout.readline() == "asks\n"
    wait_until(lambda: begun(folder))
    (folder / "go").touch()
    for one in running:
        assert one.communicate(timeout=300)[1] == "" and one.returncode == 0
    assert len(begun(folder)) == len(set(begun(folder))) == 3 == built(folder)


def test_places(tmp_path):
    """Processes together compile no more at once than one alone."""
    with one_of(2, tmp_path):
        with one_of(2, tmp_path):
            with pytest.raises(BlockingIOError), one_of(2, tmp_path):
                pass
        with one_of(2, tmp_path):
            pass


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 1), (15, 1), (16, 2), (256, 8)])
def test_one_at_once(monkeypatch, cores, processes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert build_process._at_once() == processes


def test_killed(folder):
    """What compiles gives way to all others. A killed process, its helper and its compiler leave what the next one takes
    over."""
    killed = program("a", "hang")
    helper = int(killed.stdout.readline())
    wait_until(lambda: (folder / "last").exists() and (folder / "last").read_text())
    compiler, jobs = (folder / "last").read_text().split()
    assert jobs == "1"
    assert os.sched_getscheduler(helper) == os.SCHED_BATCH
    priorities = [os.getpriority(os.PRIO_PROCESS, one) for one in (0, helper)]
    assert priorities[1] == min(priorities[0] + 10, 19) and os.sched_getscheduler(int(compiler)) == os.SCHED_IDLE
    for number in (helper, killed.pid):
        os.kill(number, signal.SIGKILL)
    killed.communicate(timeout=300)
    assert built(folder) == 0 and list((folder / "cache").glob("*.building"))
    (folder / "go").touch()
    next_one = program("a", "wait")
    assert next_one.communicate(timeout=300)[1] == "" and next_one.returncode == 0
    assert built(folder) == 1 and not list((folder / "cache").glob("*.building"))


STARVING = """#!/bin/sh
echo "$$ $(cut -d ' ' -f 41 /proc/$$/stat)" >> {folder}/log
[ -e {folder}/again ] || {{ touch {folder}/again; sleep 300 & wait; }}
exec {folder}/builder "$@"
"""


def test_no_idle_core(folder, monkeypatch):
    """A compiler that gets no core for a while begins anew with a share of one, and what it began is ended."""
    starving = folder / "distile_builder"
    starving.rename(folder / "builder")
    starving.write_text(STARVING.format(folder=folder))
    starving.chmod(0o755)
    hasty = on_demand._Helper._PROGRAM.replace("waits=False", "")
    hasty = hasty.replace("import serve", "import serve\nfrom distile import build_process\nbuild_process.PATIENCE_S = 0.3")
    monkeypatch.setattr(on_demand._Helper, "_PROGRAM", hasty)
    on_demand.set_build("background")
    assert not ask("a")
    (folder / "go").touch()
    wait_for("a")
    (first, idle), (second, other) = (line.split() for line in begun(folder)[:2])
    assert int(idle) == os.SCHED_IDLE and int(other) == os.SCHED_BATCH
    assert (folder / "last").read_text().split()[0] == second and not pathlib.Path(f"/proc/{first}").exists()


def test_exit(folder):
    """A program ends at once, and says what was dense. What is begun is built, and no more."""
    left = program("a", "bb", "leave")
    output, errors = left.communicate(timeout=300)  # Which ends when nobody holds its output.
    assert left.returncode == 0 and output == "left\n"
    assert errors.startswith(f"distile: 2 operators ran dense to the end: {on_demand.State.BUILDING.value}\n  masked_")
    assert errors.count("\n  masked_linear(") == 2 and errors.count("\n") == 4 and "distile.build compiles" in errors
    wait_until(lambda: begun(folder))
    (folder / "go").touch()
    wait_until(lambda: built(folder) and not list((folder / "cache").glob("*.building")))
    assert built(folder) == len(begun(folder)) == 1


def test_fork(folder):
    forked = program("a", "bb", "fork")
    wait_until(lambda: begun(folder))
    (folder / "go").touch()
    assert forked.communicate(timeout=300)[1] == "" and forked.returncode == 0
    assert len(begun(folder)) == 2 == built(folder)


@pytest.mark.parametrize("when", on_demand.TIMES[1:])
def test_failures(folder, when):
    """Each is reported once and not tried again, unless somebody says so."""
    (folder / "go").touch()
    asked = (
        ("wrong", "no kernel is wrong"),
        ("old", "version 3, but this library runs version"),
        ("wrong", "is wrong"),
    )
    for number, (name, reason) in enumerate(asked, 1):
        on_demand.set_build(when, progress=[].append)
        with pytest.warns(UserWarning, match=f"stays dense: .*{reason}") as warned:
            wait_until(lambda: not ask(name) and not pending())
            assert not any(ask(name) for _ in range(3))
        assert len(warned) == 1 and len(begun(folder)) == number and built(folder) == 0
        assert any(reason in why for why in on_demand.still_dense().values())


def pending() -> bool:
    return on_demand.State.BUILDING.value in on_demand.still_dense().values()


INTERRUPTED = """
import time
import torch
import distile

distile.set_build("now")
try:
    result = distile.nn.MaskedLinear(9, 23)(torch.ones(1, 3, 9), torch.ones(1, 3, dtype=torch.bool))
    time.sleep(300)
except KeyboardInterrupt:
    print(tuple(result.shape))
"""


def test_interrupt(folder):
    """Ctrl-C ends a build, and is what the caller of the layer gets."""
    running = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: begun(folder))
    running.send_signal(signal.SIGINT)
    (folder / "go").touch()  # A terminal would have interrupted the compiler, too.
    output, errors = running.communicate(timeout=250)  # Less than the program sleeps.
    assert output == "(1, 3, 23)\n" and "its build was interrupted" in errors and running.returncode == 0
    assert not list((folder / "cache").glob("*.building"))


@pytest.mark.parametrize("when", on_demand.TIMES[1:])
def test_folder(folder, monkeypatch, when):
    """A cache folder that cannot be written, or is full, is one reason for all."""
    (folder / "go").touch()
    monkeypatch.setenv("DISTILE_CACHE", str(folder / "go" / "cache"))
    on_demand.set_build(when, progress=[].append)
    with pytest.warns(UserWarning, match="cannot be written into .*/go/cache: Not a directory; name another") as warned:
        wait_until(lambda: not ask("a") and not ask("bb") and not pending())
    assert len(warned) == 1 and len(on_demand.still_dense()) == 2
    monkeypatch.setenv("DISTILE_CACHE", str(folder / "cache"))
    on_demand.set_build(when, progress=[].append)
    with pytest.warns(UserWarning, match="stays dense: no kernel is wrong$") as warned:
        wait_until(lambda: not ask("wrong") and not ask("wrong too") and not pending())
    assert len(warned) == 1


def test_full_disk(folder, monkeypatch):
    (folder / "go").touch()
    monkeypatch.setattr(compiler.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=4096))
    on_demand.set_build("now", progress=[].append)
    with pytest.warns(UserWarning, match=r"wrong \(the disk of .* is full: free some space, or name another folder"):
        assert not ask("wrong")


@pytest.mark.parametrize("when", on_demand.TIMES[1:])
def test_no_tensor_cores(folder, monkeypatch, when):
    """Code for GPUs that is slower than it could be is told of once."""
    (folder / "go").touch()
    (folder / "distile_tensor_core.o").touch()
    monkeypatch.setattr(compiler, "_told", set())
    monkeypatch.setenv("CUDACXX", "no-such-nvcc")
    on_demand.set_build(when, progress=[].append)
    with pytest.warns(UserWarning, match="without code for tensor cores.*'no-such-nvcc', which does not") as warned:
        for name in ("a", "bb"):
            operator = Operator.make("masked_linear", in_channels=len(name), text=name).on("cuda")
            wait_until(lambda: on_demand.ask(operator, None, lambda: (folder / "cache", VERSION)))
    assert len(warned) == 1 and built(folder) == 2


def test_no_compiler(folder, monkeypatch):
    monkeypatch.setattr(on_demand, "compiler_folder", lambda: None)
    monkeypatch.setattr(toolchain, "compiler_folder", lambda: None)
    on_demand.set_build("background")
    with pytest.warns(UserWarning, match="needs distile's compiler") as warned:
        assert not ask("a") and not ask("bb") and not ask("a")
    assert len(warned) == 1 and len(on_demand.still_dense()) == 2


def test_helper_that_dies(folder):
    on_demand.set_build("background")
    assert not ask("a")
    wait_until(lambda: begun(folder))
    on_demand._builder.helper._process.kill()
    with pytest.warns(UserWarning, match="ended with status -9"):
        wait_until(lambda: ask("a") or not pending())
    (folder / "go").touch()
    wait_for("bb")  # By another process.


def test_now(folder):
    """Threads that want the same wait for one build of it."""
    (folder / "go").touch()
    lines: list[str] = []
    on_demand.set_build("now", progress=lines.append)
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(ask("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == [True] * 4 and len(begun(folder)) == 1
    assert len(lines) == 2 and lines[0].startswith("building the PolyKernel of masked_linear") and "built" in lines[1]


def test_arguments(monkeypatch):
    with pytest.raises(ValueError, match="never, background, now, not 'later'"):
        distile.set_build("later")
    monkeypatch.setenv("DISTILE_BUILD", "background")
    assert on_demand._Builder().when == "background"
    monkeypatch.setenv("DISTILE_BUILD", "1")
    with pytest.raises(ValueError, match="DISTILE_BUILD"):
        on_demand._Builder()


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:distile")
def test_never():
    layer = MaskedLinear(11, 13).half()  # The library computes float32 without a PolyKernel.
    layer(torch.randn(1, 3, 11).half(), torch.ones(1, 3, dtype=torch.bool))
    (why,) = (why for operator, why in distile.still_dense().items() if ("out_channels", 13) in operator.params)
    assert why == polykernels.NOT_ASKED and on_demand._builder.helper is None


@pytest.mark.cpu
@pytest.mark.skipif(toolchain.compiler_folder() is None, reason="distile's compiler is not installed")
@torch.no_grad()
def test_layer():
    """The first calls run code for any shape, later ones the PolyKernel, also in compiled code and threads."""
    distile.set_build("background")
    layer = MaskedConv2d(7, 16, 3, padding=1, activation="relu")
    x, mask = torch.randn(1, 7, 9, 8), torch.rand(1, 9, 8) < 0.5
    expected = torch.where(mask[:, None], layer(x), 0.0)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), expected, rtol=1e-4, atol=1e-4)
    operator = distile.missing()[-1]
    assert ("in_channels", 7) in operator.params and operator not in distile.still_dense()

    def call_until_built():
        wait_until(
            lambda: torch.allclose(compiled(x, mask), expected, 1e-4, 1e-4) and operator not in distile.missing()
        )

    threads = [threading.Thread(target=call_until_built) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    with polykernels.recording() as missing:
        torch.testing.assert_close(layer(x, mask), expected, rtol=1e-4, atol=1e-4)
    assert not missing
