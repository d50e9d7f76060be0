#!/usr/bin/env bash
# Judges the analytical bound on the operators of bench/own: measures the first schedules of its ranking and random ones of
# those that it keeps, and writes tables of how the bound orders them (distile experiment correlation). It may be stopped at
# any time: the same command goes on. Measure on an idle machine.
#
# Usage: correlation.sh <distile> <folder for results>
#   OPERATORS="conv3x3_64_56 ...": some of them; DEVICE=FILE: this CPU's calibrated profile; SECONDS_LEFT=N: end after N seconds
#   FIRST=20 of the ranking at each density, POINTS=60 random ones, DENSE_POINTS=20 dense ones; POINTS=no: the tables only
# FOLDER/OPERATOR.kept.log gets what is measured, FOLDER/correlation.txt and .json the tables, of the logs of bench/own/run.sh
# in the folder, too.
set -euo pipefail
distile=$(realpath "$1")
# shellcheck source=bench/own/operators.sh
source "$(dirname "${BASH_SOURCE[0]}")/operators.sh"
mkdir -p "$2"
cd "$2"
points=${POINTS:-60}

if [[ $points != no ]]; then
    for operator in "${operators[@]}"; do
        (($(left) > 0)) || break
        echo "$operator"
        "$distile" experiment random "$(operator_file "$operator")" "${device[@]}" --masks "${masks[@]}" \
            --kept --points "$points" --dense-points "${DENSE_POINTS:-20}" --first "${FIRST:-20}" --seconds "$(left)" \
            --log "$operator.kept.log"
    done
fi

shopt -s nullglob
logs=(./*.kept.log ./*.tune.log)
if ((${#logs[@]} == 0)); then
    echo "correlation.sh: there is no log in '$2' yet" >&2
    exit 1
fi
"$distile" experiment correlation "${logs[@]}" "${device[@]}" --first "${FIRST:-20}" -o correlation.json | tee correlation.txt
