"""Checks our English with english.py, includes with includes.py, the layout of our sources with clang-format, and the
sources that build/release compiles with clang-tidy.

Usage: lint.py <processes at once> [deep]

Without "deep", clang's static analyzer follows a tenth of the paths through a function, and only in what runs inside
applications, and files that the build compiles together are checked together: that takes a sixth of the time.
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
    good, output = run(BIN / "clang-tidy", "-p", LINT, "--quiet", "--extra-arg=-Wno-unknown-warning-option",
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


def checked(commands, ours, together):
    """Writes the commands of our files for clang-tidy, each file in one of them even if it is in several targets.

    Returns what clang-tidy is to read, each with one of the files in it, and the number of files. Together: files that
    the build compiles together are included by one file, because most of the time goes into headers, which they share.
    """
    shutil.rmtree(LINT, ignore_errors=True)
    LINT.mkdir(parents=True)
    written, read, seen = [], [], set()
    for command in map(without_precompiled, commands):
        files = [file for file in dict.fromkeys(files_of(command)) if file in ours and file not in seen]
        seen.update(files)
        if together and len(files) > 1:
            unity = folder_for(files[0]) / f"unity_{len(read)}{pathlib.Path(files[0]).suffix}"
            unity.write_text("".join(f'#include "{file}"  // NOLINT(bugprone-suspicious-include)\n' for file in files))
            written.append(compiling(command, unity))
            read.append((unity, files[0]))
        else:
            written += [compiling(command, file) for file in files]
            read += [(file, file) for file in files]
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

    deep = mode == ["deep"]
    commands = json.loads((ROOT / "build/release/compile_commands.json").read_text())
    read, count = checked(commands, {str(ROOT / source) for source in sources}, together=not deep)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(int(processes)) as pool:
        for found in pool.map(lambda one: tidy(one[0], [] if deep else shallow(one[1])), read):
            good = good and not found
            print(found, end="", flush=True)
    print(f"clang-tidy checked {count} files in {time.monotonic() - start:.0f} s")
    return 0 if good else 1


sys.exit(main())
