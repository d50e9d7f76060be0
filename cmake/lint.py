"""Checks our English with english.py, includes with includes.py, the layout of our sources with clang-format, and the
sources that build/release compiles with clang-tidy.

Usage: lint.py <processes at once> [deep]

Without "deep", files that the build compiles together are checked together. Clang's static analyzer then reads only what
the last commits changed of what runs inside applications, and follows a tenth of the paths through a function.
"""
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import english
import includes

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
LINT = ROOT / "build/lint"
IN_APPLICATIONS = ("runtime/", "bindings/", "onnxruntime/")
LAST_COMMITS = 100
SHALLOW = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000")]


def run(*command):
    """Returns whether a command succeeded, and its output."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, done.stdout


def tidy(file, options):
    """Returns clang-tidy's findings in a file, or an empty string."""
    # Clang does not know all of GCC's warning options, and warnings are the compiler's to report: without the analyzer,
    # -Werror makes them findings.
    good, output = run(BIN / "clang-tidy", "-p", LINT, "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                       "--extra-arg=-Wno-error", *options, file)
    return "" if good else output or f"clang-tidy failed at {file}\n"


def analyzed():
    """The files that the analyzer reads without "deep": all in applications, if git does not know what was changed."""
    known, changed = run("git", "diff", "--name-only", f"HEAD~{LAST_COMMITS}")
    files = changed.splitlines() if known else english.tracked_files()
    return {str(ROOT / file) for file in files if file.startswith(IN_APPLICATIONS)}


def without_precompiled(command):
    """A command without the headers that the compiler has read before: each file includes what it needs."""
    words = re.sub(r" -Winvalid-pch| -include \S+/cmake_pch\.hxx", "", command["command"])
    return {**command, "command": words}


def files_of(command):
    """The files that a command compiles: several in a unity build."""
    file = pathlib.Path(command["file"])
    if file.parent.name != "Unity":
        return [command["file"]]
    return re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE)


def compiling(command, file):
    """A command that compiles another file instead."""
    return {**command, "file": str(file), "command": command["command"].replace(command["file"], str(file))}


def folder_for(file):
    """A folder of build/lint from which clang-tidy finds the configuration that it finds from a file."""
    folder = LINT
    for part in pathlib.Path(file).relative_to(ROOT).parts[:-1]:
        folder = folder / part
        configuration = ROOT / folder.relative_to(LINT) / ".clang-tidy"
        folder.mkdir(parents=True, exist_ok=True)
        if configuration.exists():
            shutil.copy(configuration, folder)
    return folder


def checked(commands, ours, alone):
    """Writes the commands of our files for clang-tidy, each file in one of them even if it is in several targets.

    Returns what clang-tidy is to read, and the number of files. Files that the build compiles together and that need not
    be alone are included by one file, because most of the time goes into headers, which they share. The analyzer reads
    no function of an included file.
    """
    shutil.rmtree(LINT, ignore_errors=True)
    LINT.mkdir(parents=True)
    written, read, seen = [], [], set()
    for command in map(without_precompiled, commands):
        files = [file for file in dict.fromkeys(files_of(command)) if file in ours and file not in seen]
        seen.update(files)
        together = [file for file in files if file not in alone]
        if len(together) > 1:
            unity = folder_for(together[0]) / f"unity_{len(read)}{pathlib.Path(together[0]).suffix}"
            unity.write_text(
                "".join(f'#include "{file}"  // NOLINT(bugprone-suspicious-include)\n' for file in together))
            files = [str(unity)] + [file for file in files if file in alone]
        written += [compiling(command, file) for file in files]
        read += files
    (LINT / "compile_commands.json").write_text(json.dumps(written))
    return read, len(seen)


def main():
    processes, *mode = sys.argv[1:]
    files = english.tracked_files()
    good = english.check(files)
    sources = [file for file in files if file.endswith((".c", ".cpp", ".h", ".hpp", ".cu", ".cuh"))]
    good = includes.check(ROOT, sources) and good
    formatted, output = run(BIN / "clang-format", "--dry-run", "-Werror", *sources)
    good = good and formatted
    print(output, end="")

    ours = {str(ROOT / source) for source in sources}
    deep = mode == ["deep"]
    alone = ours if deep else analyzed()
    commands = json.loads((ROOT / "build/release/compile_commands.json").read_text())
    read, count = checked(commands, ours, alone)

    def options(file):
        return [] if deep else SHALLOW if file in alone else ["--checks=-clang-analyzer-*"]

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(int(processes)) as pool:
        for found in pool.map(lambda file: tidy(file, options(file)), read):
            good = good and not found
            print(found, end="", flush=True)
    print(f"clang-tidy checked {count} files in {time.monotonic() - start:.0f} s")
    return 0 if good else 1


sys.exit(main())
