#!/usr/bin/env bash
# Compiles the operators of data/operators.csv for this CPU and measures them beside their peers. It may be stopped at any
# time: the same command goes on, and measures only what is missing.
#
# Usage: run_convolutions.sh <distile> <library> <folder> <type> [options of convolutions.py]
#   PLANS=<folders>   where plans are looked for, data/plans unless given; operators without one get one by the bound
#   FILTER=<regex>    on the names of rows, which begin with the operator: ^op3/
#   PYTHON=<program>  a Python with PyTorch, and what else there is of requirements/bench-python.txt
# <folder>/<type>.json gets the rows.
set -euo pipefail
(($# >= 4)) || { sed -n 's/^# \?//; 2,/^set/{/^set/d; p}' "$0" >&2; exit 2; }
distile=$(realpath "$1") library=$(realpath "$2") type=$4
mkdir -p "$3/objects_$type" "$3/bound"
folder=$(realpath "$3")
shift 4
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv-torch/bin/python} filter=${FILTER:-}
read -ra plans <<<"${PLANS:-data/plans}"
suffix=_$type
[[ $type != float32 ]] || suffix=

# The kinds of code that plans of a type are for, the best first, that this CPU has.
has_flag() {
    grep -qw "$1" /proc/cpuinfo
}
levels=()
add_level() {
    if [[ $type == "$1" ]] && has_flag "$2"; then
        levels+=("$3")
    fi
}
add_level bfloat16 amx_bf16 amx_bf16
add_level bfloat16 avx512_bf16 avx512_bf16
add_level uint8 amx_int8 amx_int8
add_level uint8 avx512_vnni avx512_vnni
add_level uint8 avx_vnni avx_vnni
has_flag avx512f && levels+=(avx512)
levels+=(avx2)

# plan_of <operator>: the file of its plan.
plan_of() {
    local level place
    for place in "${plans[@]}" "$folder/bound"; do
        for level in "${levels[@]}"; do
            if [[ -e $place/$1${suffix}_$level.json ]]; then
                echo "$place/$1${suffix}_$level.json"
                return
            fi
        done
    done
}

mapfile -t operators < <(awk -F, -v filter="$filter" '/^[0-9]/ && $2 ~ /^(conv|depthwise)/ {
    sub(/\/.*/, "", filter); if (("op" $1) ~ filter) print $11}' data/operators.csv | sort -u)
for operator in "${operators[@]}"; do
    if [[ -z $(plan_of "$operator") ]]; then
        "$distile" plan "data/operators/$operator.json" --dtype "$type" --bound-only -o "$folder/bound" -q
    fi
    plan=$(plan_of "$operator")
    object=$folder/objects_$type/$(basename "$plan" .json).so
    if [[ ! -e $object || $object -ot $plan ]]; then
        # What an earlier plan left would be a second one.
        find "$folder/objects_$type" -regextype egrep -regex ".*/${operator}${suffix}_(amx|avx)[a-z0-9_]*\.so" -delete
        echo "compiling $(basename "$plan" .json)"
        "$distile" compile "$plan" -o "$object.part" -q
        mv "$object.part" "$object"
    fi
done
# oneDNN of the wheel finds its CPU driver so.
if [[ -e .venv/lib/libdnnl.so.3 ]]; then
    export LD_LIBRARY_PATH=$PWD/.venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OCL_ICD_FILENAMES=$PWD/.venv/lib/libintelocl.so
fi
exec "$python" bench/python/convolutions.py --library "$library" --objects "$folder/objects_$type" --dtype "$type" \
    --out "$folder/$type.json" --resume --filter "$filter" "$@"
