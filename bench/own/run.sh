#!/usr/bin/env bash
# Operators that do not ship, as their users build them: how near the vendor's dense code each way to a plan comes, and
# how long it takes. For every operator in bench/own/operators and every way
#   bound  no plan: schedules by the analytical bound alone, as the build makes them (distile plan --bound-only)
#   plan   distile plan: the bound's best handful, measured
#   tune   distile tune for five minutes
# it makes the plan, compiles it, and measures them all with distile_bench in turns. It may be stopped at any time: the
# same command goes on and skips what is there. Measure on an idle machine.
#
# Usage: run.sh <distile> <distile_bench> <folder for results>
#   OPERATOR_FOLDER=FOLDER: operator files in place of bench/own/operators (pruned_operators.py writes some);
#   OPERATORS="conv3x3_64_56 ..." WAYS="bound plan tune": some of them; DEVICE=FILE: this CPU's calibrated profile
#   SECONDS_LEFT=N: end after N seconds; PLAN_SECONDS=60, TUNE_SECONDS=300: what plan and tune may take
#   BENCH="--seconds 0.5 ...": further options of distile_bench; BENCH=no: make the plans only
# FOLDER/own-cpu.json gets the results, which go to bench/results/ on a commit; FOLDER/OPERATOR.tune.log what tune measured.
set -euo pipefail
distile=$(realpath "$1")
bench=$(realpath "$2")
# shellcheck source=bench/own/operators.sh
source "$(dirname "${BASH_SOURCE[0]}")/operators.sh"
mkdir -p "$3"
cd "$3"
read -ra ways <<<"${WAYS:-bound plan tune}"
plan_seconds=${PLAN_SECONDS:-60}
tune_seconds=${TUNE_SECONDS:-300}
# What this CPU runs of the plans that `distile plan` writes.
level=avx2
grep -qw avx512vl /proc/cpuinfo && level=avx512

# timed <file> <step> <seconds before> <command ...>: runs it, and writes how long it took into a file of seconds by step.
timed() {
    local file=$1 step=$2 before=$3 start taken_ms
    shift 3
    start=$(date +%s%N)
    "$@"
    taken_ms=$((($(date +%s%N) - start) / 1000000))
    printf '"%s": %d.%03d' "$step" $((before + taken_ms / 1000)) $((taken_ms % 1000)) >"$file"
}

# by_plan <operator> <way> <options ...>: what `distile plan` writes.
by_plan() {
    local operator=$1 way=$2 seconds=$1.$2.plan_seconds
    shift 2
    rm -rf part
    timed "$seconds" plan 0 "$distile" plan "$(operator_file "$operator")" -o part "$@"
    mv "part/${operator}_$level.json" "$operator.$way.json"
    rm -r part
}

# What a search took until its last measurement, in whole seconds.
searched() {
    [[ ! -e $1 ]] && echo 0 && return
    tail -n 1 "$1" | sed -n 's/.*"elapsed_s":\([0-9]*\).*/\1/p' | grep . || echo 0
}

# by_tune <operator>: a search, which goes on from its log.
by_tune() {
    local operator=$1 before now
    before=$(searched "$operator.tune.log")
    now=$((tune_seconds > before ? tune_seconds - before : 1))
    ((now <= $(left))) || now=$(left)
    timed "$operator.tune.plan_seconds" tune "$before" \
        "$distile" tune "$(operator_file "$operator")" "${device[@]}" --masks "${masks[@]}" \
        --seconds "$now" --log "$operator.tune.log" -o "${operator}_tuned.json" >"$operator.tune.txt"
    ((before + now >= tune_seconds)) || check_time
    mv "${operator}_tuned.json" "$operator.tune.json"
}

# make_plan <operator> <way>: OPERATOR.WAY.json.
make_plan() {
    case $2 in
    # A build knows no calibrated profile.
    bound) by_plan "$1" "$2" --bound-only ;;
    plan) by_plan "$1" "$2" --seconds "$plan_seconds" "${device[@]}" ;;
    tune) by_tune "$1" ;;
    *)
        echo "run.sh: there is no way '$2'; the ways are bound, plan and tune" >&2
        exit 1
        ;;
    esac
}

for operator in "${operators[@]}"; do
    for way in "${ways[@]}"; do
        name=$operator.$way
        check_time
        if [[ ! -e $name.json ]]; then
            echo "$operator: $way"
            rm -f "$name.so"
            make_plan "$operator" "$way"
        fi
        check_time
        if [[ ! -e $name.so ]]; then
            timed "$name.compile_seconds" compile 0 "$distile" compile "$name.json" -q -o "$name.so.part"
            echo "{$(cat "$name.plan_seconds"), $(cat "$name.compile_seconds")}" >"$name.seconds.json"
            mv "$name.so.part" "$name.so"
        fi
    done
done

check_time
[[ ${BENCH-} != no ]] || exit 0
read -ra options <<<"${BENCH-}"
# The rows of the operators that were asked for.
filter=$(IFS='|' && echo "^own/(${operators[*]})/")
status=0
timeout --foreground -s INT "$(left)" "$bench" --objects . --filter "$filter" --out own-cpu.json --resume "${options[@]}" ||
    status=$?
((status != 124)) || check_time
exit "$status"
