#!/usr/bin/env bash
# Runs every operator of the tests on every device that this machine has, and looks at what the program prints.
# Usage: test_device_operators.sh <device_operators>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
program=("$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${program[@]}" support >"$folder/support" || fail "support ended with $?"
has '^cpu: ' <"$folder/support" || fail "there is no CPU:" "$(cat "$folder/support")"
has '^  test_conv3_16_48_avx2: yes, [0-9]* variants$' <"$folder/support" || fail "a CPU runs:" "$(cat "$folder/support")"
# A device that is missing has its reason.
grep -E '^\[SKIP\] (cuda|opencl): ' "$folder/support" || true
! grep -E '^\[SKIP\] [a-z]*: *$' "$folder/support" || fail "a device is missing without a reason"

"${program[@]}" test >"$folder/test" || fail "test found:" "$(grep WRONG "$folder/test" || tail "$folder/test")"
tail -n 1 "$folder/test"
[[ $(grep -c ': right$' "$folder/test") -gt 100 ]] || fail "few variants were tested:" "$(cat "$folder/test")"

"${program[@]}" perf --device cpu --filter '^test_linear_24_40' --json >"$folder/times.json"
python3 - "$folder/times.json" <<'PYTHON' || fail "perf printed" "$(cat "$folder/times.json")"
import json, sys

rows = [row for row in json.load(open(sys.argv[1])) if "us" in row]
assert rows and all(len(row["us"]) == 3 and min(row["us"].values()) > 0 for row in rows)
PYTHON
status=0
"${program[@]}" tset >"$folder/printed" 2>&1 || status=$?
[[ $status != 0 ]] || fail "an unknown mode is taken"
status=0
"${program[@]}" test --filter '(' >"$folder/printed" 2>&1 || status=$?
[[ $status == 2 ]] || fail "a wrong expression ended with $status"
echo "passed"
