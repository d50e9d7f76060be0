#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, one after the other, each in a folder of its own that keeps what was found.
#
# Usage: tests/fuzz/run.sh BUILD_FOLDER SECONDS [NAME...]
#   BUILD_FOLDER  that of the preset "fuzz"
#   SECONDS       for each target
#   NAME          targets, for instance plan (default: all)
#
# Fails with the first finding; the input is then BUILD_FOLDER/found/NAME/crash-... Run the target on it to see it again.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
seconds=$2
names=("${@:3}")
((${#names[@]})) || for program in "$build"/tests/fuzz/fuzz_*; do names+=("${program##*/fuzz_}"); done

export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# The sanitizers of older compilers fail at random where the kernel spreads addresses widely.
fixed_addresses=$(setarch -R true 2>/dev/null && echo setarch -R || true)
for name in "${names[@]}"; do
    options=()
    case $name in
    operator | plan | record | time_table) options+=("-dict=$source/json.dict") ;;
    mask_file | weight_file) options+=("-dict=$source/mask_file.dict") ;;
    esac
    mkdir -p "$build/found/$name/corpus"
    echo "fuzz_$name for $seconds seconds"
    $fixed_addresses "$build/tests/fuzz/fuzz_$name" "$build/found/$name/corpus" "$source/corpus/$name" \
        "-max_total_time=$seconds" "-artifact_prefix=$build/found/$name/" -timeout=60 -rss_limit_mb=4096 \
        -print_final_stats=1 -verbosity=0 ${options[@]+"${options[@]}"}
done
