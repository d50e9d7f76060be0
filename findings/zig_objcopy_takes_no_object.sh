#!/usr/bin/env bash
# ziglang 0.17.1: `zig objcopy` refuses object files.
#
# The guess: as `zig ar` and `zig ranlib` are LLVM's, `zig objcopy` is llvm-objcopy, so a wheel of Python brings all that
# localizes, renames or strips the symbols of objects.
# What happens instead: it is a program of Zig's own, which copies whole programs and libraries from ELF to ELF, and no
# relocatable object, even without an option. It knows no option that names a symbol.
# Why it matters: `ld -r` and `objcopy --keep-global-symbol`, which hide the symbols of several objects in one, have no
# stand-in there. Link a shared library with a version script instead: `zig cc -shared` and `zig ld.lld` take it.
# Seen: copying an object fails with "ELF to ELF copying only supports programs", and --keep-global-symbol is
# unrecognized; the shared library of the same object shows one of its two symbols.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet ziglang==0.17.1
zig=(python/bin/python -m ziglang)
echo 'int shown, hidden;' >a.c
"${zig[@]}" cc -fPIC -c -o a.o a.c
"${zig[@]}" ar --version | grep LLVM
! "${zig[@]}" objcopy a.o b.o 2>message
grep 'only supports programs' message
! "${zig[@]}" objcopy --keep-global-symbol=shown a.o b.o 2>message
grep 'unrecognized argument' message
echo '{ global: shown; local: *; };' >map
"${zig[@]}" ld.lld -shared --version-script=map -o a.so a.o
python/bin/python -c 'import ctypes
library = ctypes.CDLL("./a.so")
assert hasattr(library, "shown") and not hasattr(library, "hidden")'
echo "zig objcopy takes no object"
