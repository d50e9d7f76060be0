#!/usr/bin/env bash
# Compiles the operators of bench/own/pruned_operators.py for this CPU and measures them beside dense and sparse libraries. It
# may be stopped at any time: the same command goes on, and measures only what is missing.
#
# Usage: run_pruned.sh <distile> <library> <folder> [options of pruned.py, as --weights]
#   PLAN=<options>    of distile plan, --bound-only unless given: times are measured here in any case
#   FILTER=<regex>    on the names of rows, which are random/OPERATOR, and FILE/OPERATOR for --weights
#   PYTHON=<program>  a Python with PyTorch, and what else there is of requirements/bench-python.txt
#   BENCH=no          only compile, which needs no idle machine
# <folder>/pruned.json gets the rows, which go to bench/results/pruned/ on a commit.
set -euo pipefail
(($# >= 3)) || { sed -n 's/^# \?//; 2,/^set/{/^set/d; p}' "$0" >&2; exit 2; }
distile=$(realpath "$1") library=$(realpath "$2")
mkdir -p "$3/objects"
folder=$(realpath "$3")
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv-torch/bin/python} filter=${FILTER:-}
read -ra plan_options <<<"${PLAN:---bound-only}"
level=avx2
grep -qw avx512vl /proc/cpuinfo && level=avx512

"$python" bench/own/pruned_operators.py "$folder/operators"
for file in "$folder"/operators/*.json; do
    operator=$(basename "$file" .json)
    plan=$folder/plans/${operator}_$level.json object=$folder/objects/${operator}_$level.so
    # A row of weights from a file has the operator of its shape.
    if [[ -n $filter ]] && ! grep -qP -- "$filter" <<<"random/$operator" && ! grep -qP -- "$filter" <<<"file/$operator"; then
        continue
    fi
    if [[ ! -e $plan ]]; then
        "$distile" plan "$file" -o "$folder/plans" -q "${plan_options[@]}"
    fi
    if [[ ! -e $object || $object -ot $plan ]]; then
        echo "compiling $operator"
        "$distile" compile "$plan" -o "$object.part" -q
        mv "$object.part" "$object"
    fi
done
[[ ${BENCH-} != no ]] || exit 0
exec "$python" bench/python/pruned.py --library "$library" --objects "$folder/objects" --out "$folder/pruned.json" --resume \
    --refine --filter "$filter" "$@"
