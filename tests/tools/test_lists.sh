#!/usr/bin/env bash
# Plans for lists of operators as a person would make them: searches, quick plans and time tables that share out a time,
# go on after Ctrl-C and after a kill, and say what became of each.
# Usage: test_lists.sh <distile> <source folder> [sanitizers that the command is built with]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1
program=("$distile")
source_folder=$2
# A share must be enough for a dense and a masked schedule.
seconds=12
[[ -z ${3-} ]] || seconds=90
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir temporary operators
export TMPDIR=$folder/temporary
# Two tiny operators, and a table of both.
cp "$source_folder/tests/install/consumer/operator/my_operator.json" operators/my_conv.json
sed 's/my_conv/other_conv/; s/"out_channels": 3/"out_channels": 5/' operators/my_conv.json >operators/other_conv.json
cat >table.csv <<'CSV'
# A comment.
id,category,network,height,width,in_channels,out_channels,kernel,stride,heads,operator,note
1,conv1k,none,4,4,2,3,1,1,,my_conv,
2,conv1k,none,4,4,2,5,1,1,,other_conv,
3,conv1k,none,8,8,2,5,1,1,,other_conv,of another size
CSV
cat >list.json <<'JSON'
// Two parts for CPUs, one for GPUs.
{"distile_operator_list": 1, "about": "a test", "parts": [
    {"table": "table.csv", "rows": "1 - 2", "types": ["float32"]},
    {"operators": ["operators/my_conv.json"], "types": ["uint8"]},
    {"operators": ["operators/my_conv.json"], "backend": "cuda", "math": ["float32"]}]}
JSON
quick=(--masks blob:0.2:1 blob:0.4:2 random:0.5:3 --timing-seconds 0.01 --jobs 2 -k 1)
tune=(tune --all list.json "${quick[@]}" --held-out blob:0.3:9)

# state <summary> <regular expression on names>: the states of tasks, one a line.
state() {
    python3 - "$@" <<'PYTHON'
import json, re, sys
for task in json.load(open(sys.argv[1]))["tasks"]:
    if re.search(sys.argv[2], task["name"]):
        print(task["state"])
PYTHON
}
# order <summary>: the operators of its tasks in their order.
order() {
    python3 -c "
import json, sys
print(*(task['name'].split('_')[0] for task in json.load(open(sys.argv[1]))['tasks']))" "$1"
}
states() {
    state "$1" "${2-}" | sort | uniq -c | sed 's/^ *//' | paste -sd, -
}

# A search for all, each plan once and by the name that `distile plan` has for it. The same command skips what is done.
"$distile" "${tune[@]}" --trials 4 -o all >all.txt 2>all.warning
has '^\[3/3\] .*1/eta .* after 4 trials' <all.txt || fail "tune --all does not tell of its last plan: $(<all.txt)"
has '^On held-out masks 3 plans cost [0-9.]* % more' <all.txt || fail "tune --all does not judge its plans: $(<all.txt)"
has '; about .* left$' <all.txt || fail "tune --all does not tell the time left"
[[ $(states all/tune.json) == "3 done" ]] || fail "tune --all ended with $(states all/tune.json)"
[[ $(ls all/*.json | wc -l) == 4 ]] || fail "tune --all wrote $(ls all)"
python3 -c "
import json
for task in json.load(open('all/tune.json'))['tasks']:
    plan = json.load(open(f'all/{task[\"name\"]}.json'))
    assert plan['name'] == task['name'] and plan['operator']['params']['dtype'] == task['type']
    assert task['found']['trials'] == 4 and task['found']['held_out_cost'] > 0, task" ||
    fail "plans and summary of tune --all do not agree"
cp -r all before
"$distile" "${tune[@]}" --trials 4 -o all --json >again.json
[[ $(states again.json) == "3 done" ]] || fail "tune --all --json prints no summary"
diff -r all before || fail "tune --all measured again what was done"
# A plan that is missing is written again, from the log.
rm all/my_conv_*.json
"$distile" "${tune[@]}" --trials 4 -o all -q 2>/dev/null
diff -r -x '*.lock' -x tune.json all before || fail "a lost plan is not written again as it was"
# More trials continue.
"$distile" "${tune[@]}" --trials 5 -o all --only '^other' 2>more.warning >more.txt
has 'of other settings' <more.warning || fail "tune --all does not say that it has other settings"
has '1 plans of .* 1 done' <more.txt || fail "--only takes other plans"
[[ $(wc -l <"$(ls all/other_conv*.log)") == 6 ]] || fail "more --trials did not continue"

# What more rows name comes first; but before it what has no plan that ships. Such a plan is where a search begins.
"$distile" "${tune[@]/list.json/table.csv}" --trials 2 -o rows -q 2>/dev/null
[[ $(order rows/tune.json) == "other my" ]] || fail "an operator of two rows does not come first: $(order rows/tune.json)"
mkdir -p own/plans
for file in "$(dirname "$distile")"/*; do
    [[ $file == "$distile" || $(basename "$file") == plans ]] || ln -s "$file" own
done
cp "$distile" own
cp "$(ls before/other_conv_*.json)" own/plans/shipped.json
own/distile "${tune[@]/list.json/table.csv}" --trials 3 -o starting -q 2>/dev/null
[[ $(order starting/tune.json) == "my other" ]] || fail "what has no plan does not come first: $(order starting/tune.json)"
python3 -c "
import glob, json
shipped = json.load(open('own/plans/shipped.json'))['variants']
tasks = {task['name']: task for task in json.load(open('starting/tune.json'))['tasks']}
for name, task in tasks.items():
    trials = [json.loads(line) for line in open(f'starting/{name}.log')][1:]
    same = [trial['theta'] in [variant['code']['halide'] for variant in shipped] for trial in trials[:len(shipped)]]
    assert task.get('starts_from') == ('shipped.json' if name.startswith('other') else None), task
    assert all(same) or name.startswith('my'), (name, same)
    assert 0 <= task['found']['gained'] <= 1, task" || fail "a search does not begin with the plan that ships"

# Plans for lesser CPUs, also where this one is such a CPU.
if grep -qw avx2 /proc/cpuinfo; then
    echo '{"distile_operator_list": 1, "parts": [{"operators": ["operators/my_conv.json"], "also": ["avx2"]}]}' >also.json
    "$distile" "${tune[@]/list.json/also.json}" --trials 2 -o also -q 2>/dev/null
    [[ -e also/my_conv_avx2.json && $(states also/tune.json) == *done ]] || fail "tune --all for lesser CPUs wrote $(ls also)"
fi

# A time for all is shared out; what is left of it goes to those that had too little, and a longer one continues.
"$distile" "${tune[@]}" --trials 100000 --seconds "$seconds" -o timed >timed.txt 2>/dev/null
python3 -c "
import json
summary = json.load(open('timed/tune.json'))
assert all(task['state'] in ('done', 'seconds_spent') for task in summary['tasks']), summary
assert any(task['state'] == 'seconds_spent' for task in summary['tasks']), summary
assert summary['held_out']['plans'] == 3 and summary['held_out']['most_loss'] >= summary['held_out']['mean_loss'] >= 0
assert $seconds * .7 < summary['seconds'] < $seconds * 5, summary['seconds']" || fail "a time for all was not kept: $(<timed/tune.json)"
has 'left at most' <timed.txt || fail "tune --all --seconds does not tell the time left: $(<timed.txt)"
cp -r timed spent
"$distile" "${tune[@]}" --trials 100000 --seconds "$seconds" -o timed -q 2>/dev/null
cmp timed/tune.json spent/tune.json || fail "a time that was spent was spent again"
"$distile" "${tune[@]}" --trials 100000 --minutes "$(python3 -c "print($seconds * 1.7 / 60)")" -o timed -q 2>/dev/null
(($(cat timed/*.log | wc -l) > $(cat spent/*.log | wc -l))) || fail "more time did not continue"
expect_error "of 3 plans" tune --all list.json "${quick[@]}" --seconds 0.1 -o short
expect_error "--only 'nothing' finds none of the 3 plans" "${tune[@]}" --only nothing -o none

# Ctrl-C, and then a kill: nothing that was measured is lost, and the time that it took counts.
python3 - "$distile" "${tune[@]}" --trials 12 -o stopped <<'PYTHON'
import glob, os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
lines = lambda: sum(len(open(log).readlines()) for log in glob.glob("stopped/*.log"))
search = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
while lines() < 4 and search.poll() is None:
    time.sleep(0.02)
search.send_signal(signal.SIGINT)
message = search.communicate()[1]
assert search.returncode == 130, (search.returncode, message)
assert "stopped with 3 of 3 plans left" in message and "run the same command again" in message, message
PYTHON
[[ $(states stopped/tune.json) == "3 pending" ]] || fail "after Ctrl-C the states are $(states stopped/tune.json)"
measured=$(cat stopped/*.log | wc -l)
"$distile" "${tune[@]}" --trials 12 -o stopped -q 2>/dev/null &
search=$!
while (($(cat stopped/*.log | wc -l) < measured + 3)); do
    kill -0 "$search" 2>/dev/null || fail "the search ended before it measured anything"
    sleep 0.05
done
expect_error "is in use by another run" "${tune[@]}" --trials 12 -o stopped
kill -9 "$search"
wait "$search" 2>/dev/null || true
cat stopped/*.log | grep -o '"theta":{[^}]*}' | sort >kept.txt
"$distile" "${tune[@]}" --trials 12 -o stopped -q 2>/dev/null
[[ $(states stopped/tune.json) == "3 done" ]] || fail "after a kill the search did not end: $(states stopped/tune.json)"
cat stopped/*.log | grep -o '"theta":{[^}]*}' | sort | comm -23 kept.txt - | has . && fail "a measurement was lost"

# What fails is told with its cause, the others are done, and the same command tries it again.
mkdir failing
name=$(basename "$(ls before/other_conv*.json)" .json)
echo 'not a log' >"failing/$name.log"
expect_error "1 of 3 plans failed, the first, '$name', because" "${tune[@]}" --trials 4 -o failing
[[ $(states failing/tune.json) == "2 done,1 failed" ]] || fail "with a broken log the states are $(states failing/tune.json)"
grep -q 'it is not the log of a search' failing/tune.json || fail "the summary does not say why a plan failed"
rm "failing/$name.log"
"$distile" "${tune[@]}" --trials 4 -o failing -q 2>/dev/null
[[ $(states failing/tune.json) == "3 done" ]] || fail "what failed was not tried again"

# Trials for another machine.
"$distile" "${tune[@]}" --trials 4 --only '^my_conv_uint8' --folder batches -o elsewhere >elsewhere.txt
has 'wait for another machine' <elsewhere.txt || fail "tune --all --folder does not say what waits: $(<elsewhere.txt)"
for batch in batches/*; do
    "$distile" measure "$batch" -q
done
"$distile" "${tune[@]}" --trials 4 --only '^my_conv_uint8' --folder batches -o elsewhere -q
[[ $(states elsewhere/tune.json) == "1 done" || $(states elsewhere/tune.json) == "1 waiting" ]] ||
    fail "a search in a folder ended as $(states elsewhere/tune.json)"

# Quick plans, of a table: each operator once.
"$distile" plan --all table.csv --bound-only -o bound >bound.txt
[[ $(states bound/plan.json) == "2 done" ]] || fail "plan --all ended with $(states bound/plan.json)"
"$distile" info "$(ls bound/other_conv_avx2.json)" >/dev/null || fail "plan --all wrote no plan"
"$distile" plan --all list.json --bound-only --backend cpu cuda -o both -q
[[ $(states both/plan.json) == "4 done" && -e both/my_conv_cuda.json && -e both/my_conv_uint8_avx2.json ]] ||
    fail "plan --all of two backends made $(ls both)"
if grep -qw avx2 /proc/cpuinfo; then
    "$distile" plan --all list.json --only '^other' --hours 0.01 -o quick >quick.txt 2>/dev/null
    grep -q '"held_out_cost"' quick/plan.json || fail "plan --all does not judge by masks of the suite"
    has 'measured on this machine, 1/eta [0-9.]*, [0-9.]* on held-out masks' <quick.txt || fail "plan --all measured nothing: $(<quick.txt)"
    cp quick/*.log .
    "$distile" plan --all list.json --only '^other' --hours 0.01 -o quick -q 2>/dev/null
    cmp -s quick/other_conv_*.log other_conv_*.log || fail "plan --all measured again"
fi

# With other operators in the same files, plans are made anew.
mkdir changed
cp -r operators table.csv bound changed
touch now
sed -i 's/"out_channels": 5/"out_channels": 6/' changed/operators/other_conv.json
"$distile" plan --all changed/table.csv --bound-only -o changed/bound -q
grep -q '"out_channels": 6' changed/bound/other_conv_avx2.json || fail "plan --all kept the plan of another operator"
[[ ! changed/bound/my_conv_avx2.json -nt now ]] || fail "plan --all made a plan anew that nothing changed"

# Time tables of a folder of plans, of those that this machine can run.
cp both/my_conv_cuda.json bound
"$distile" profile --all bound -o tables --seconds 0.02 --threads 1,2 >tables.txt 2>/dev/null
ls tables/*.times.json >/dev/null || fail "profile --all wrote no table"
grep -q '"threads": *2' tables/other_conv_avx2.times.json || ! grep -qw avx2 /proc/cpuinfo || fail "profile --all measured other threads"
if [[ ! -e /dev/nvidiactl ]]; then
    [[ $(state tables/profile.json '^my_conv_cuda$') == skipped ]] || fail "profile --all does not skip plans for GPUs"
    has '^Skipped .my_conv_cuda' <tables.txt || fail "profile --all does not say what it skips: $(<tables.txt)"
fi
# Objects for a machine without compilers. After a kill, and for a plan that changed, the same command goes on.
cp -r bound plans
"$distile" compile --all plans --only '^(my|other)_conv_avx2$' -o objects -q
[[ $(ls objects/*.so | wc -l) == 2 && $(states objects/compile.json) == "2 done" ]] || fail "compile --all wrote $(ls objects)"
touch now
rm objects/other_conv_avx2.so
"$distile" compile --all plans --only '^my_conv_avx2$' --summary sums/compile.json -o elsewhere/objects -q
[[ -e elsewhere/objects/my_conv_avx2.so ]] || fail "compile --all makes no folder beside another summary"
"$distile" compile --all plans --only '^(my|other)_conv_avx2$' -o objects >objects.txt
has '^\[2/2\] other_conv_avx2: [0-9]* variants' <objects.txt || fail "compile --all does not tell what it compiled: $(<objects.txt)"
[[ objects/other_conv_avx2.so -nt now && ! objects/my_conv_avx2.so -nt now ]] || fail "compile --all compiled again what is done"
if grep -qw avx2 /proc/cpuinfo; then
    CC=/bin/false "$distile" profile --all plans --only '^my_conv_avx2$' --object objects -o carried --seconds 0.02 --threads 1 -q 2>/dev/null
    [[ -e carried/my_conv_avx2.times.json ]] || fail "profile --all measured no object of a folder"
    expect_error "1 of 1 plans failed" profile --all plans --only '^my_conv_avx2$' --object bound -o lacking --seconds 0.02 --threads 1
    sed -i 's/"tile_w":[0-9]*/"tile_w":3/' plans/my_conv_avx2.json
    expect_error "was not compiled from the plan" profile --all plans --only '^my_conv_avx2$' --object objects -o changed_plan --seconds 0.02 --threads 1
fi

# After a kill, what was measured stays; of what changes, the times are measured again.
"$distile" profile --all bound -o killed --seconds 0.5 --threads 1 -q 2>/dev/null &
profile=$!
until [[ $(states killed/profile.json 2>/dev/null) == *done* ]]; do
    kill -0 "$profile" 2>/dev/null || fail "profile --all ended before it was killed"
    sleep 0.05
done
kill -9 "$profile"
wait "$profile" 2>/dev/null || true
[[ $(states killed/profile.json) == *pending* ]] || fail "profile --all was done before it was killed"
cp -rp killed kept
"$distile" profile --all bound -o killed --seconds 0.5 --threads 1 -q 2>/dev/null
[[ $(states killed/profile.json) != *pending* ]] || fail "profile --all did not go on after a kill"
for table in kept/*.times.json; do
    grep -q '"doubt"' "$table" || cmp "$table" "killed/$(basename "$table")" || fail "profile --all measured again what was done"
done
if grep -qw avx2 /proc/cpuinfo; then
    sed -i 's/"height":4/"height":5/' bound/my_conv_avx2.json
    "$distile" profile --all bound -o killed --seconds 0.5 --threads 1 --only '^my_conv_avx2$' -q 2>/dev/null
    grep -q '"tiles":20' killed/my_conv_avx2.times.json || fail "profile --all did not measure a plan that changed"
fi
"$distile" profile --all bound --into-plan --summary sums/mine.json --seconds 0.02 --threads 1 -q 2>/dev/null
[[ -e sums/mine.json && ! -e bound/profile.json ]] || fail "--summary does not name the summary's file"
grep -q '"device"' bound/my_conv_avx2.json || fail "profile --all --into-plan wrote no times"
expect_error "needs a folder for the time tables" profile --all bound
expect_error "has no plans" profile --all operators -o none
expect_error "cannot be read" profile --all missing -o none

# Bad lists, and bad options.
bad() {
    echo "$2" >bad.json
    expect_error "$1" tune --all bad.json "${quick[@]}" -o none
}
bad 'no "distile_operator_list": 1' '{"parts": []}'
bad '"parts" is []' '{"distile_operator_list": 1, "parts": []}'
bad 'part 1 needs either a "table"' '{"distile_operator_list": 1, "parts": [{}]}'
bad '"rows" is "1-x"' '{"distile_operator_list": 1, "parts": [{"table": "table.csv", "rows": "1-x"}]}'
bad "has no row 9" '{"distile_operator_list": 1, "parts": [{"table": "table.csv", "rows": "1, 9"}]}'
bad "cannot be opened" '{"distile_operator_list": 1, "parts": [{"operators": ["missing.json"]}]}'
bad "not an array of texts" '{"distile_operator_list": 1, "parts": [{"operators": []}]}'
bad "'float99' is not a data type" '{"distile_operator_list": 1, "parts": [{"table": "table.csv", "types": ["float99"]}]}'
bad '"avx3" in "also"' '{"distile_operator_list": 1, "parts": [{"table": "table.csv", "also": ["avx3"]}]}'
bad 'no operator for the backend "cpu"' '{"distile_operator_list": 1, "parts": [{"table": "table.csv", "backend": "cuda"}]}'
bad 'mat' '{"distile_operator_list": 1, "parts": [{"table": "table.csv", "mat": ["tf32"]}]}'
expect_error "cannot be opened" tune --all missing.json "${quick[@]}" -o none
for wrong in "tune -o none" "tune --all list.json operators/my_conv.json -o none" "plan" "tune --hours 1 operators/my_conv.json -o none" \
    "tune --all list.json --hours 1 --minutes 1 -o none" "tune --all list.json --seconds 1 --minutes 1 -o none" \
    "profile --summary none.json operators/my_conv.json"; do
    # shellcheck disable=SC2086
    if "$distile" $wrong 2>/dev/null; then
        fail "distile $wrong was accepted"
    fi
done
! find none -name '*.json' ! -name tune.json 2>/dev/null | has . || fail "bad input left files"
# The list that ships can be read, and names only what there is.
"$distile" plan --all "$source_folder/data/tuning.json" --bound-only --only '^values_3_64$' -o shipped -q
"$distile" plan --all "$source_folder/data/operators.csv" --bound-only --only '^scores_6_64$' -o table -q
for name in tune plan profile compile; do
    "$distile" $name --help | has -e '--all ' || fail "the help of $name does not tell of --all"
done
echo "all right"
