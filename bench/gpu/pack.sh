#!/usr/bin/env bash
# Packs what measure_gpu.sh and profile_gpu.sh need into a folder that runs alone on a machine with a GPU: programs, rows,
# masks, the plans that ship, and those that only the benchmark needs, all compiled. It may be stopped at any time: the
# same command goes on, and compiles again only what has changed.
#
# Usage: pack.sh <distile> <distile_cuda_bench> <folder>
#   plans/NAME.{json,so}            the plans that ship
#   objects/OPERATOR.WAY.{json,so}  others: "boxes" has tiles of 8 x 8, "sm90" is in bfloat16, "bound" is not measured
set -euo pipefail
(($# == 3)) || { echo "usage: pack.sh <distile> <distile_cuda_bench> <folder>" >&2; exit 2; }
distile=$(realpath "$1") bench=$(realpath "$2")
mkdir -p "$3"/{plans,objects,data,parts/operators}
folder=$(realpath "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

side=$(dirname "$bench")/libdistile_attention_side.so
[[ ! -e $side ]] || cp "$side" "$folder"
cp "$distile" "$bench" bench/gpu/attention_rows.py bench/python/{c_api,json_rows}.py bench/gpu/{measure_gpu,profile_gpu}.sh bench/search/time_limit.sh bench/rows_cuda.json "$folder"
cp -r data/operators.csv data/masks "$folder/data"

# is_fresh <file> <what it is made from>: whether neither that nor what makes it has changed since.
is_fresh() {
    local source
    [[ -e $1 ]] || return 1
    for source in "$2" "$distile" kernels/tensor_core/*; do
        [[ ! $1 -ot $source ]] || return 1
    done
}

# compile <plan> <path without its ending>
compile() {
    cmp -s "$1" "$2.json" || cp "$1" "$2.json"
    if ! is_fresh "$2.so" "$2.json"; then
        "$distile" compile "$2.json" -o "$2.so.part"
        mv "$2.so.part" "$2.so"
    fi
}

for plan in data/plans/*_{cuda,sm90,opencl}.json; do
    compile "$plan" "$folder/plans/$(basename "$plan" .json)"
done
python3 bench/gpu/make_plans.py bench/rows_cuda.json data "$folder/parts"
for plan in "$folder"/parts/*.json; do
    compile "$plan" "$folder/objects/$(basename "$plan" .json)"
done
for operator in "$folder"/parts/operators/*.json; do
    name=$(basename "$operator" .json)
    plans=$folder/parts/$name
    if ! is_fresh "$plans" "$operator"; then
        "$distile" plan "$operator" --backend cuda --math tf32 --bound-only -o "$plans" -q
        touch "$plans"
    fi
    plan=$(grep -l 'cuda_capability_90a' "$plans"/*.json | head -n 1 || true)
    if [[ -n $plan ]]; then
        compile "$plan" "$folder/objects/$name.bound"
    else
        echo "$name: 'distile plan' makes no plan for tensor cores of compute capability 9.0, so its rows will be skipped"
    fi
done
