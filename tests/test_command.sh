#!/usr/bin/env bash
# Runs the distile command as a person would: on good plans, and on bad input that must give a clear error.
# Usage: test_command.sh <distile> <source folder>
set -euo pipefail
distile=$1
source_folder=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
plan=$source_folder/tests/consumer/my_plan.json

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# expect_error <text> <arguments ...>: exit status 1 (2 and more: wrong usage) and the text on standard error.
expect_error() {
    local text=$1 output
    shift
    output=$("$distile" "$@" 2>&1 >/dev/null) && fail "distile $* did not fail"
    [[ $output == *"$text"* ]] || fail "distile $* said '$output', not '$text'"
}

"$distile" --help | grep -q profile || fail "the help does not name profile"
"$distile" profile --help | grep -q 'Examples' || fail "the help of profile has no example"
"$distile" info "$plan" | grep -q '1x1 convolution, 2 -> 3 channels' || fail "info does not explain the operator"
"$distile" info --json "$plan" | grep -q '"cpu_features"' || fail "info --json has no CPU features"
for shipped in "$source_folder"/data/plans/*.json; do
    "$distile" info "$shipped" >/dev/null || fail "info cannot read $shipped"
done

cuda_plan=$source_folder/data/plans/conv3x3_256_cuda.json
"$distile" info "$cuda_plan" | grep -q 'an NVIDIA GPU of compute capability 7.0' || fail "info does not name the GPU"
"$distile" info "$cuda_plan" | grep -q 'blocks of 64 pixels x 128 channels' || fail "info does not explain a GPU's theta"
expect_error "give --multiprocessors in place of --threads" profile "$cuda_plan" --threads 2
if [[ ! -e /dev/nvidia0 ]]; then
    # Without a GPU: an error before anything is compiled or written.
    output=$("$distile" profile "$cuda_plan" -o "$folder/gpu.json" 2>&1) && fail "a profile without a GPU did not fail"
    [[ $output == *DISTILE_ERROR_NO_* || $output == *"without a CUDA toolkit"* ]] || fail "no GPU gave '$output'"
    [[ ! -e $folder/gpu.json ]] || fail "a profile without a GPU left a time table"
fi

# A time table, and the same table inside the plan.
cp "$plan" "$folder/plan.json"
"$distile" profile "$folder/plan.json" -o "$folder/times.json" --threads 1 --seconds 0.01 >"$folder/table"
grep -q '"distile_times": 1' "$folder/times.json" || fail "profile wrote no time table"
grep -q 'Time table of' "$folder/table" || fail "profile printed no table"
"$distile" profile "$folder/plan.json" --into-plan --threads 1,2 --seconds 0.01 --quiet
"$distile" info "$folder/plan.json" | grep -q 'with 2 threads' || fail "profile --into-plan wrote no times"

# Compiled first, measured later: only the code of the same plan is taken.
"$distile" compile "$plan" -o "$folder/plan.so" --quiet
"$distile" profile "$plan" --object "$folder/plan.so" -o "$folder/object.json" --threads 1 --seconds 0.01 --quiet
grep -q '"distile_times": 1' "$folder/object.json" || fail "profile --object wrote no time table"
expect_error "was not compiled from the plan" profile "$source_folder/tests/plans/test_conv3_16_48_avx2.json" \
    --object "$folder/plan.so" -o "$folder/never.json" --threads 1
expect_error "cannot be loaded" profile "$plan" --object "$folder/none.so" -o "$folder/never.json" --threads 1
expect_error "cannot be written" compile "$plan" -o "$folder/none/plan.so"
expect_error "give --threads in place of --multiprocessors" profile "$plan" --multiprocessors 2

# Bad input.
expect_error "cannot be opened" info "$folder/none.json"
echo '{"distile_plan": 1' >"$folder/broken.json"
expect_error "is not JSON" info "$folder/broken.json"
sed 's/"distile_plan": 1/"distile_plan": 99/' "$plan" >"$folder/version.json"
expect_error "it has version 99; this program reads version 1" info "$folder/version.json"
sed 's/"tile_w": 1, //' "$plan" >"$folder/knob.json"
expect_error '"tile_w" is missing' profile "$folder/knob.json"
sed 's/"channels": 16/"channels": 24/' "$plan" >"$folder/illegal.json"
expect_error "a theta must have" profile "$folder/illegal.json" -o "$folder/never.json"
[[ ! -e $folder/never.json ]] || fail "a failed profile left a time table"
sed 's/avx2-f16c/avx2-sve2-f16c/' "$plan" >"$folder/feature.json"
expect_error "feature 'sve2'" info "$folder/feature.json"
expect_error "cannot be written" profile "$folder/plan.json" -o "$folder/none/times.json" --threads 1 --seconds 0.01
if "$distile" profile "$plan" --threads 0 2>/dev/null; then
    fail "0 threads were accepted"
fi
echo "all right"
