#!/usr/bin/env python3
"""Measures what a PolyKernel that compiles beside a program takes from its calls (distile.set_build("background")).

Each round starts a process for each side of each row, all at once; they load PyTorch, wait, and run in turns, with cache
folders of their own. A side warms the threads up with another layer, times the first call of a layer that has no
PolyKernel, then calls for a while, and at most until that is there. Sides: "PyTorch" is the dense layer itself; "alone"
is ours without a build, by what computes it until then: code for any shape, or in rows "bfloat16" the dense layer and
then the mask; "beside" is ours while its PolyKernel compiles. Rows "paced" sleep between calls, as a camera does, so the
build has the cores then; rows "tight" do not, so it has what calls leave. With --plain, a side "plain" compiles without
giving way, to see what that is worth.

A row has the medians and quartiles of the first calls, and of the medians of the later ones, their ratios to PyTorch's
and to the other sides in the same round (medians of them), and how long after the first call the PolyKernel was there;
none where it was not before the limit, or where no round waited for it (--waits).

Example:
  background_builds.py --out build/background.json
  background_builds.py --out build/background.json --resume --filter paced

Needs the wheel, or PYTHONPATH=python, and its compiler: the extra `compiler`, or DISTILE_COMPILER.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

# Name: PyTorch's layer, ours, input, type; no PolyKernel of them ships.
LAYERS = {
    "conv3x3_72": ("Sequential(Conv2d(72, 72, 3, padding=1), ReLU())",
                   "MaskedConv2d(72, 72, 3, padding=1, activation='relu')", (1, 72, 56, 56), "float32"),
    "conv3x3_264": ("Sequential(Conv2d(264, 264, 3, padding=1), ReLU())",
                    "MaskedConv2d(264, 264, 3, padding=1, activation='relu')", (1, 264, 40, 40), "float32"),
    "linear_400_1600": ("Sequential(Linear(400, 1600), GELU())", "MaskedLinear(400, 1600, activation='gelu')",
                        (4, 197, 400), "float32"),
    "conv3x3_136_bfloat16": ("Sequential(Conv2d(136, 136, 3, padding=1), ReLU())",
                             "MaskedConv2d(136, 136, 3, padding=1, activation='relu')", (2, 136, 56, 56), "bfloat16"),
}
SIDES = ("PyTorch", "alone", "beside", "plain")
BUILD = ("beside", "plain")
PAUSES = {"tight": 0, "paced": .03}
WARM_UP_S, SHARE = .3, .3


def end_builds(helper):
    """Ends the process beside and what it compiles, each of which is a group of processes."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == helper.pid:
                os.killpg(int(stat.parent.name), signal.SIGKILL)
    helper.kill()


def times_of(options):
    """A side, in its own process: the time of the first call, those of later ones, and when the PolyKernel was there."""
    import torch

    import distile
    from distile import on_demand

    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    dense, ours, shape, dtype = LAYERS[options.layer]
    dtype = getattr(torch, dtype)
    x = torch.randn(shape).to(dtype)
    x = x.to(memory_format=torch.channels_last) if len(shape) == 4 else x
    mask = torch.rand(shape[:1] + (shape[2:] if len(shape) == 4 else shape[1:2])) < SHARE
    if options.side == "PyTorch":
        layer, inputs = eval(dense, vars(torch.nn)), (x,)  # pylint: disable=eval-used
    else:
        layer, inputs = eval(ours, vars(distile.nn)), (x, mask)  # pylint: disable=eval-used
    layer = layer.to(dtype)
    if options.side == "plain":
        plain = on_demand._Helper._PROGRAM.replace("os.nice(10)", "").replace("SCHED_BATCH", "SCHED_OTHER")
        plain = plain.replace("serve()", "serve(waits=False)")
        on_demand._Helper._PROGRAM = plain
    print("ready", flush=True)
    sys.stdin.readline()
    builds = options.side in BUILD
    if builds:
        distile.set_build("background")
        time.sleep(.5)  # Its process has started.

    def timed():
        begin = time.perf_counter()
        layer(*inputs)
        return (time.perf_counter() - begin) * 1e6

    with torch.inference_mode():
        other = torch.nn.Conv2d(64, 64, 3, padding=1).to(dtype)
        end = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < end:
            other(torch.randn(1, 64, 56, 56).to(dtype))
        begin = time.perf_counter()
        first, later, there = timed(), [], None
        while there is None and time.perf_counter() < begin + options.seconds:
            time.sleep(PAUSES[options.pace])
            later.append(timed())
            if builds and not on_demand.pending():
                there = time.perf_counter() - begin
                if len(later) > 1:
                    later.pop()  # It may be that of the PolyKernel.
        if builds and there is None:
            end_builds(on_demand._builder.helper._process)  # None compiles beside the next side.
        elif builds and (layer(*inputs), distile.missing())[1]:
            raise SystemExit(f"background_builds.py: {options.layer} was not built")
    return {"first": first, "later": later, "there": there}


class Side:
    """A process that has loaded PyTorch and waits."""

    def __init__(self, name, side, pace, seconds, threads):
        self.folder = tempfile.TemporaryDirectory()
        command = [sys.executable, __file__, "--side", side, "--layer", name, "--pace", pace, "--threads",
                   str(threads), "--seconds", str(seconds)]
        environment = {**os.environ, "DISTILE_CACHE": self.folder.name}
        environment.pop("DISTILE_BUILD", None)
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def wait(self):
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("background_builds.py: a side did not start")
        return self

    def run(self):
        printed, _ = self.process.communicate("go\n")
        self.folder.cleanup()
        if self.process.returncode:
            raise SystemExit(f"background_builds.py: a side ended with status {self.process.returncode}")
        return json.loads(printed.splitlines()[-1])


def summary(values):
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": quartiles[1], "quartiles": [quartiles[0], quartiles[2]]}


def measure_round(rows, sides, turn, options):
    """The times of each row's sides, by its name."""
    waits = options.waits is None or turn < options.waits
    seconds = {side: options.seconds if waits and side in BUILD else options.alone for side in sides}
    order = sides[turn % len(sides):] + sides[:turn % len(sides)]
    started = {name: {side: Side(layer, side, pace, seconds[side], options.threads) for side in order}
               for name, (layer, pace) in rows.items()}
    for side in [side for ones in started.values() for side in ones.values()]:
        side.wait()
    return {name: {side: one.run() for side, one in ones.items()} for name, ones in started.items()}


def row_of(layer, pace, rounds, sides):
    first = {side: [one[side]["first"] for one in rounds] for side in sides}
    later = {side: [statistics.median(one[side]["later"]) for one in rounds] for side in sides}
    row = {"status": "measured", "kind": "background build", "op": layer, "pace": pace,
           "first_us": {side: summary(values) for side, values in first.items()},
           "later_us": {side: summary(values) for side, values in later.items()}}
    for kind, times in (("first", first), ("later", later)):
        for side, base in itertools.combinations(reversed(sides), 2):
            ratios = [one / other for one, other in zip(times[side], times[base])]
            row[f"{kind}_{side}_by_{base}"] = statistics.median(ratios)
    for side in [side for side in sides if side in BUILD]:
        there = [one[side]["there"] for one in rounds if one[side]["there"] is not None]
        row[f"{side}_there_s"] = statistics.median(there) if there else None
    return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file of results")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    parser.add_argument("--filter", default="", help="regular expression on the names of rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch")
    parser.add_argument("--seconds", type=float, default=20, help="of calls beside a build, at most")
    parser.add_argument("--alone", type=float, default=1, help="seconds of calls where none waits for a build")
    parser.add_argument("--waits", type=int, help="rounds that wait for PolyKernels (default: all)")
    parser.add_argument("--limit", type=float, help="seconds within which rounds begin that would end in time")
    parser.add_argument("--plain", action="store_true", help="also a build that does not give way")
    parser.add_argument("--source", default="", help="the version of the source, for the header")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)  # What a process of a side is told.
    parser.add_argument("--layer", help=argparse.SUPPRESS)
    parser.add_argument("--pace", choices=PAUSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.device = "cpu"
    if not (options.out or options.side):
        parser.error("--out is needed")
    return options


def main():
    options = parse()
    if options.side:
        print(json.dumps(times_of(options)))
        return
    from measuring import Results

    results = Results(options)
    rows = {f"{layer}/{pace}": (layer, pace) for pace in PAUSES for layer in LAYERS}
    rows = {name: row for name, row in rows.items() if results.wants(name)}
    sides = SIDES if options.plain else SIDES[:-1]
    found = {name: [] for name in rows}
    begin = last = time.monotonic()
    took = 0
    for turn in range(options.rounds):
        if options.limit and last + took > begin + options.limit:
            break
        for name, one in measure_round(rows, sides, turn, options).items():
            found[name].append(one)
            results.add(name, row_of(*rows[name], found[name], sides))
        took, last = time.monotonic() - last, time.monotonic()
        print(f"round {turn + 1} of {options.rounds}: {took:.0f} s", flush=True)
    for name, row in ((row["row"], row) for row in results.file["rows"] if row["row"] in rows):
        there = "not there" if row["beside_there_s"] is None else f"there after {row['beside_there_s']:.1f} s"
        print(f"{name}: first call {row['first_us']['beside']['median']:.0f} us, "
              f"{row['first_beside_by_PyTorch']:.2f} of PyTorch's; later ones {row['later_beside_by_PyTorch']:.2f}; without "
              f"a build {row['first_alone_by_PyTorch']:.2f} and {row['later_alone_by_PyTorch']:.2f}; {there}")


main()
