#!/usr/bin/env bash
# Searches for two operators on the GPU of this machine, the whole of an H200 and 16 of its multiprocessors, and compares
# what is found with the plans made by hand. It may be stopped at any time: the same command goes on.
#
# Usage: run_gpu.sh <distile> <folder for results>
#   SECONDS_EACH=110 of each search in one run of this script
set -euo pipefail
distile=$(realpath "$1")
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$2"
cd "$2"

source "$source_folder/bench/search/masks.sh"

for device in h200 h200-16sm; do
    for operator in conv3x3_256 conv1x1_256_1024; do
        plan=$source_folder/data/plans/${operator}_cuda.json
        "$distile" tune "$source_folder/data/operators/$operator.json" --backend cuda \
            --device "$source_folder/data/devices/$device.json" --masks "${masks[@]}" -k 6 --trials 400 --seed 1 --per-round 8 \
            --timing-seconds 0.1 --include "$plan" --seconds "${SECONDS_EACH:-110}" -q -o "$operator-$device.json"
        "$distile" report "$operator-$device.log" --held-out "${held_out[@]}" --plans "$plan" -o figures
    done
done
