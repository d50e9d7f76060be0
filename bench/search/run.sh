#!/usr/bin/env bash
# Repeats the experiments on the search: random points, a search, replays, transfer and held-out masks for three operators.
# Run it on an idle machine. It may be stopped at any time: the same command goes on. Hours, in slices if SECONDS_LEFT is set.
#
# Usage: run.sh <distile> <device profile> <folder for results>
#   POINTS=2000 random points of the first operator, 300 of the others; TRIALS=300 of a search; SECONDS_LEFT=N: end after N seconds
set -euo pipefail
distile=$(realpath "$1")
device=$(realpath "$2")
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$3"
cd "$3"
points=${POINTS:-2000}
trials=${TRIALS:-300}

# shellcheck source=bench/search/masks.sh
source "$source_folder/bench/search/masks.sh"
# shellcheck source=bench/search/time_limit.sh
source "$source_folder/bench/search/time_limit.sh"

operators=(conv3x3_256 conv3x3s2_256 conv1x1_256_1024)
for operator in "${operators[@]}"; do
    file=$source_folder/data/operators/$operator.json
    # A search, after the plan that was made by hand where there is one. Others are replayed from what is measured.
    plan=$source_folder/data/plans/${operator}_avx512.json
    hand=()
    [[ ! -e $plan ]] || hand=(--include "$plan")
    check_time
    "$distile" tune "$file" --device "$device" --masks "${masks[@]}" --held-out "${held_out[@]}" -k 6 \
        --trials "$trials" --seed 1 --seconds "$(left)" "${hand[@]}" -q -o "$operator.json"
    # Points that no search chose, of the whole space and of what the bound keeps, in one log with the search's own.
    check_time
    [[ -e $operator-all.log ]] || cp "$operator.log" "$operator-all.log"
    count=300
    [[ $operator != "${operators[0]}" ]] || count=$points
    random=(experiment random "$file" --device "$device" --masks "${masks[@]}" --seed 17 --log "$operator-all.log")
    check_time
    "$distile" "${random[@]}" --points "$count" --seconds "$(left)"
    check_time
    "$distile" "${random[@]}" --points $((count / 4)) --seconds "$(left)" --kept
    check_time
done

for operator in "${operators[@]}"; do
    plan=$source_folder/data/plans/${operator}_avx512.json
    hand=()
    [[ ! -e $plan ]] || hand=(--plans "$plan")
    "$distile" report "$operator-all.log" --held-out "${held_out[@]}" "${hand[@]}" -o figures
    "$distile" experiment replay "$operator-all.log" --per-round 1 --seeds 24 -o "$operator-replay.json"
    others=()
    for other in "${operators[@]}"; do
        [[ $other == "$operator" ]] || others+=("$other-all.log")
    done
    "$distile" experiment transfer "$operator-all.log" --warm "${others[@]}" -o "$operator-transfer.json"
done
