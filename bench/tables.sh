#!/usr/bin/env bash
# Writes what bench/results holds into the README and the documents: tables, figures in sentences, and drawings. A page of
# every row of each file goes into a folder.
# Usage: tables.sh <distile_bench> <folder of the pages> [<folder of the documents, if not this repository>]
set -euo pipefail
bench=$1
pages=$2
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
documents=${3:-$repository}
results=$repository/bench/results

mkdir -p "$pages"
"$bench" --summary "$results"/*.json --pages "$pages"
python3 "$repository/python/zoo/results.py" "$repository/python/zoo/results/zoo.json" >"$pages/zoo.md"
"$bench" --summary "$results"/cpu-avx512.json --figure "$documents/docs/cpu.svg"
"$bench" --summary "$results"/{h200,h200-16sm}.json --figure "$documents/docs/h200.svg"
"$bench" --summary "$results"/h200-attention.json --figure "$documents/docs/tokens.svg"
"$bench" --summary "$results"/xeon-16.json --figure "$documents/docs/xeon-16.svg"
"$bench" --summary "$results"/{h200,h200-tensor}.json --break-even "$documents/docs/h200-break-even.svg"
python3 "$repository/bench/tables/write.py" "$documents"
