#!/usr/bin/env bash
# Whether ctest runs every test case of a program. Usage: every_test_runs.sh <program> <tag ...>
# A test case whose tags no test names would never run, and nobody would notice.
set -euo pipefail
program=$1
shift
others=$(printf '~[%s]' "$@")
left=$("$program" --list-test-names-only "$others" | grep -v '^$' || true)
[[ -z $left ]] || {
    printf '%s: no test of ctest runs these cases, because it names none of their tags:\n%s\n' "$program" "$left" >&2
    exit 1
}
