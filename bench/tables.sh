#!/usr/bin/env bash
# Writes the tables of bench/results into the README and the documents, and draws docs/h200.svg.
# Usage: tables.sh <distile_bench> [<folder of the documents, if not this repository>]
set -euo pipefail
bench=$1
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
documents=${2:-$repository}
results=$repository/bench/results

"$bench" --summary "$results"/{cpu-avx512,h200,h200-16sm}.json --into "$documents/docs/benchmarks.md" \
    --figure "$documents/docs/h200.svg"
"$bench" --summary "$results"/h200-masks.json --into "$documents/docs/cuda.md"
"$bench" --summary "$results"/{cpu-avx512,h200}.json --into "$documents/README.md"
