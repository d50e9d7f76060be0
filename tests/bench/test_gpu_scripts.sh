#!/usr/bin/env bash
# Packs the benchmark of GPUs and runs its scripts from the folder, with programs that only write down how they are called.
# Usage: test_gpu_scripts.sh <source folder> <program that lists rows: distile_bench>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
source_folder=$1
bench=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CALLS=$folder/calls
mkdir "$folder/programs"
cat >"$folder/programs/distile" <<'PROGRAM'
#!/usr/bin/env bash
set -euo pipefail
echo "distile $*" >>"$CALLS"
case $1 in
    compile) touch "$4" ;;
    plan) # of one operator it makes none for tensor cores
        mkdir -p "$9"
        [[ $2 == */op5.json ]] || echo '{"target": "cuda_capability_90a", "tensor_core": 1, "profile": 1}' >"$9/sm90.json"
        echo '{"halide": 1}' >"$9/cuda.json" ;;
    profile) [[ -e $2 && -e $4 ]] && echo '{}' ;;
esac
PROGRAM
cat >"$folder/programs/distile_cuda_bench" <<'PROGRAM'
#!/usr/bin/env bash
echo "bench $*" >>"$CALLS"
while (($# > 0)); do
    case $1 in
        --rows | --data | --objects) [[ -e $2 ]] || exit 1 ;;
        --out) touch "$2" ;;
    esac
    shift
done
PROGRAM
chmod +x "$folder"/programs/*

# pack: prints what the programs were asked for.
pack() {
    : >"$CALLS"
    "$source_folder/bench/gpu/pack.sh" "$folder/programs/distile" "$folder/programs/distile_cuda_bench" "$folder/gpu" \
        >"$folder/printed" || fail "packing ended with:" "$(cat "$folder/printed")"
    cat "$CALLS"
}
touch -d '2000-01-01' "$folder"/programs/*
pack | has 'compile .*/plans/conv3x3_256_cuda.json -o .*/plans/conv3x3_256_cuda.so.part$' || fail "a plan that ships was not packed"
for name in conv3x3_256.boxes conv3x3_256_float16.boxes conv3x3_128_bfloat16.sm90 op1.bound op26_float16.bound; do
    [[ -e $folder/gpu/objects/$name.so && -e $folder/gpu/objects/$name.json ]] || fail "$name was not packed"
done
for module in $(sed -n 's/^\(import\|from\) \(c_api\|json_rows\).*/\2/p' "$source_folder/bench/gpu/attention_rows.py") attention_rows; do
    [[ -e $folder/gpu/$module.py ]] || fail "$module.py was not packed"
done
has "^op5: 'distile plan' makes no plan for tensor cores" <"$folder/printed" || fail "nothing was said of op5"
[[ ! -e $folder/gpu/objects/op5.bound.so ]] || fail "op5 has an object without a plan"
python3 - "$folder/gpu/objects" <<'PYTHON' || fail "the plans are wrong"
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
boxes = json.loads((folder / "conv3x3_256.boxes.json").read_text())
tiles = {(v["code"]["tensor_core"]["tile_h"], bool(v.get("dense"))) for v in boxes["variants"]}
assert tiles == {(8, False), (8, True)} and boxes["math"] == "tf32" and "profile" not in boxes
narrow = json.loads((folder / "conv3x3_128_bfloat16.sm90.json").read_text())
assert narrow["operator"]["params"]["dtype"] == "bfloat16" and narrow["layout"] == "cuda-k16" and "profile" not in narrow
params = json.loads((folder / "../parts/operators/op14_float16.json").read_text())["params"]
assert (params["pad_top"], params["pad_bottom"], params["stride_h"], params["dtype"]) == (0, 1, 2, "float16")
PYTHON
# Only what changed is compiled again.
sleep 0.01
[[ -z $(pack) ]] || fail "packing again compiled:" "$(cat "$CALLS")"
touch "$folder/gpu/plans/conv3x3_256_cuda.json"
[[ $(pack | wc -l) == 1 ]] || fail "after one plan changed, packing compiled:" "$(cat "$CALLS")"

# The folder runs alone.
mv "$folder/gpu" "$folder/elsewhere"
cd "$folder"
program=("$folder/elsewhere/measure_gpu.sh")
status=0
"${program[@]}" results gpu guess 2>"$folder/printed" || status=$?
[[ $status == 2 ]] || fail "an unknown part ended with status $status"
has '^usage: .* \[float32|masks|kinds|tensor|' <"$folder/printed" || fail "an unknown part printed:" "$(cat "$folder/printed")"
: >"$CALLS"
SECONDS_LEFT=0 "${program[@]}" results gpu tensor >/dev/null 2>"$folder/printed"
has '^The time is up' <"$folder/printed" || fail "without time, it said:" "$(cat "$folder/printed")"
[[ ! -s $CALLS ]] || fail "without time, it called" "$(cat "$CALLS")"
"${program[@]}" results gpu bfloat16 >/dev/null
has 'profile .*/conv3x3_256_bfloat16.sm90.plan.json --object objects/conv3x3_256_bfloat16.sm90.so' <"$CALLS" ||
    fail "bfloat16 has no time tables"
has 'profile .*boxes' <"$CALLS" && fail "bfloat16 measured the time tables of others"
has '^bench .*--times .*conv3x3_256_bfloat16.sm90.json .*--objects objects ' <"$CALLS" || fail "bfloat16 was measured with:" "$(cat "$CALLS")"
[[ ! -e results/conv3x3_256_bfloat16.sm90.json ]] || fail "a plan that does not ship lies among those that do"
: >"$CALLS"
"${program[@]}" results gpu bfloat16 >/dev/null
has profile <"$CALLS" && fail "time tables were measured twice"
"${program[@]}" results gpu >/dev/null
for file in gpu gpu-16sm gpu-masks gpu-kinds gpu-tensor gpu-tensor-16sm gpu-choice gpu-opencl gpu-tokens gpu-convolutions conv3x3_256_cuda; do
    [[ -e results/$file.json ]] || fail "there is no results/$file.json"
done
# Every row is in a part, and every part has rows.
rows=$source_folder/bench/rows_cuda.json
sed -n 's/^bench .*--filter \(.*\) --out .*/\1/p' "$CALLS" | sort -u >"$folder/filters"
while read -r filter; do
    "$bench" --list --rows "$rows" --filter "$filter" || fail "no row matches '$filter'"
done <"$folder/filters" | sort -u >"$folder/measured"
"$bench" --list --rows "$rows" | sort | diff - "$folder/measured" >&2 || fail "measure_gpu.sh leaves out rows"

# A profile.
cat >"$folder/programs/ncu" <<'PROGRAM'
#!/usr/bin/env bash
echo "ncu $*" >>"$CALLS"
while [[ $1 != --log-file ]]; do shift; done
cat >"$2" <<'REPORT'
==PROF== Connected
"ID","Kernel Name","gpu__time_duration.sum","sm__pipe_tensor_cycles_active.avg.pct","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
"","","us","%","inst"
"0","distile_masked","12.5","71.5","1,234.5"
REPORT
PROGRAM
chmod +x "$folder/programs/ncu"
shown=$(NCU=$folder/programs/ncu elsewhere/profile_gpu.sh op3 tf32 32 0.3 m128n256s4)
for line in '^distile_masked$' '^  tensor pipe  .* 71.5 %' '^  waits: barrier .* 1234.50 '; do
    has "$line" <<<"$shown" || fail "profile_gpu.sh printed:" "$shown"
done
has '^ncu .*--filter ^op3/blob/0.3/n32/keep/plain/cudnn/tf32\$ --profile m128n256s4' <"$CALLS" || fail "ncu ran" "$(cat "$CALLS")"
program=(env NCU= PATH=/usr/bin:/bin elsewhere/profile_gpu.sh)
command -v /usr/bin/ncu >/dev/null || expect_error "there is no ncu" op3 float32 1 0.1 dense
echo "passed"
