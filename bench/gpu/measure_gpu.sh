#!/usr/bin/env bash
# Measures the time tables of the plans for GPUs and then the rows of the benchmark on this machine's first GPU: those
# of convolutions and of the other operators on all multiprocessors and on 16 of them, those of masks, planners, types,
# bandwidths and tensor cores on all. Lies beside the programs that it runs: `make bench-gpu-pack` makes the folder,
# which can be carried to another machine. cuDNN is searched for where the system, LD_LIBRARY_PATH and Python have it.
# It may be stopped at any time: the same command goes on.
#
# Usage: measure_gpu.sh <folder for results> <name of the GPU> [kinds|tensor]
#   writes <name>.json, <name>-16sm.json, <name>-masks.json, <name>-kinds.json, <name>-tensor.json and the plans with
#          their time tables
#   kinds:  only <name>-kinds.json, the operators beside convolutions, types and bandwidths, and the time tables of
#           plans that have none; searches for cuDNN's fastest plan end after three seconds
#   tensor: only <name>-tensor.json, TF32, float16 and bfloat16 on tensor cores, the most telling rows first, and the
#           time tables of plans for tensor cores that have none; searches end after six seconds
#   SECONDS_LEFT=560 stops it after so many seconds
set -euo pipefail
(($# == 2)) || [[ $# == 3 && $3 =~ ^(kinds|tensor)$ ]] ||
    { echo "usage: measure_gpu.sh <folder for results> <name of the GPU> [kinds|tensor]" >&2; exit 2; }
mkdir -p "$1/tables"
out=$(realpath "$1") name=$2 only=${3:-}
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./time_limit.sh
slices=0,16 seconds=0.25 peer_seconds=60
case $only in
    kinds) slices=0 seconds=0.1 peer_seconds=3 ;;
    tensor) slices=0 seconds=0.1 peer_seconds=6 ;;
esac

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

times=()
for object in *.so; do
    plan=${object%.so}
    table=$out/tables/$plan.json
    if [[ -n $only ]] && grep -q '"profile"' "plans/$plan.json"; then
        continue
    fi
    if [[ $only == tensor ]] && ! grep -q '"tensor_core"' "plans/$plan.json"; then
        continue
    fi
    if [[ ! -e $table ]]; then
        cp "plans/$plan.json" "$out/$plan.json"
        limited ./distile profile "$out/$plan.json" --object "$object" --multiprocessors "$slices" \
            --seconds "$seconds" --into-plan --json >"$table.part"
        mv "$table.part" "$table"
        echo "$plan: done after $SECONDS s"
    fi
    times+=("$table")
done

# measure <file of results> <multiprocessors> <rows>: rows that fail do not keep others from being measured.
failed=0
measure() {
    limited ./distile_cuda_bench --rows rows_cuda.json --data data ${times[@]:+--times "${times[@]}"} \
        --peer-seconds "$peer_seconds" --multiprocessors "$2" --filter "$3" --out "$out/$1.json" --resume || failed=1
    echo "$1: done after $SECONDS s"
}
if [[ -z $only ]]; then
    measure "$name" 0 '^(op(3|7|12|21)/.*/cudnn$|mask/)'
    measure "$name-16sm" 16 '^(op(3|7|12|21)/.*/cudnn$|mask/)'
    measure "$name-masks" 0 '^(algebra|difference|planner)/'
fi
if [[ $only != tensor ]]; then
    measure "$name-kinds" 0 '^(op(3[^/]|4.)/|bandwidth/|type/)'
fi
if [[ $only != kinds ]]; then
    measure "$name-tensor" 0 '/blob/(0.3|0.1|1.0)/.*/(tf32|float16)$'
    measure "$name-tensor" 0 '/(tf32|float16)$'
    measure "$name-tensor" 0 '/bfloat16$'
fi
exit "$failed"
