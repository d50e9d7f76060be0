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
device_distile=$2
read -ra device <<<"${EMULATOR:-} $device_distile"
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

# A search for the device, whose trials are compiled here and measured there. Where this machine does not start programs
# of the device by itself, each trial's worker is started here, as `distile measure` does it.
measure() {
    local i
    if "$device_distile" --help >/dev/null 2>&1; then
        "$device_distile" measure "$1" -q
        return
    fi
    for i in "$1"/trial*.so; do
        i=${i##*trial}
        "${device[@]}" worker "$1" "${i%.so}" -1 result.json
        { cat result.json && echo; } >>"$1/results.jsonl"
        rm result.json
    done
}
cd "$folder"
program=("$distile")
export DISTILE_OBJECTS=$objects
for level in "armv82 neon dotprod fp16" "aarch64 AArch64"; do
    read -r device_level says <<<"$level"
    tune=(tune "$op" --masks blob:0.2:1 random:0.5:2 --device "generic_$device_level" --threads 1 -k 1 --trials 2
        --per-round 1 --counts 2 --timing-seconds 0.01 --measure-limit 600 --compile-limit 600 --jobs 1
        --folder "batch_$device_level" -o "tuned_$device_level.json")
    "$distile" "${tune[@]}" | has "distile measure batch_$device_level" || fail "tune --folder compiled no batch"
    grep -q '"target": *"arm-64-linux' "batch_$device_level/request.json" || fail "tune compiled for another target"
    expect_error "wait to be measured" "${tune[@]}"
    measure "batch_$device_level"
    outcomes=$(grep -o '"outcome":"[a-z_]*"' "batch_$device_level/results.jsonl" | sort -u)
    [[ $outcomes == '"outcome":"ok"' ]] || fail "a trial failed: $(cat "batch_$device_level/results.jsonl")"
    "$distile" "${tune[@]}" -q
    [[ $(grep -c '"outcome":"ok"' "tuned_$device_level.log") == 2 ]] || fail "the results were not taken over"
    "$distile" info "tuned_$device_level.json" | has "$says" || fail "the plan is for another device"
done
unset DISTILE_OBJECTS
expect_error "of another platform than this program's" tune "$op" --masks blob:0.2:1 --device generic_aarch64 --threads 1 \
    --folder never -o never.json

# An OpenCL device of its own: the code is compiled here, and there, without OpenCL, a message says what is missing.
"$distile" plan "$op" --platform arm-64-linux --backend opencl --bound-only -o "$folder" -q
plan=$folder/test_conv3_16_48_opencl.json
DISTILE_OBJECTS=$objects "$distile" compile "$plan" -o "$folder/opencl.so" -q
program=("${device[@]}")
expect_error "OpenCL" profile "$plan" --object "$folder/opencl.so" -o "$folder/times.json"

# Without a device profile, ranked by a generic one of the CPU that it runs on.
"${device[@]}" rank "$op" --device generic_armv82 --density .3 --top 2 | has 'register tiles' || fail "rank"
echo "all right"
