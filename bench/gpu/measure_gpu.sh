#!/usr/bin/env bash
# Measures the time tables of the plans for GPUs and then the rows of the benchmark on this machine's first GPU. Lies
# beside the programs that it runs: `make bench-gpu-pack` makes the folder, which can be carried to another machine. cuDNN
# and cuBLAS are searched for where the system, LD_LIBRARY_PATH and Python have it. It may be stopped at any time: the same command
# goes on.
#
# Usage: measure_gpu.sh <folder for results> <name of the GPU> [<part>]
#   writes <name>.json, <name>-16sm.json and so on, and the plans with their time tables. Without a part: all of them, and
#   the time tables of all plans that ship. A part measures the time tables of its own plans that have none:
#   float32       <name>.json and <name>-16sm.json: four convolutions, and masks
#   masks         <name>-masks.json: masks from masks, and planners
#   kinds         <name>-kinds.json: the operators beside convolutions, types and bandwidths
#   tensor        <name>-tensor.json: four convolutions in TF32 and float16, the most telling rows first
#   edits         the same file: real masks, also small ones
#   boxes         the same file: masks of blocks with tiles of 8 x 8
#   bfloat16      the same file: bfloat16
#   slice         <name>-tensor-16sm.json: TF32 and float16 on 16 multiprocessors
#   choice        <name>-choice.json: the choice of the GPU in a graph, and of the host with cuDNN among the candidates
#   opencl        <name>-opencl.json: OpenCL against CUDA, four convolutions in float32
#   tokens        <name>-tokens.json: linear layers over active tokens in bfloat16 and float16
#   attention     <name>-attention.json: attention over active tokens, if Python has PyTorch
#   convolutions  <name>-convolutions.json: the other convolutions of the table of operators, by plans that the bound made
#   SECONDS_LEFT=560 stops it after 560 seconds
set -euo pipefail
parts=(float32 masks kinds tensor edits boxes bfloat16 slice choice opencl tokens attention convolutions)
(($# == 2)) || [[ $# == 3 && " ${parts[*]} " == *" $3 "* ]] ||
    { echo "usage: measure_gpu.sh <folder for results> <name of the GPU> [$(IFS='|'; echo "${parts[*]}")]" >&2; exit 2; }
mkdir -p "$1/tables"
out=$(realpath "$1") name=$2 only=${3:-}
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./time_limit.sh

wheels=$(python3 -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null | head -n 1 || true)
for folder in ${wheels:+"$wheels"/*/lib}; do
    [[ ! -d $folder ]] || LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

# limited <command>: runs it in the time that is left, or ends the script.
limited() {
    check_time >&2
    local status=0
    timeout "$(left)" "$@" || status=$?
    ((status != 124)) || check_time >&2
    return "$status"
}

# The time tables that the rows use. Plans that ship get theirs written into them, too.
times=()
# profile <multiprocessors> <seconds> <path of a plan, without its ending>...
profile() {
    local slices=$1 seconds=$2 path plan table
    for path in "${@:3}"; do
        [[ -e $path.so ]] || continue
        plan=$(basename "$path")
        table=$out/tables/$plan.json
        if [[ ! -e $table ]]; then
            cp "$path.json" "$out/tables/$plan.plan.json"
            local parts=(--multiprocessors "$slices")
            # An OpenCL device is measured whole.
            [[ $plan != *_opencl ]] || parts=()
            limited ./distile profile "$out/tables/$plan.plan.json" --object "$path.so" "${parts[@]}" \
                --seconds "$seconds" --into-plan --json >"$table.part"
            [[ $path != plans/* ]] || cp "$out/tables/$plan.plan.json" "$out/$plan.json"
            mv "$table.part" "$table"
            echo "$plan: done after $SECONDS s"
        fi
        [[ " ${times[*]} " == *" $table "* ]] || times+=("$table")
    done
}

# without_times <word> <plan.json>...: those whose code has the word and that hold no times, without their ending.
without_times() {
    local plan
    for plan in "${@:2}"; do
        if [[ -e $plan ]] && grep -q "$1" "$plan" && ! grep -q '"profile"' "$plan"; then
            echo "${plan%.json}"
        fi
    done
}

# measure <file of results> <multiprocessors> <seconds of a search for cuDNN's fastest plan> <rows>: rows that fail do not
# keep others from being measured.
failed=0
measure() {
    local objects=()
    ! compgen -G 'objects/*.so' >/dev/null || objects=(--objects objects)
    limited ./distile_cuda_bench --rows rows_cuda.json --data data ${times[@]:+--times "${times[@]}"} "${objects[@]}" \
        --peer-seconds "$3" --multiprocessors "$2" --filter "$4" --out "$out/$1.json" --resume || failed=1
    echo "$1: done after $SECONDS s"
}

four='^op(3|7|12|21)/'
measure_part() {
    local plans=()
    case $1 in
        float32 | masks | kinds)
            mapfile -t plans < <(without_times '"cuda-o32"' plans/*.json) ;;
        opencl) mapfile -t plans < <(without_times '"halide"' plans/conv*.json) ;;
        tensor | edits | slice | choice)
            mapfile -t plans < <(without_times '"tensor_core"' plans/conv*.json) ;;
        attention) mapfile -t plans < <(without_times '"tensor_core"' plans/attention*.json) ;;
        tokens) mapfile -t plans < <(without_times '"tensor_core"' plans/linear*.json) ;;
        boxes) mapfile -t plans < <(without_times '"tensor_core"' objects/*.boxes.json) ;;
        bfloat16) mapfile -t plans < <(without_times '"tensor_core"' objects/*_bfloat16.*.json) ;;
    esac
    profile 0,16 0.1 "${plans[@]}"
    case $1 in
        float32)
            measure "$name" 0 60 "($four.*/cudnn\$|^mask/)"
            measure "$name-16sm" 16 60 "($four.*/cudnn\$|^mask/)" ;;
        masks) measure "$name-masks" 0 60 '^(algebra|difference|planner)/' ;;
        kinds) measure "$name-kinds" 0 3 '^(op(3[^/]|4[0-5])/|bandwidth/|type/)' ;;
        tensor)
            measure "$name-tensor" 0 5 "${four}blob/(0.3|0.1|1.0)/.*/(tf32|float16)\$"
            measure "$name-tensor" 0 5 "${four}bl[a-z0-9]*/.*/(tf32|float16)\$" ;;
        edits) measure "$name-tensor" 0 5 "${four}sige_.*/(tf32|float16)\$" ;;
        boxes) measure "$name-tensor" 0 5 '/boxes$' ;;
        bfloat16)
            measure "$name-tensor" 0 5 "${four}.*/0.3/.*/bfloat16\$"
            measure "$name-tensor" 0 5 "${four}.*/bfloat16\$" ;;
        slice) measure "$name-tensor-16sm" 16 5 "${four}blob/(0.1|0.3|0.5|1.0)/.*/(tf32|float16)\$" ;;
        choice)
            measure "$name-choice" 0 3 '^choice/.*/tf32$'
            measure "$name-choice" 0 3 '^choice/' ;;
        opencl) measure "$name-opencl" 0 3 '^opencl/' ;;
        tokens)
            measure "$name-tokens" 0 1 '/cublas/bfloat16$'
            measure "$name-tokens" 0 1 '/cublas/' ;;
        attention)
            if [[ -e libdistile_attention_side.so ]] && python3 -c 'import torch' 2>/dev/null; then
                limited python3 attention_rows.py --side ./libdistile_attention_side.so --objects plans \
                    --times "$out/tables" --out "$out/$name-attention.json" || failed=1
            else
                echo "$name-attention: not measured without PyTorch"
            fi ;;
        convolutions) measure "$name-convolutions" 0 1 '^op(?!(3|7|12|21)/).*/cudnn/(tf32|float16)$' ;;
    esac
}

if [[ -n $only ]]; then
    measure_part "$only"
else
    plans=(plans/*.so)
    profile 0,16 0.25 "${plans[@]%.so}"
    for part in "${parts[@]}"; do
        measure_part "$part"
    done
fi
exit "$failed"
