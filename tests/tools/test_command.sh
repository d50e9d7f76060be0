#!/usr/bin/env bash
# Runs the distile command as a person would: on good plans, and on bad input that must give a clear error.
# Usage: test_command.sh <distile> <source folder>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1
program=("$distile")
source_folder=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder
plan=$source_folder/tests/install/consumer/operator/my_plan.json

"$distile" --help | has profile || fail "the help does not name profile"
"$distile" profile --help | has 'Examples' || fail "the help of profile has no example"
"$distile" info "$plan" | has '1x1 convolution, 2 -> 3 channels' || fail "info does not explain the operator"
"$distile" info --json "$plan" | has '"features"' || fail "info --json has no features"
for shipped in "$source_folder"/data/plans/*.json; do
    text=$("$distile" info "$shipped") || fail "info cannot read $shipped"
    ! grep -q '^  [^ ]*tiles of' <<<"$text" || fail "info writes names and schedules of $shipped together"
done

cuda_plan=$source_folder/data/plans/conv3x3_256_cuda.json
"$distile" info "$cuda_plan" | has 'an NVIDIA GPU of compute capability 7.0' || fail "info does not name the GPU"
"$distile" info "$cuda_plan" | has 'blocks of 64 pixels x 128 channels' || fail "info does not explain a GPU's schedule"
fixtures=$source_folder/tests/fixtures/plans
"$distile" info "$fixtures/test_groups4_12_20_residual_avx512.json" | has 'Groups .* 5 output channels padded to 16' ||
    fail "info does not explain groups in blocks of their own"
"$distile" info "$fixtures/test_groups5_20_20_residual_avx512.json" | has 'Groups .* 4 in a block of 16 .* by diagonals' ||
    fail "info does not explain groups side by side"
sed 's/"kernel_h": 3,/"kernel_h": 3, "groups": 2,/' "$fixtures/test_conv3_24_40_residual_bf16_amx_bf16.json" >"$folder/groups.json"
"$distile" info "$folder/groups.json" | has 'Groups .* 20 output channels padded to 32' ||
    fail "info does not explain groups of dot products"
"$distile" info "$fixtures/test_groups2_32_64_f16_avx512.json" | has 'Groups' && fail "info explains groups of whole blocks"
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
grep -q '"distile_times": 2' "$folder/times.json" || fail "profile wrote no time table"
hash=$(sed -n 's/.*"plan_hash": "\([^"]*\)".*/\1/p' "$folder/times.json")
[[ -n $hash && $("$distile" info --json "$plan") == *"\"plan_hash\": \"$hash\""* ]] || fail "the time table has no hash"
grep -q 'Time table of' "$folder/table" || fail "profile printed no table"
"$distile" profile "$folder/plan.json" --into-plan --threads 1,2 --seconds 0.01 --quiet
"$distile" info "$folder/plan.json" | has 'with 2 threads' || fail "profile --into-plan wrote no times"
# Times for other numbers of threads stay.
"$distile" profile "$folder/plan.json" --into-plan --threads 1 --seconds 0.01 --quiet
"$distile" info "$folder/plan.json" | has 'with 2 threads' || fail "profile --into-plan dropped times"
cp "$folder/plan.json" "$folder/replaced.json"
"$distile" profile "$folder/replaced.json" --into-plan --replace --threads 1 --seconds 0.01 --quiet
"$distile" info "$folder/replaced.json" | has 'with 2 threads' && fail "profile --replace kept times"
# Times of other code are refused, until they are measured again.
sed 's/"unroll": *1/"unroll": 2/' "$folder/plan.json" >"$folder/stale.json"
expect_error "measured with the code of another plan" info "$folder/stale.json"
"$distile" profile "$folder/stale.json" --into-plan --threads 1 --seconds 0.01 --quiet
"$distile" info "$folder/stale.json" | has 'with 1 thread' || fail "profile does not measure changed code again"
"$distile" info "$folder/stale.json" | has 'with 2 threads' && fail "profile --into-plan kept times of other code"

# Compiled first, measured later: only the code of the same plan is taken.
"$distile" compile "$plan" -o "$folder/plan.so" --quiet
"$distile" profile "$plan" --object "$folder/plan.so" -o "$folder/object.json" --threads 1 --seconds 0.01 --quiet
grep -q '"distile_times": 2' "$folder/object.json" || fail "profile --object wrote no time table"
expect_error "was not compiled from the plan" profile "$source_folder/tests/fixtures/plans/test_conv3_16_48_avx2.json" \
    --object "$folder/plan.so" -o "$folder/never.json" --threads 1
for change in 's/"pixels": 4/"pixels": 3/' 's/"pad_top": 0/"pad_top": 1/' 's/"unroll": 1/"unroll": 2/'; do
    sed "$change" "$plan" >"$folder/changed.json"
    ! cmp -s "$plan" "$folder/changed.json" || fail "'$change' changes nothing"
    expect_error "was not compiled from the plan" profile "$folder/changed.json" --object "$folder/plan.so" --into-plan
done
head -c 5000 "$folder/plan.so" >"$folder/cut.so"
expect_error "is not whole" profile "$plan" --object "$folder/cut.so" -o "$folder/never.json" --threads 1
expect_error "cannot be loaded" profile "$plan" --object "$folder/none.so" -o "$folder/never.json" --threads 1
expect_error "cannot be written" compile "$plan" -o "$folder/none/plan.so"
expect_error "give --threads in place of --multiprocessors" profile "$plan" --multiprocessors 2

# profile measures the plan among several that this CPU runs, and the portable one where it runs none.
op=$source_folder/tests/install/consumer/operator/my_operator.json
"$distile" portable "$op" -o "$folder/portable.json"
"$distile" portable "$op" | cmp -s - "$folder/portable.json" || fail "portable prints what it does not write"
"$distile" info "$folder/portable.json" | has 'any x86-64 CPU' || fail "info does not say that any CPU will do"
sed '0,/"my_conv"/s//"wide"/; s/avx-avx2-f16c/avx-avx2-avx512_skylake-f16c/' "$plan" >"$folder/wide.json"
# profile_limited <features> <plans ...>: the name of the kernel that was measured.
profile_limited() {
    "$distile" profile "${@:2}" --cpu-features "$1" -o "$folder/limited.json" --threads 1 --seconds 0.01 --quiet
    sed -n 's/.*"kernel": "\([^"]*\)".*/\1/p' "$folder/limited.json"
}
avx2="avx avx2 f16c fma sse41"
[[ $(profile_limited "$avx2" "$folder/wide.json" "$plan") == my_conv ]] || fail "profile measured another plan"
[[ $(profile_limited "" "$folder/wide.json" "$plan") == my_conv_portable ]] || fail "profile did not fall back"
"$distile" profile "$plan" --cpu-features avx -o "$folder/limited.json" --threads 1 --seconds 0.01 2>&1 >/dev/null |
    has "lacks 'avx2' for '$plan': measuring the portable plan" || fail "profile does not say that it falls back"
expect_error "lacks 'avx2'" profile "$plan" --cpu-features avx --into-plan
expect_error "lacks 'avx2'" profile "$plan" --cpu-features avx --object "$folder/plan.so"
expect_error "'quantum'" profile "$plan" --cpu-features quantum
expect_error "cannot stand behind one for CPUs" profile "$plan" "$cuda_plan" --cpu-features avx
expect_error "another operator" profile "$folder/wide.json" "$source_folder/tests/fixtures/plans/test_conv3_16_48_avx2.json" \
    --cpu-features avx

# Operators, and the spaces of their schedules.
"$distile" info "$op" | has 'NVIDIA GPU .* legal of' || fail "info does not count the schedules of an operator"
"$distile" info "$op" | has 'OpenCL device .* legal of' || fail "info counts no schedules for OpenCL devices"
"$distile" rank "$op" --device generic_opencl --density .3 --top 2 | has 'blocks of' || fail "rank has none for OpenCL"
"$distile" info --json "$op" | has '"legal"' || fail "info --json does not count the schedules of an operator"

# Transposed convolutions, and convolutions after upsampling, have tiles of whole strides.
transposed=$source_folder/data/operators/conv_transpose4x4s2_256_128.json
"$distile" info "$transposed" | has '4x4 transposed convolution, 256 -> 128 channels, stride 2x2' ||
    fail "info does not know transposed convolutions"
"$distile" info "$source_folder/data/operators/upsample2_conv3x3_256.json" | has 'upsampling.*scale 2x2' ||
    fail "info does not know upsampling"
"$distile" rank "$transposed" --device generic_avx512 --density .3 --top 2 | has 'tiles of 2 x 2' ||
    fail "rank does not take the finest tiles of a transposed convolution"
"$distile" rank "$transposed" --device generic_cuda --density .3 --top 2 | has 'tiles of 2 x 2' ||
    fail "rank does not rank a transposed convolution for GPUs"
theta=tile_h=2,tile_w=4,pixels=4,channels=16,group=4,channel_splits=1,order=0,unroll=1
"$distile" show "$transposed" --schedule "$theta" | has 'task, phase' || fail "show does not know phases"
expect_error "multiples of a transposed convolution's stride" show "$transposed" --schedule "${theta/tile_w=4/tile_w=3}"
"$distile" profile "$source_folder/tests/fixtures/plans/test_transpose34_s23_3_17_avx2.json" -o "$folder/transposed.json" \
    --threads 1 --seconds 0.01 --quiet
grep -q '"variant":"dense"' "$folder/transposed.json" || fail "profile wrote no times of a transposed convolution"

# Depthwise convolutions have schedules of their own.
depthwise=$source_folder/data/operators/depthwise3x3_576.json
"$distile" info "$depthwise" | has 'depthwise convolution, 576 -> 576' || fail "info does not know depthwise"
"$distile" info "$depthwise" | has 'NVIDIA GPU  *[1-9].* legal of' || fail "info counts no schedules for GPUs"
"$distile" info "$source_folder/data/plans/depthwise3x3_576_avx2.json" | has '1 task a thread; the kernel unrolled' ||
    fail "info does not explain a depthwise schedule"
"$distile" rank "$depthwise" --device generic_avx512 --density .3 --top 2 | has 'tasks\? a thread' ||
    fail "rank does not know depthwise"
"$distile" rank "$depthwise" --device generic_cuda --density .3 --top 2 | has "tiles of" || fail "rank ranks no depthwise convolution for GPUs"
"$distile" show "$depthwise" --schedule tile_h=1,tile_w=1,pixels=4,channels=16,tasks=1,unroll=2 | has 'unroll(ky)' ||
    fail "show does not know a depthwise schedule"
# On a GPU they are not staged. A theta without a device is for the backend that has its knobs.
"$distile" info "$source_folder/data/plans/depthwise3x3_576_cuda.json" | has 'input read in place; the kernel unrolled' ||
    fail "info does not explain a depthwise schedule of a GPU"
theta=tile_h=1,tile_w=1,block_pixels=16,block_channels=64,thread_pixels=2,thread_channels=4,unroll=2
"$distile" show "$depthwise" --schedule "$theta" | has 'input read in place; the kernel unrolled' ||
    fail "show does not know a depthwise schedule of a GPU"
"$distile" profile "$source_folder/tests/fixtures/plans/test_depthwise3_24_avx2.json" -o "$folder/depthwise.json" --threads 1 \
    --seconds 0.01 --quiet
grep -q '"variant":"dense"' "$folder/depthwise.json" || fail "profile wrote no times of a depthwise convolution"

# Ranking by the bound.
"$distile" rank "$op" --device generic_avx2 --density .3 --top 3 -o "$folder/kept.json" >"$folder/ranking"
grep -q 'legal schedules' "$folder/ranking" || fail "rank printed no ranking"
[[ $(grep -c 'register tiles of' "$folder/ranking") == 3 ]] || fail "rank --top 3 printed another number"
grep -q '"distile_ranking": 1' "$folder/kept.json" || fail "rank wrote no file"
"$distile" rank "$op" --device "$source_folder/data/devices/h200.json" --form paper --json | has '"legal_points"' ||
    fail "rank --json printed no JSON"
[[ -z $("$distile" rank "$op" --device generic_avx512 --quiet) ]] || fail "rank --quiet printed something"
for device in "$source_folder"/data/devices/*.json; do
    "$distile" rank "$op" --device "$device" --density 1 --quiet || fail "rank cannot use $device"
done
# On tensor cores in TF32; 16-bit operators are ranked there unless the target says otherwise.
tensor_op=$source_folder/tests/fixtures/operators/test_tc_conv3_64_96.json
"$distile" info "$tensor_op" | has 'Tensor, 9.0  *[1-9].* legal of' || fail "info counts no schedules for tensor cores"
"$distile" info "$op" | has 'Tensor' && fail "info counts schedules for tensor cores that cannot run the operator"
"$distile" rank "$tensor_op" --device generic_cuda_sm90 --math tf32 --density .3 --top 2 | has 'tensor cores, blocks of' ||
    fail "rank --math tf32 does not rank for tensor cores"
"$distile" rank "$tensor_op" --device generic_cuda --math tf32 --json | has 'cuda_capability_80' || fail "rank names no target"
"$distile" rank "$tensor_op" --device generic_cuda_sm90 --density .3 | has 'tensor cores' &&
    fail "rank ranks float32 for tensor cores unasked"
sed 's/"dtype": "float32"/"dtype": "float16"/' "$tensor_op" >"$folder/float16.json"
"$distile" rank "$folder/float16.json" --device generic_cuda_sm90 --density .3 | has 'tensor cores' ||
    fail "rank does not rank float16 for tensor cores"
"$distile" rank "$folder/float16.json" --device generic_cuda_sm90 --target x86-64-linux-cuda-cuda_capability_70 \
    --density .3 | has 'tensor cores' && fail "rank takes no target"
expect_error "in TF32" rank "$tensor_op" --device generic_avx2 --math tf32
expect_error "multiples of 8" rank "$op" --device generic_cuda_sm90 --math tf32
expect_error "no built-in device profile" rank "$op" --device generic_vax
expect_error "cannot be opened" rank "$op" --device "$folder/none.json"
expect_error "neither a .npy nor a .png file" rank "$op" --device generic_avx2 --masks "$op"
expect_error '"distile_operator" is missing' rank "$plan" --device generic_avx2

# Schedules as C++.
"$distile" show "$plan" --density .1 >"$folder/shown"
grep -q 'const int pixels = 4;' "$folder/shown" || fail "show printed no schedule"
grep -q 't_fma' "$folder/shown" || fail "show printed no terms"
"$distile" show "$cuda_plan" --variant dense --json | has '"t_compute"' || fail "show --json printed no terms"
theta=tile_h=1,tile_w=2,pixels=4,channels=16,group=4,channel_splits=1,order=0,unroll=1
shown() { "$distile" show "$op" --schedule "$1" | grep -v autoscheduler.plan; } # It lies in a temporary folder.
shown "$theta" | has 'const int tile_w = 2;' || fail "show does not know a schedule"
expect_error "no variant 'none'" show "$plan" --variant none
expect_error "--schedule" show "$op"
expect_error "not legal" show "$op" --schedule "${theta/pixels=4/pixels=99}"
shown '{"tile_h": 1, "tile_w": 2, "pixels": 4, "channels": 16, "group": 4, "channel_splits": 1,
    "order": 0, "unroll": 1}' | cmp -s - <(shown "${theta//,/, }") || fail "show takes a schedule as JSON for another"
expect_error "is not KNOB=VALUE" show "$op" --schedule "pixels"
expect_error "is not JSON" show "$op" --schedule "${theta/pixels=4/pixels=12abc}"
expect_error '"pixels" twice' show "$op" --schedule "$theta,pixels=4"
expect_error '"pixels" is 4.7, not an integer' show "$op" --schedule "${theta/pixels=4/pixels=4.7}"
expect_error '"pixels" is 1073741824, not an integer' show "$op" --schedule "${theta/pixels=4/pixels=1073741824}"
expect_error "is a plan file" show "$plan" --schedule "$theta"
expect_error "for the backend" show "$plan" --device generic_cuda

# Calibration writes what can be read again; without a GPU it says so.
"$distile" calibrate -o "$folder/device.json" --cores 1 | has 'GB/s' || fail "calibrate printed no bandwidth"
"$distile" rank "$op" --device "$folder/device.json" --density .5 --quiet || fail "the calibrated profile cannot be read"
"$distile" calibrate --device cuda --quiet 2>"$folder/gpu" || has 'GPU' <"$folder/gpu" ||
    fail "calibrate does not say what it lacks for a GPU"

# An operator is the same whether its file names a default or leaves it out.
sed 's/"params": {/"params": {"groups": 1, "dtype": "float32", /' "$op" >"$folder/spelled.json"
grep -q groups "$folder/spelled.json" || fail "the operator was not changed"
builder=${distile%/*}/distile_builder
build=("$builder" build --symbol my --object "$folder/my.o" --header "$folder/my.h" --depfile "$folder/my.d"
    --folder "$folder/parts" --no-portable)
"${build[@]}" --operator "$folder/spelled.json" --plan "$plan"
grep -q 'extern const distile_polykernel my;' "$folder/my.h" || fail "the builder wrote no header"
grep -qF "$folder/my.o: $folder/spelled.json $plan" "$folder/my.d" || fail "the builder's depfile is $(cat "$folder/my.d")"
[[ $(nm --defined-only --extern-only --format=posix "$folder/my.o" | cut -d' ' -f1) == my ]] || fail "the object shows more"
# A shared object, which shows no more, needs no GNU linker.
"$builder" build --symbol my --shared "$folder/my.so" --folder "$folder/parts" --linker /none/ld --operator "$op" --plan "$plan"
[[ $(nm -D --defined-only --format=posix "$folder/my.so" | cut -d' ' -f1) == my ]] || fail "the shared object shows more"
# The builder takes the operator and plan in another type.
"${build[@]}" --operator "$folder/spelled.json" --plan "$plan" --dtype float16
grep -q 'ROLE_INPUT, .dtype = DISTILE_FLOAT16' "$folder/parts/my.c" || fail "the builder did not change the type"
# Without a plan the bound makes them, also in another type.
"${build[@]}" --operator "$folder/spelled.json" --dtype bfloat16
for target in amx_bf16 avx512_bf16 avx512_skylake avx2-f16c; do
    grep -lq -- "$target" "$folder"/parts/plan_*.json || fail "the bound made no plan for $target"
done
grep -q '"device":"none: the bound' "$folder/parts/plan_0.json" || fail "the bound's plan has no times"
grep -q 'ROLE_INPUT, .dtype = DISTILE_BFLOAT16' "$folder/parts/my.c" || fail "the bound's plans have another type"
# What cannot be built leaves no object of before.
rm "$folder/my.o"
program=("${build[@]}")
expect_error "was made for the operator" --operator "$source_folder/tests/fixtures/operators/test_conv3_16_48.json" --plan "$plan"
expect_error "cannot be opened" --operator "$op" --plan "$folder/none.json"
expect_error "'int3' is not a data type" --operator "$folder/spelled.json" --plan "$plan" --dtype int3
expect_error "cannot be started" --operator "$op" --plan "$plan" --linker /none/ld
{ "${build[@]}" --operator "$op" --plan "$plan" --backend cpu 2>&1 || true; } | has 'excludes' ||
    fail "the builder takes plans and a backend"
[[ ! -e $folder/my.o ]] || fail "a build that failed left an object"
program=("$distile")

# Plans for tensor cores: what they say, and what compiling them lacks.
tensor_plan=$source_folder/tests/fixtures/plans/test_tc_conv3_64_96_cuda.json
"$distile" info "$tensor_plan" | has 'compute capability 9.0$' || fail "info does not name the one capability"
"$distile" info "$tensor_plan" | has 'TF32' || fail "info does not name the math"
"$distile" info "$tensor_plan" | has 'tensor cores, blocks of 64 pixels x 32 channels' || fail "info explains no schedule of tensor cores"
"$distile" show "$tensor_plan" | has 'Sm90<Op, 64, 32, 3, 1, false>' || fail "show prints no source"
"$distile" show "$tensor_plan" --json | has '"source"' || fail "show --json prints no source"
"$distile" show "$tensor_plan" | has 't_multiply' || fail "show prints no terms of the bound for tensor cores"
CUDACXX=/none/nvcc expect_error "'/none/nvcc' cannot be started" compile "$tensor_plan" -o "$folder/never.so"
if [[ -e ${distile%/*}/distile_tensor_core.o ]]; then
    # Stand-ins for nvcc: one makes a file, the other fails.
    printf '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" != -o ] || echo "some code" >"$2"; shift; done\n' >"$folder/nvcc"
    printf '#!/bin/sh\necho "no such template"; exit 1\n' >"$folder/failing_nvcc"
    chmod +x "$folder/nvcc" "$folder/failing_nvcc"
    export CUDACXX=$folder/nvcc
    "$distile" compile "$tensor_plan" -o "$folder/tensor.so" --quiet
    grep -qa 'some code' "$folder/tensor.so" || fail "the code is not embedded"
    status=0
    output=$(CUDACXX=$folder/failing_nvcc "$distile" compile "$tensor_plan" -o "$folder/never.so" 2>&1) || status=$?
    [[ $status == 4 && $output == *"no such template"* ]] || fail "a failing nvcc gave $status, '$output'"
    # In another type; and a plan for that type is taken as it is.
    "${build[@]}" --operator "$source_folder/tests/fixtures/operators/test_tc_point_8_16.json" \
        --plan "${tensor_plan/conv3_64_96/point_8_16}" --dtype float16
    grep -q 'Float16' "$folder"/parts/my_0.cu || fail "the builder did not change the type of the code"
    ! grep -q 'MATH_TF32' "$folder/parts/my.c" || fail "float16 is multiplied in TF32"
    "${build[@]}" --operator "$source_folder/data/operators/conv3x3_256.json" \
        --plan "$source_folder/data/plans/conv3x3_256_float16_sm90.json" --dtype float16
    grep -q '"conv3x3_256_float16_sm90"' "$folder/parts/my.c" || fail "the builder renamed a plan of the type"
    # Without a plan, those for tensor cores stand before that for every GPU.
    "${build[@]}" --operator "$tensor_op" --backend cuda --tensor-cores
    for plan_of_chain in '0 capability_90a' '1 capability_80' '2 capability_70'; do
        grep -q "${plan_of_chain#* }" "$folder/parts/plan_${plan_of_chain%% *}.json" || fail "the chain lacks $plan_of_chain"
    done
    rm "$folder/my.o"
    # NVRTC makes PTX that drivers of an older CUDA take, and the code of one chip.
    nvcc=${NVCC:-}
    compile_with_nvrtc() {
        LD_LIBRARY_PATH=$(compgen -G "${nvcc%/bin/nvcc}/lib*" | paste -sd:) CUDACXX=nvrtc "$distile" compile --quiet \
            "$source_folder/tests/fixtures/plans/$1" -o "$folder/nvrtc.so"
    }
    if output=$(compile_with_nvrtc test_scores_2_32_softmax_f16_sm80.json 2>&1); then
        grep -qa '^\.version 8\.[0-3]$' "$folder/nvrtc.so" || fail "NVRTC's PTX is of version $(grep -a '^\.version' "$folder/nvrtc.so")"
        grep -qa '^\.target sm_80' "$folder/nvrtc.so" || fail "NVRTC's PTX is not for all chips"
        compile_with_nvrtc test_attention_2_32_f16_sm90.json
        grep -qa 'sm_90a' "$folder/nvrtc.so" || fail "NVRTC made no code for one chip"
    else
        has 'libnvrtc.so cannot be loaded' <<<"$output" || fail "NVRTC cannot compile:" "$output"
        echo "not tested: NVRTC, which is not beside '${NVCC:-nvcc}'"
    fi
    unset CUDACXX
fi
[[ ! -e $folder/never.so ]] || fail "a compilation that failed left a file"

# Masks that are drawn by name, in files that are read again.
"$distile" masks --help | has 'Examples' || fail "the help of masks has no example"
"$distile" masks blob:0.25:7 random:0.5:1 checkerboard --size 8x64 -o "$folder/m.npy" | has 'blob:0.25:7 .* 128 active pixels' ||
    fail "masks does not tell what it drew"
head -c 80 "$folder/m.npy" | grep -qaF "'shape': (3, 8, 64), }" || fail "masks wrote $(head -c 80 "$folder/m.npy")"
"$distile" masks blob:0.25:7 --operator "$op" --json -o "$folder/m.png" | has '"density":0.25' || fail "masks --json prints no density"
"$distile" rank "$op" --device generic_avx2 --masks "$folder/m.png" --quiet || fail "a mask that was drawn cannot be read"
"$distile" scale --help | has 'Examples' || fail "the help of scale has no example"
"$distile" scale --mask blob:0.3:1 --size 128x128 --devices 1 2 --devices-per-host 1 --no-overlap | has '^ *2  *2 ' ||
    fail "scale has no row for two devices of two hosts"
# A meeting before a run and one after it.
met=$("$distile" scale --mask blob:0.3:1 --size 128x128 --devices 2 --devices-per-rank 1 --meeting-us 1e6 --json)
echo "$met" | has '"us": *20[0-9]*[.]' || fail "scale leaves out that ranks meet: $met"
"$distile" scale --mask "$folder/m.png" --times 10:5 1000:90 --devices 4 --json | has '"speed_up"' ||
    fail "scale --json has no speed-up"
expect_error "the time '10' is not PIXELS:MICROSECONDS" scale --times 10
expect_error "the mask 'cloud:0.1:1' is not drawn as blob:DENSITY:SEED" scale --mask cloud:0.1:1
expect_error "not HEIGHTxWIDTH" scale --size 12
[[ -z $("$distile" masks checkerboard --size 1x1 -o "$folder/m.npy" -q) ]] || fail "masks --quiet printed something"
expect_error "the mask 'cloud:0.1:1' is not drawn as blob:DENSITY:SEED" masks cloud:0.1:1 --size 8x8 -o "$folder/never.npy"
expect_error "a .png file holds one mask, not 2" masks blob:0.1:1 blob:0.1:2 --size 8x8 -o "$folder/never.png"
expect_error "neither a .npy nor a .png file" masks blob:0.1:1 --size 8x8 -o "$folder/never.bmp"
for size in 8 8x 0x8 8x65536 8x8x8 65535x65535; do
    expect_error "--size is" masks blob:0.1:1 --size "$size" -o "$folder/never.npy"
done
expect_error "cannot be written" masks blob:0.1:1 --size 8x8 -o "$folder/none/m.npy"
# The suite of masks: the same file for a size and a set, whatever else is written.
"$distile" masks --suite -o "$folder/suite" | has '^40x40/held-out.npy  *[0-9]* masks, hash ' || fail "masks --suite does not tell what it drew"
"$distile" masks --suite --size 40x40 --json -o "$folder/one" | has '"family": *"blob"' || fail "masks --suite --json prints no families"
cmp "$folder/suite/40x40/train.npy" "$folder/one/40x40/train.npy" || fail "masks --suite draws other masks for one size"
[[ -s $folder/one/README.md && ! -e $folder/one/20x20 ]] || fail "masks --suite wrote $(ls "$folder/one")"
python3 -c "
import json, sys
index = json.load(open(sys.argv[1] + '/index.json'))
for file in index['files']:
    data = open(sys.argv[1] + '/' + file['file'], 'rb').read()
    pixels = len(file['masks']) * file['height'] * file['width']
    bits = data[-pixels:]
    value = 0xcbf29ce484222325
    for byte in bits if file['height'] < 50 else b'':
        value = (value ^ byte) * 0x100000001b3 % 2 ** 64
    assert file['height'] >= 50 or '%016x' % value == file['hash'], file['file']
    assert sum(bits) == sum(mask['active_pixels'] for mask in file['masks']), file['file']
    assert open(sys.argv[1] + '/' + file['picture'], 'rb').read(4) == b'\x89PNG', file['picture']
    for mask in file['masks']:
        assert mask['name'].startswith(mask['family'] + '-') and len(mask['seed']) == 16 and mask['licence'], mask
        assert bool(mask['sources']) == (mask['family'] not in ('blob', 'random')), mask
" "$folder/suite" || fail "the index of the suite does not fit its files"
cmp "$folder/suite/64x64/train.png" "$source_folder/docs/masks.png" || fail "docs/masks.png is not the picture of the suite"
"$distile" masks --suite --batch 2 --operator "$op" -o "$folder/batches" -q || fail "masks --suite takes no operator"
"$distile" rank "$op" --device generic_avx2 --masks suite:train --quiet || fail "rank does not take a set of the suite"
expect_error "there is no set 'all' of the suite of masks; the sets are 'train' and 'held-out'" rank "$op" --device generic_avx2 --masks suite:all
expect_error "cannot be made" masks --suite -o "$folder/one/README.md"
for wrong in "masks --suite blob:0.1:1 -o x" "masks -o x.npy --size 8x8" "masks blob:0.1:1 -o x.npy" "masks blob:0.1:1 --batch 2 --size 8x8 -o x.npy"; do
    # shellcheck disable=SC2086
    if "$distile" $wrong 2>/dev/null; then
        fail "distile $wrong was accepted"
    fi
done

# What the build would refuse, info refuses in the same words; the build does in one line, before it compiles a variant.
tr '\n' ' ' <"$plan" >"$folder/flat.json"
# refused <operator or plan> <what to replace in it> <by what> <text>
refused() {
    local wrong=$folder/wrong.json files=("$op" "$plan") said built
    sed "s/$2/$3/" "$1" >"$wrong"
    ! cmp -s "$1" "$wrong" || fail "'$2' is not in $1"
    [[ $1 == "$op" ]] && files[0]=$wrong || files[1]=$wrong
    said=$("$distile" info "$wrong" 2>&1 >/dev/null) && fail "info accepts '$3'"
    rm -rf "$folder/parts"
    built=$("${build[@]}" --operator "${files[0]}" --plan "${files[1]}" 2>&1) && fail "the builder accepts '$3'"
    [[ $said == *"$4"* ]] || fail "of '$3' info said '$said', not '$4'"
    [[ $built == "distile: error: distile_add_polykernel(my): ${said#distile: error: }" && $(wc -l <<<"$built") == 1 ]] ||
        fail "of '$3' info said '$said', and the builder '$built'"
    [[ -z $(find "$folder" -name 'my*.o') ]] || fail "of '$3' the builder compiled $(find "$folder" -name 'my*.o')"
}
refused "$op" '"in_channels": 2' '"in_channels": 0' '"in_channels" is 0, not an integer from 1 to'
refused "$op" '"params": {' '&"groups": 2, ' '"groups" is 2, but must divide the 2 input channels and the 3 output'
refused "$op" '"params": {' '&"scale": 2, ' 'masked_conv2d has no parameter "scale"'
refused "$op" '"typical": {' '"typcal": {' 'there is no member "typcal"; the nearest known one is "typical"'
refused "$folder/flat.json" '"backend"' '"bakend": 1, &' 'there is no member "bakend"; the nearest known one is "backend"'
refused "$op" masked_conv2d masked_linear 'masked_linear has no parameter "kernel_h"'
refused "$op" '"my_conv"' '"9conv"' '"9conv", not letters, digits and underscores after a letter'
refused "$op" '"batch": 1, "height": 4' '"batch": 65535, "height": 65535' 'more than 2^31 elements'
refused "$folder/flat.json" '"channels": 16' '"channels": 24' 'variant "only": the schedule is not legal for this operator'
refused "$folder/flat.json" '"unroll": 1' '"unroll": 5' 'a schedule must have an unroll that divides the input channels'
refused "$folder/flat.json" '"pixels": 4' '"pixels": 99' 'that fit the vector registers'
refused "$folder/flat.json" '"pixels": 4' '"pixel": 4' "the knob 'pixels'"
refused "$folder/flat.json" '"halide": {.*' '"tensor_core": {"tile_h": 1, "tile_w": 1}}}]}' \
    'there are no kernels for tensor cores on CPUs'
refused "$folder/flat.json" avx2-f16c avx2-sve2-f16c "the feature 'sve2'"
refused "$folder/flat.json" '"my_conv"' '"my-conv"' '"name" must be letters, digits and underscores'
sed 's/masked_conv2d/masked_upsample_conv2d/; s/"params": {/&"scale_h": 128, "scale_w": 128, /' "$op" >"$folder/wrong.json"
expect_error "no schedule with tile_h=128, tile_w=128" info "$folder/wrong.json"

# Bad input.
expect_error "cannot be opened" info "$folder/none.json"
echo '{"distile_plan": 1' >"$folder/broken.json"
expect_error "is not JSON" info "$folder/broken.json"
sed 's/"distile_plan": 2/"distile_plan": 99/' "$plan" >"$folder/version.json"
expect_error "it has version 99; this program reads version 2" info "$folder/version.json"
sed 's/"tile_w": 1, //' "$plan" >"$folder/knob.json"
expect_error '"tile_w" is missing' profile "$folder/knob.json"
sed 's/"channels": 16/"channels": 24/' "$plan" >"$folder/illegal.json"
expect_error "variant \"only\": the schedule is not legal" profile "$folder/illegal.json" -o "$folder/never.json"
[[ ! -e $folder/never.json ]] || fail "a failed profile left a time table"
sed 's/avx2-f16c/avx2-sve2-f16c/' "$plan" >"$folder/feature.json"
expect_error "feature 'sve2'" info "$folder/feature.json"
expect_error "cannot be written" profile "$folder/plan.json" -o "$folder/none/times.json" --threads 1 --seconds 0.01
if "$distile" profile "$plan" --threads 0 2>/dev/null; then
    fail "0 threads were accepted"
fi
echo "all right"
