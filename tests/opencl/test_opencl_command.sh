#!/usr/bin/env bash
# The command on this machine's first OpenCL device, as on one elsewhere: a copy of the program without tools measures what
# is compiled here.
# Usage: test_opencl_command.sh <distile> <source folder>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1
program=("$distile")
op=$2/tests/fixtures/operators/test_conv3_16_48.json
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

if ! "$distile" calibrate --device opencl -o device.json -q 2>why.txt; then
    grep -qE 'DISTILE_ERROR_(NO_DRIVER|NO_GPU|OLD_DRIVER)' why.txt || fail "calibrate: $(cat why.txt)"
    echo "[SKIP] there is no OpenCL device: $(cat why.txt)"
    exit 0
fi
mkdir there
cp "$distile" there
there() {
    env CC=/none/cc "$folder/there/distile" "$@"
}

# A search: each batch is compiled here, and carried to the device and back. A busy machine is no failure.
tune=(tune "$op" --masks blob:0.2:1 random:0.5:2 --backend opencl --device device.json -k 1 --trials 3 --per-round 1
    --counts 2 --timing-seconds 0.01 --measure-limit 600 --compile-limit 600 --jobs 1 --folder batch -o plan.json)
for ((batches = 0; batches < 4; batches++)); do
    "$distile" "${tune[@]}" >said.txt 2>&1 || fail "tune --folder: $(cat said.txt)"
    grep -q 'distile measure batch' said.txt || break
    expect_error "wait to be measured" "${tune[@]}"
    grep -q '"target": *"x86-64-linux-opencl"' batch/request.json || fail "tune compiled for another target"
    mv batch there/batch
    there measure there/batch | has 'all of them' || fail "measure did not measure all"
    mv there/batch batch
done
[[ $batches -ge 1 && -e plan.json ]] || fail "the search in a folder wrote no plan: $(cat said.txt)"
[[ $(grep -c '"outcome":"ok"' plan.log) == 3 ]] || fail "not every trial succeeded: $(cat plan.log)"
"$distile" info plan.json | has 'an OpenCL 1.2 device' || fail "the plan is for another device"

# What was compiled for another device is not measured on this one.
sed -i 's/"device": "[^"]*"/"device": "another device"/' batch/request.json
rm -f batch/results.jsonl
expect_error "the trials are for the device 'another device'" measure batch

# Its time table.
"$distile" compile plan.json -o plan.so -q
there profile plan.json --object plan.so --seconds 0.01 -o times.json | has dense || fail "profile measured no dense variant"
has '"distile_times"' <times.json || fail "profile wrote no times"
echo "all right"
