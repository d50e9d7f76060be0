#!/usr/bin/env bash
# Runs the distile command where it was moved to after it was installed, and where it lies alone.
# Usage: test_installed_command.sh <folder of the installation> <folder of libHalide>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1/bin/distile
data=$1/share/distile
halide=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
plan=$folder/plan.json

# A small plan in the place of one that ships, which compiles for long.
sed -e 's/"name": "conv3x3_256"/"name": "small"/' -e 's/"\(in\|out\)_channels": 256/"\1_channels": 16/' \
    "$data/operators/conv3x3_256.json" >"$folder/operator.json"
cat >"$plan" <<END
{"distile_plan": 2, "name": "small", "operator": $(cat "$folder/operator.json"), "backend": "cpu", "layout": "cpu-o16",
 "target": "x86-64-linux-avx-avx2-f16c-fma-sse41",
 "variants": [{"name": "only", "code": {"halide": {"tile_h": 1, "tile_w": 1, "pixels": 4, "channels": 16,
                                                    "group": 4, "channel_splits": 1, "order": 0, "unroll": 1}}}]}
END

"$distile" info "$data/plans/conv3x3_256_avx2.json" | has 'convolution' || fail "info"
"$distile" rank "$folder/operator.json" --device "$data/devices/generic_avx2.json" --density .3 --top 2 |
    has 'legal schedules' || fail "rank"

# It finds the Halide that it was built with by itself, wherever it was moved to.
LD_LIBRARY_PATH='' "$distile" show "$plan" | has 'const int pixels = 4;' || fail "show does not find Halide's library"
# Where that Halide is gone, nothing else knows: here the folder has another name in the tools.
cp -a "$1" "$folder/tree"
tools=$(dirname "$(readlink -f "$folder/tree/bin/distile")")
LC_ALL=C sed -i "s|$halide|${halide//[a-z]/x}|g" "$tools/distile_generators" "$tools/libautoschedule_polykernel.so"
if ! LD_LIBRARY_PATH='' ldd "$tools/distile_generators" | has 'libHalide.*=> /'; then
    program=("$folder/tree/bin/distile")
    LD_LIBRARY_PATH='' expect_error LD_LIBRARY_PATH compile "$plan" -o "$folder/plan.so"
    program=()
fi
# With Halide's library in it, the tree runs alone.
ln -s "$halide"/libHalide.so* "$tools/.."
found=$(LD_LIBRARY_PATH='' ldd "$tools/distile_generators")
[[ $found == *"$tools/../libHalide.so"* ]] || fail "libHalide in $tools/.. is not found: $found"
LD_LIBRARY_PATH='' "$folder/tree/bin/distile" show "$plan" | has 'const int pixels = 4;' || fail "show in $folder/tree"

# Searches draw their masks from files beside the command.
"$distile" masks --suite --size 8x8 -o "$folder/suite" --quiet || fail "the installed command has no suite of masks"
# So do builds find the plans that ship.
"$distile" plan "$data/operators/conv3x3_256.json" --unmeasured -o "$folder/shipped" | has 'which ships' ||
    fail "the installed command finds no plan that ships"

export LD_LIBRARY_PATH=$halide
"$distile" compile "$plan" -o "$folder/plan.so" --quiet
"$distile" profile "$plan" --object "$folder/plan.so" -o "$folder/times.json" --threads 1 --seconds 0.01 --quiet
grep -q '"distile_times": 2' "$folder/times.json" || fail "profile wrote no time table"
"$distile" show "$plan" | has 'const int pixels = 4;' || fail "show printed no schedule"
CC=/none/cc expect_error "'/none/cc' cannot be started" "$distile" compile "$plan" -o "$folder/never.so"
sed -e 's/"cpu"/"cuda"/; s/cpu-o16/cuda-k32/; s/x86-64-linux[^"]*/x86-64-linux-cuda-cuda_capability_90a/' \
    -e 's/"halide": {.*/"tensor_core": {"tile_h": 1, "tile_w": 1,/' \
    -e 's/"group": 4.*/"block_pixels": 64, "block_channels": 32, "stages": 3, "splits": 1, "balanced": 0}}}], "math": "tf32"}/' \
    "$plan" >"$folder/tensor.json"
"$distile" info "$folder/tensor.json" | has 'tensor cores, blocks of 64' || fail "info of a plan for tensor cores"
if [[ -e $tools/distile_tensor_core.o ]]; then
    CUDACXX=/none/nvcc expect_error "'/none/nvcc' cannot be started" "$distile" compile "$folder/tensor.json" -o "$folder/never.so"
    # nvcc needs no headers but its own and those that are installed.
    "$distile" compile "$folder/tensor.json" -o "$folder/tensor.so" --quiet
    [[ -s $folder/tensor.so ]] || fail "a plan for tensor cores was not compiled"
fi

# Alone it does what needs no compiler, and says what it lacks for the rest.
cp "$distile" "$folder/alone"
"$folder/alone" info "$plan" >/dev/null || fail "info of the command alone"
"$folder/alone" profile "$plan" --object "$folder/plan.so" -o "$folder/times.json" --threads 1 --seconds 0.01 --quiet
expect_error "'$folder/distile_generators' is missing" "$folder/alone" compile "$plan" -o "$folder/never.so"
expect_error "'$folder/distile_generators' is missing" "$folder/alone" show "$plan"
[[ ! -e $folder/never.so ]] || fail "a compilation that failed left a file"
echo "all right"
