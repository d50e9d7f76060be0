"""Checks our English with english.py, includes with includes.py, the layout of our sources with clang-format, and the
sources that build/release compiles with clang-tidy.

Usage: lint.py <processes at once> [deep]

Without "deep", clang's static analyzer follows a tenth of the paths through a function, and only in what runs inside
applications: that takes less than half of the time.
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import time

import english
import includes

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
IN_APPLICATIONS = ("runtime", "bindings", "onnxruntime")
SHALLOW = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000")]


def run(*command):
    """Returns whether a command succeeded, and its output."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, done.stdout


def tidy(file, options):
    """Returns clang-tidy's findings in a file, or an empty string."""
    # Clang does not know all of GCC's warning options, and warnings are the compiler's to report: without the analyzer,
    # -Werror makes them findings.
    good, output = run(BIN / "clang-tidy", "-p", "build/lint", "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                       "--extra-arg=-Wno-error", *options, file)
    return "" if good else output or f"clang-tidy failed at {file}\n"


def shallow(file):
    """The options for a file without "deep"."""
    folder = pathlib.Path(file).relative_to(ROOT).parts[0]
    return SHALLOW if folder in IN_APPLICATIONS else ["--checks=-clang-analyzer-*"]


def without_precompiled(command):
    """A command without the headers that the compiler has read before: each file includes what it needs."""
    words = re.sub(r" -Winvalid-pch| -include \S+/cmake_pch\.hxx", "", command["command"])
    return {**command, "command": words}


def of_each_file(command):
    """The commands of the files that a unity build compiles at once; otherwise the command itself."""
    unity = pathlib.Path(command["file"])
    if unity.parent.name != "Unity":
        return [command]
    files = re.findall(r'^#include "([^"]+)"', unity.read_text(), re.MULTILINE)
    return [{**command, "file": file, "command": command["command"].replace(str(unity), file)} for file in files]


def main():
    processes, *mode = sys.argv[1:]
    files = english.tracked_files()
    good = english.check(files)
    sources = [file for file in files if file.endswith((".c", ".cpp", ".h", ".hpp", ".cu", ".cuh"))]
    good = includes.check(ROOT, sources) and good
    formatted, output = run(BIN / "clang-format", "--dry-run", "-Werror", *sources)
    good = good and formatted
    print(output, end="")

    # Check a file only once, even if it is in several targets.
    ours = {str(ROOT / source) for source in sources}
    commands = json.loads((ROOT / "build/release/compile_commands.json").read_text())
    commands = [one for command in commands for one in of_each_file(command)]
    commands = {command["file"]: without_precompiled(command) for command in commands if command["file"] in ours}
    (ROOT / "build/lint").mkdir(exist_ok=True)
    (ROOT / "build/lint/compile_commands.json").write_text(json.dumps(list(commands.values())))
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(int(processes)) as pool:
        for found in pool.map(lambda file: tidy(file, [] if mode == ["deep"] else shallow(file)), commands):
            good = good and not found
            print(found, end="", flush=True)
    print(f"clang-tidy checked {len(commands)} files in {time.monotonic() - start:.0f} s")
    return 0 if good else 1


sys.exit(main())
