"""Converts the model definitions of timm and torchvision, and ONNX models of packages, and compares each with its dense
model.

    python python/zoo --out zoo.jsonl                   # all, but those that the same code has put into the file
    python python/zoo --out zoo.jsonl 'vit_*' --again   # these, whether they are in it or not
    python python/zoo --out zoo.jsonl resnet18 --times  # compiles its PolyKernels, and times it

Each runs in a process of its own, and its result becomes a line of the file at once.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import threading

import architectures
import onnx_models
import results

HERE = pathlib.Path(__file__).parent


def read(path: pathlib.Path) -> dict[str, dict]:
    """The last result of each architecture in a file, and its last times. A line that was cut off does not count."""
    models: dict[str, dict] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        known = models.setdefault(found["architecture"], {})
        if "times" not in found:
            found |= {"times": known["times"]} if "times" in known else {}
            known.clear()
        known.update(found)
    return models


def run(name: str, script: str, arguments: list[str], seconds: float) -> dict:
    """What a script finds of an architecture, in a process of its own."""
    command = [sys.executable, str(HERE / script), name, *arguments]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
        return json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        fault = f"it took more than {seconds:.0f} seconds"
    except (IndexError, ValueError):
        fault = f"the process ended with {process.returncode}: {process.stderr.strip()[-300:]}"
    return {"architecture": name, "fault": fault}


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python python/zoo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*", default=["*"], help="patterns of names (default: all)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the file of results, one a line")
    parser.add_argument("--again", action="store_true", help="also those that the same code has put into the file")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one may take (default: %(default)s)")
    parser.add_argument("--times", action="store_true", help="time these instead, on a machine that does nothing else")
    parser.add_argument("--seconds", type=float, default=10, help="to time each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="to time with (default: %(default)s)")
    parser.add_argument("--tables", type=pathlib.Path, help="write the results as JSON here, and as Markdown beside it")
    options = parser.parse_args(arguments)
    now = results.code()
    fits = lambda result: "times" in result if options.times else result.get("code") == now
    known = {} if options.again else {name for name, result in read(options.out).items() if fits(result)}
    names = [name for name in (*architectures.NAMED, *onnx_models.NAMED) if _matches(name, options.names)]
    names = [name for name in names if name not in known]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    _end_line(options.out)
    lock, done = threading.Lock(), 0

    def check(name: str) -> None:
        nonlocal done
        script, more = "check.py" if name in architectures.NAMED else "check_onnx.py", []
        if options.times:
            script, more = "times.py", [str(options.seconds), str(options.threads)]
        result = run(name, script, more, options.limit) | ({} if options.times else {"code": now})
        with lock:
            with options.out.open("a") as out:
                out.write(json.dumps(result) + "\n")
            done += 1
            print(f"{done}/{len(names)} {name}: {results.verdict(result)}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(1 if options.times else options.jobs) as pool:
        list(pool.map(check, names))
    found = list(read(options.out).values())
    print(results.summary(found))
    if options.tables:
        results.write(found, options.tables)
    return int(any(not results.is_exact(result) for result in found))


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in patterns)


def _end_line(path: pathlib.Path) -> None:
    """Ends a last line that was cut off, so that the next begins anew."""
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as out:
            out.write("\n")


if __name__ == "__main__":
    sys.exit(main())
