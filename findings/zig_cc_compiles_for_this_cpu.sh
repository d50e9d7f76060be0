#!/usr/bin/env bash
# ziglang 0.17.1: `zig cc` without a target compiles for the CPU that it runs on.
#
# The guess: zig cc takes the options of clang, which it contains, so without -march code runs on any x86-64 CPU, as with
# gcc and clang.
# What happens instead: it compiles as with -march=native. With `-target x86_64-linux-gnu`, which names the same machine,
# it compiles for any x86-64 CPU.
# Why it matters: an object that is cached in a shared folder, shipped in a wheel or put into an image of a container dies
# of an illegal instruction on an older CPU, and no option on the command line tells of it. A target also fixes the
# version of the C library, which is the machine's otherwise.
# Seen: on a CPU with AVX2, __AVX2__ is defined without a target and undefined with one.
set -euo pipefail
grep -qw avx2 /proc/cpuinfo || { echo "this CPU has no AVX2, so both ways compile for the same"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet ziglang==0.17.1
# avx2 <option>...: whether code may use AVX2.
avx2() {
    "$folder/python/bin/python" -m ziglang cc "$@" -dM -E -x c /dev/null >"$folder/macros"
    grep -q '__AVX2__ 1' "$folder/macros"
}
avx2 || { echo "without a target, code is for any CPU"; exit 1; }
! avx2 -target x86_64-linux-gnu || { echo "with a target, code is for this CPU"; exit 1; }
echo "without a target, zig cc compiles for this CPU"
