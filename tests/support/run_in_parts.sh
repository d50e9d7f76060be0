#!/usr/bin/env bash
# Runs a test over every PolyKernel for GPUs (tests/gpu/every_polykernel.h) in parts, each in a process of its own, because
# most of its time goes into what it compares with, on one core. Prints one part, or those that failed.
# Usage: run_in_parts.sh <program> <argument>...
set -euo pipefail
parts=$(($(nproc) < 16 ? $(nproc) : 16))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for ((part = 0; part < parts; part++)); do
    DISTILE_TESTS_PART=$part/$parts "$@" >"$folder/$part" 2>&1 &
    programs[part]=$!
done
failed=0
for ((part = 0; part < parts; part++)); do
    status=0
    wait "${programs[part]}" || status=$?
    if ((status)); then
        echo "Part $part of $parts ended with $status:"
        cat "$folder/$part"
        failed=1
    fi
done
((failed)) || { echo "$parts parts, of which the first printed:"; cat "$folder/0"; }
exit "$failed"
