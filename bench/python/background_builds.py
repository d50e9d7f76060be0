#!/usr/bin/env python3
"""Measures what a PolyKernel that compiles beside a program takes from its calls (distile.set_build("background")).

Each round starts a process for each side, in turns, with a cache folder of its own. It warms the threads up with another
layer, times the first call of a layer that has no PolyKernel, then calls for a while, and at most until that is there.
Sides: "PyTorch" is the dense layer itself; "alone" is ours without a build, by what computes it until then; "beside" is
ours while its PolyKernel compiles. Rows "paced" sleep between calls, as a camera does, so the build has the
cores then; rows "tight" do not, so it has what calls leave. With --plain, a side "plain" compiles without giving way, to
see what that is worth.

A row has the medians and quartiles of the first calls, and of the medians of the later ones, their ratios to PyTorch's
and to the other sides in the same round (medians of them), and how long after the first call the PolyKernel was there;
none where it was not before the limit.

Example:
  background_builds.py --out build/background.json
  background_builds.py --out build/background.json --resume --filter paced

Needs the wheel, or PYTHONPATH=python, and its compiler: the extra `compiler`, or DISTILE_COMPILER.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

# Name: PyTorch's layer, ours, input; no PolyKernel of them ships.
LAYERS = {
    "conv3x3_72": ("Sequential(Conv2d(72, 72, 3, padding=1), ReLU())",
                   "MaskedConv2d(72, 72, 3, padding=1, activation='relu')", (1, 72, 56, 56)),
    "conv3x3_264": ("Sequential(Conv2d(264, 264, 3, padding=1), ReLU())",
                    "MaskedConv2d(264, 264, 3, padding=1, activation='relu')", (1, 264, 40, 40)),
    "linear_400_1600": ("Sequential(Linear(400, 1600), GELU())", "MaskedLinear(400, 1600, activation='gelu')",
                        (4, 197, 400)),
}
SIDES = ("PyTorch", "alone", "beside", "plain")
BUILD = ("beside", "plain")
PAUSES = {"tight": 0, "paced": .03}
WARM_UP_S, ALONE_S, SHARE = .3, 2, .3


def times_of(options):
    """A side, in its own process: the time of the first call, those of later ones, and when the PolyKernel was there."""
    import torch

    import distile
    from distile import on_demand

    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    dense, ours, shape = LAYERS[options.layer]
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last) if len(shape) == 4 else x
    mask = torch.rand(shape[:1] + (shape[2:] if len(shape) == 4 else shape[1:2])) < SHARE
    if options.side == "PyTorch":
        layer, inputs = eval(dense, vars(torch.nn)), (x,)  # pylint: disable=eval-used
    else:
        layer, inputs = eval(ours, vars(distile.nn)), (x, mask)  # pylint: disable=eval-used
    if options.side == "plain":
        plain = on_demand._Helper._PROGRAM.replace("os.nice(10)", "").replace("serve()", "serve(waits=False)")
        on_demand._Helper._PROGRAM = plain
    builds = options.side in BUILD
    if builds:
        distile.set_build("background")
        time.sleep(.5)  # Its process has started.

    def timed():
        begin = time.perf_counter()
        layer(*inputs)
        return (time.perf_counter() - begin) * 1e6

    with torch.inference_mode():
        other = torch.nn.Conv2d(64, 64, 3, padding=1)
        end = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < end:
            other(torch.randn(1, 64, 56, 56))
        begin = time.perf_counter()
        first, later, there = timed(), [], None
        while there is None and time.perf_counter() < begin + options.seconds:
            time.sleep(PAUSES[options.pace])
            later.append(timed())
            if builds and not on_demand.still_dense():
                there = time.perf_counter() - begin
                if len(later) > 1:
                    later.pop()  # It may be that of the PolyKernel.
        while on_demand.State.BUILDING.value in on_demand.still_dense().values():
            time.sleep(.1)  # None compiles beside the next side.
        for why in on_demand.still_dense().values() if builds else ():
            raise SystemExit(f"background_builds.py: {why}")
    return {"first": first, "later": later, "there": there}


def run_side(name, side, options):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--side", side, "--layer", name, "--pace", options.pace, "--threads",
                   str(options.threads), "--seconds", str(options.seconds if side in BUILD else ALONE_S)]
        environment = {**os.environ, "DISTILE_CACHE": folder}
        environment.pop("DISTILE_BUILD", None)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def summary(values):
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": quartiles[1], "quartiles": [quartiles[0], quartiles[2]]}


def measure_layer(name, options):
    sides = SIDES if options.plain else SIDES[:-1]
    found = {side: [] for side in sides}
    for turn in range(options.rounds):
        for side in sides[turn % len(sides):] + sides[:turn % len(sides)]:
            found[side].append(run_side(name, side, options))
    first = {side: [one["first"] for one in rounds] for side, rounds in found.items()}
    later = {side: [statistics.median(one["later"]) for one in rounds] for side, rounds in found.items()}
    row = {"status": "measured", "kind": "background build", "op": name, "pace": options.pace,
           "first_us": {side: summary(values) for side, values in first.items()},
           "later_us": {side: summary(values) for side, values in later.items()}}
    for kind, times in (("first", first), ("later", later)):
        for side, base in itertools.combinations(reversed(sides), 2):
            ratios = [one / other for one, other in zip(times[side], times[base])]
            row[f"{kind}_{side}_by_{base}"] = statistics.median(ratios)
    for side in [side for side in sides if side in BUILD]:
        there = [one["there"] for one in found[side]]
        row[f"{side}_there_s"] = None if None in there else statistics.median(there)
    return row


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file of results")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    parser.add_argument("--filter", default="", help="regular expression on the names of rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch")
    parser.add_argument("--seconds", type=float, default=20, help="of calls beside a build, at most")
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
    rows = [(layer, pace) for pace in PAUSES for layer in LAYERS]
    for number, (layer, options.pace) in enumerate(rows, 1):
        name = f"{layer}/{options.pace}"
        if not results.wants(name):
            continue
        row = measure_layer(layer, options)
        results.add(name, row)
        there = "not there" if row["beside_there_s"] is None else f"there after {row['beside_there_s']:.1f} s"
        print(f"[{number}/{len(rows)}] {name}: first call {row['first_us']['beside']['median']:.0f} us, "
              f"{row['first_beside_by_PyTorch']:.2f} of PyTorch's; later ones {row['later_beside_by_PyTorch']:.2f}; without "
              f"a build {row['first_alone_by_PyTorch']:.2f} and {row['later_alone_by_PyTorch']:.2f}; {there}", flush=True)


main()
