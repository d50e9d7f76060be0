#!/usr/bin/env bash
# Measures the time tables of the plans for GPUs and then every row of the benchmark, on all multiprocessors of this
# machine's first GPU and on 16 of them, those of masks and planners on all. Lies beside the programs that it runs: `make bench-gpu-pack` makes the folder,
# which can be carried to another machine. cuDNN is searched for where the system, LD_LIBRARY_PATH and Python have it.
#
# Usage: measure_gpu.sh <folder for results> <name of the GPU>
#   writes <name>.json, <name>-16sm.json, <name>-masks.json and the plans with their time tables
set -euo pipefail
(($# == 2)) || { echo "usage: measure_gpu.sh <folder for results> <name of the GPU>" >&2; exit 2; }
mkdir -p "$1"
out=$(realpath "$1") name=$2
cd "$(dirname "${BASH_SOURCE[0]}")"
tables=$(mktemp -d)
trap 'rm -rf "$tables"' EXIT

wheels=$(python3 -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null | head -n 1 || true)
for folder in ${wheels:+"$wheels"/*/lib}; do
    [[ ! -d $folder ]] || LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

times=()
for object in *_cuda.so; do
    plan=${object%.so}
    cp "plans/$plan.json" "$out/$plan.json"
    ./distile profile "$out/$plan.json" --object "$object" --multiprocessors 0,16 --seconds 0.25 \
        --into-plan --json >"$tables/$plan.json"
    times+=("$tables/$plan.json")
    echo "$plan: done after $SECONDS s"
done
for multiprocessors in 0 16; do
    results=$out/$name$( ((multiprocessors == 0)) || echo "-${multiprocessors}sm").json
    ./distile_cuda_bench --rows rows_cuda.json --data data --times "${times[@]}" \
        --multiprocessors "$multiprocessors" --filter '^(op|mask/)' --out "$results" --resume
    echo "$results: done after $SECONDS s"
done
./distile_cuda_bench --rows rows_cuda.json --data data --times "${times[@]}" \
    --filter '^(algebra|difference|planner)/' --out "$out/$name-masks.json" --resume
