#!/usr/bin/env bash
# Writes what bench/results holds into the README and the documents: short tables, figures, and a page of rows for each
# file of results.
# Usage: tables.sh <distile_bench> [<folder of the documents, if not this repository>]
set -euo pipefail
bench=$1
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
documents=${2:-$repository}
results=$repository/bench/results

mkdir -p "$documents/bench/results"
"$bench" --summary "$results"/*.json --pages "$documents/bench/results"
"$bench" --summary "$results"/cpu-avx512.json --figure "$documents/docs/cpu.svg"
"$bench" --summary "$results"/{h200,h200-16sm}.json --figure "$documents/docs/h200.svg"
attention=$results/h200-attention.json
[[ ! -e $attention ]] || "$bench" --summary "$attention" --figure "$documents/docs/tokens.svg"
many_cores=$results/xeon-16.json
[[ ! -e $many_cores ]] || "$bench" --summary "$many_cores" --figure "$documents/docs/xeon-16.svg"
# float32 and the other types, once these are measured.
gpu=("$results/h200.json")
[[ ! -e $results/h200-tensor.json ]] || gpu+=("$results/h200-tensor.json")
"$bench" --summary "${gpu[@]}" --break-even "$documents/docs/h200-break-even.svg"
# The document says which results it shows. Those that were not measured yet have an empty place.
shown=()
while read -r file; do
    [[ ! -e $file ]] || shown+=("$file")
done < <(sed -n "s|^<!-- begin \(.*\.json\) goals -->$|$results/\1|p" "$documents/docs/benchmarks.md")
"$bench" --summary "${shown[@]}" --into "$documents/docs/benchmarks.md"
python3 "$repository/python/networks/tables.py" "$results"/networks/*.json --into "$documents/docs/networks.md"
[[ ! -e $results/h200-tokens.json ]] || gpu+=("$results/h200-tokens.json")
"$bench" --summary "$results/cpu-avx512.json" "${gpu[@]}" --into "$documents/README.md"
