#!/usr/bin/env bash
# The command on a device that cannot compile: what another machine's command compiles for it, it measures.
# Usage: test_device_command.sh <distile of the machine that builds> <distile of the device> <folder of its objects>
#                               <source folder>
# $CC compiles for the device, and the words of $EMULATOR start its programs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1
objects=$3
source_folder=$4
read -ra device <<<"${EMULATOR:-} $2"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
op=$source_folder/tests/fixtures/operators/test_conv3_16_48.json

# A plan by the bound, for the best of the device's CPUs, and the portable one.
"$distile" plan "$op" --platform arm-64-linux -o "$folder" | has 'armv82.json: by the bound: ' || fail "plan measured an Arm CPU"
plan=$folder/test_conv3_16_48_armv82.json
"$distile" portable "$op" --platform arm-64-linux -o "$folder/portable.json"
"$distile" info "$plan" | has 'a CPU with neon dotprod fp16' || fail "info does not say what the plan needs"
"${device[@]}" info "$folder/portable.json" | has 'any AArch64 CPU' || fail "info does not say that any CPU will do"

program=("$distile")
expect_error "DISTILE_OBJECTS" compile "$plan" -o "$folder/plan.so"
DISTILE_OBJECTS=$objects "$distile" compile "$plan" -o "$folder/plan.so" -q
program=("${device[@]}")
"${device[@]}" profile "$plan" --object "$folder/plan.so" --threads 1 --seconds 0.01 -o "$folder/times.json" | has masked_1 ||
    fail "profile did not measure what was compiled"
has '"variant": *"masked_1"' <"$folder/times.json" || fail "profile wrote no times"
expect_error "this CPU lacks" profile "$plan" --object "$folder/plan.so" --cpu-features fp16 -o "$folder/times.json"
expect_error "avx2" profile "$source_folder/tests/fixtures/plans/test_conv3_16_48_avx2.json" --object "$folder/plan.so"

# Without a device profile, ranked by a generic one of the CPU that it runs on.
"${device[@]}" rank "$op" --device generic_armv82 --density .3 --top 2 | has 'register tiles' || fail "rank"
echo "all right"
