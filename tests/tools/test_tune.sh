#!/usr/bin/env bash
# Searches as a person would: for a tiny operator, with bad input, interrupted, and on a machine of its own.
# Usage: test_tune.sh <distile> <source folder> [sanitizers that the command is built with]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
distile=$1
program=("$distile")
source_folder=$2
sanitizers=${3-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir temporary
export TMPDIR=$folder/temporary
operator=$source_folder/tests/install/consumer/operator/my_operator.json
masks=(blob:0.2:1 blob:0.4:2 random:0.5:3)
quick=(--timing-seconds 0.01 --jobs 2)

lines() {
    wc -l <"$1"
}

for name in tune plan report measure experiment; do
    "$distile" "$name" --help | has 'Example' || fail "the help of $name has no example"
done
"$distile" --help | has worker && fail "the help shows the worker"

# A search, its report, and the same command again, which has nothing left to do.
"$distile" tune "$operator" --masks "${masks[@]}" --held-out blob:0.3:9 -k 2 --trials 6 "${quick[@]}" -o a.json >a.txt
[[ $(lines a.log) == 7 ]] || fail "the log has $(lines a.log) lines, not a header and 6 trials"
grep -q '"outcome":"ok"' a.log || fail "no trial succeeded"
"$distile" info a.json | has dense || fail "the plan has no dense candidate"
grep -q 'held out' a.txt || fail "tune does not tell the held-out masks"
cp a.log before.log
"$distile" tune "$operator" --masks "${masks[@]}" -k 2 --trials 6 "${quick[@]}" -o a.json --json | has '"sets"' ||
    fail "tune --json prints no JSON"
cmp -s a.log before.log || fail "a search that was finished measured again"
"$distile" report a.log --held-out blob:0.3:9 -o figures | has 'Rank correlation' || fail "report shows no correlation"
for figure in convergence bound granularity; do
    grep -q '</svg>' "figures/a-$figure.svg" || fail "report wrote no figure of $figure"
done
grep -q '"convergence"' figures/a-report.json || fail "report wrote no JSON"
"$distile" experiment replay a.log -k 2 --seeds 1 | has 'trials' || fail "replay printed nothing"
"$distile" experiment correlation a.log a.log -o correlation.json | has '^all  *' || fail "correlation printed no means"
grep -q '"distile_correlation": 1' correlation.json || fail "correlation wrote no JSON"
expect_error "is of the backend" experiment correlation a.log --device generic_cuda
"$distile" report a.log --plans a.json | has 'the plan a,' || fail "report --plans judges no plan"
grep -v '"tile_h"' a.log >dense.log
grep '"dense":true' a.log >>dense.log
expect_error "the log has no measurement of the variant" report dense.log --plans "${operator%/*}/my_plan.json"
"$distile" experiment transfer a.log -k 2 --warm a.log | has 'rank correlation' || fail "transfer printed nothing"

# Plans within a minute: measured for this machine's CPU, by the bound for others. Nothing is measured twice.
"$distile" plan "$operator" -o plans --bound-only | has 'my_conv_avx2.json: by the bound, as asked' ||
    fail "plan does not say that the bound made a plan"
"$distile" plan "$operator" -o plans --bound-only | has 'Build with them: distile_add_polykernel(my_conv OPERATOR' ||
    fail "plan does not say how its plans are built"
"$distile" plan "$operator" -o unmeasured --unmeasured | has 'my_conv_avx2.json: by the bound: none that ships' ||
    fail "plan does not say that no plan ships"
# An operator of a shape that ships, with another activation.
sed -e 's/"epilogue": "[a-z0-9]*"/"epilogue": "silu"/; s/"name": "conv3x3_256"/"name": "mine"/' \
    "$source_folder/data/operators/conv3x3_256.json" >mine.json
"$distile" plan mine.json -o unmeasured --unmeasured | has 'mine_avx2.json: as .*conv3x3_256_avx2.json, which ships' ||
    fail "plan takes no plan that ships"
"$distile" info unmeasured/mine_avx2.json | has 'epilogue silu' || fail "the plan is not the operator's own"
! "$distile" plan mine.json --bound-only --unmeasured 2>/dev/null || fail "plan takes both --bound-only and --unmeasured"
"$distile" info plans/my_conv_avx512.json | has 'masked_1' || fail "the bound made no masked variant"
"$distile" plan "$operator" -o both --bound-only --backend cpu cuda -q || fail "plan makes no plans of two backends"
[[ -e both/my_conv_avx512.json && -e both/my_conv_cuda.json ]] || fail "plan did not write the plans of both backends"
if grep -qw avx2 /proc/cpuinfo; then
    "$distile" plan "$operator" -o plans --seconds 600 --json | python3 -c "
import json, sys
ways = {plan['plan']: plan['how'] for plan in json.load(sys.stdin)['plans']}
[path] = [path for path, how in ways.items() if how == 'measured on this machine']
variants = json.load(open(path))['variants']
assert any(v.get('dense') for v in variants) and any(not v.get('dense') for v in variants)
log = open(path.replace('.json', '.log')).read().splitlines()
dense = ['\"dense\":true' in line for line in log[1:]]
# In turns while both are left: on many cores so small an operator has one masked schedule.
pairs = min(dense.count(True), dense.count(False))
assert pairs and dense[:2 * pairs] == [True, False] * pairs, dense
print(path)" >measured.txt || fail "plan measured no plan"
    cp "$(sed 's/json$/log/' measured.txt)" measured.log
    "$distile" plan "$operator" -o plans -q
    log=$(sed 's/json$/log/' measured.txt)
    cmp -s "$log" measured.log || fail "plan measured again what it has in its log"
    # What was measured while the machine was busy is told, and measured again where that is asked for.
    # A busy machine may have left a doubt there by itself.
    sed -i '3{/"doubt"/!s/}$/,"doubt":"the machine was busy: others ran"}/}' "$log"
    "$distile" plan "$operator" -o plans --json 2>busy.txt | has '"doubt"' || fail "plan --json does not tell of a busy machine"
    has 'doubtful.*the machine was busy.*--again' <busy.txt || fail "plan does not warn of a busy machine: $(<busy.txt)"
    "$distile" info "$(<measured.txt)" | has 'These times are doubtful; the machine was busy' || fail "info keeps a doubt for itself"
    expected=$(($(lines "$log") + $(grep -c '"doubt"' "$log")))
    "$distile" plan "$operator" -o plans -q --again 2>/dev/null
    [[ $(lines "$log") == "$expected" ]] || fail "plan --again measured $(lines "$log") - 1 times in all, not $expected - 1"
    rm plans/*.json
    CC=/none/cc "$distile" plan "$operator" -o none -q 2>none.txt && fail "plan works without a compiler"
    has 'cannot be started' <none.txt || fail "plan does not say what is missing: $(cat none.txt)"
    [[ -z $(find none -name '*.json') ]] || fail "plan wrote a plan without a compiler"
fi
expect_error "cannot be opened" plan none.json
expect_error "none.npy" plan "$operator" --masks none.npy -o no_masks
[[ ! -e no_masks ]] || fail "plan made a folder although its masks cannot be read"
{ "$distile" plan "$operator" --backend abacus 2>&1 || true; } | has 'abacus' || fail "plan takes any backend"

# Two trials are enough for a plan with a masked variant. Whatever the number, masked and dense ones take turns.
"$distile" tune "$operator" --masks "${masks[@]}" --trials 2 "${quick[@]}" -o two.json >two.txt 2>two.ending
python3 -c "
import json
assert len(json.load(open('two.json'))['variants']) == 2" || fail "a plan of two trials has not two variants"
has 'the 2 trials are spent' <two.ending || fail "tune does not say why it ended: $(cat two.ending)"
has 'A CPU without .* takes the portable plan' <two.txt || fail "tune does not say what other CPUs run: $(cat two.txt)"
for log in a two; do
    [[ $(sed -n 2p $log.log) == *'"dense":true'* && $(sed -n 3p $log.log) != *'"dense":true'* ]] ||
        fail "the first trials of $log.log are not a dense and a masked one"
done
# Plans for CPUs below the device, which is never above what this machine can run.
if grep -qw avx2 /proc/cpuinfo; then
    lesser=(tune "$operator" --masks "${masks[@]}" -k 1 --trials 2 "${quick[@]}" --device generic_avx2 --also x86_64)
    "$distile" "${lesser[@]}" -o lesser_avx2.json | has 'A CPU without avx2 takes lesser_x86_64.json' ||
        fail "tune --also does not say what other CPUs run"
    "$distile" info lesser_avx2.json | has 'a CPU with avx avx2' || fail "tune --also changed the first plan"
    "$distile" info lesser_x86_64.json | has 'any x86-64 CPU' || fail "tune --also wrote no plan for any CPU"
    for level in avx2 x86_64; do
        [[ $(lines lesser_$level.log) == 3 ]] || fail "the log for $level has not two trials"
    done
    "$distile" "${lesser[@]}" -o lesser.json --json 2>/dev/null | python3 -c '
import json, sys
print(*[report["target"] for report in json.load(sys.stdin)])' | has 'avx2.* x86-64-linux$' || fail "tune --also --json"
    [[ -e lesser_x86_64.json ]] || fail "tune --also does not append the level to a name without one"
fi
expect_error "is for CPUs below the device" tune "$operator" --masks "${masks[@]}" --device generic_x86_64 --also avx2 -o x.json
expect_error "is for CPUs below the device" tune "$operator" --masks "${masks[@]}" --backend cuda --device generic_cuda \
    --also avx2 -o x.json

# A tool chain that fails ends a search at once, and is no trial. The tools lie beside a copy of the command; the
# generator of that copy fails as the file `fault` says, from some call on, and counts its calls.
tools=$folder/tools
mkdir "$tools"
cp "$distile" "$tools"
for tool in "${distile%/*}"/{*.o,*.so,include,facts,kernels,runtime}; do
    ln -s "$(realpath "$tool")" "$tools"
done
cat >"$tools/distile_generators" <<END
#!/usr/bin/env bash
echo call >>"$folder/calls"
[[ ! -e "$folder/fault" ]] || source "$folder/fault"
exec "$(realpath "${distile%/*}/distile_generators")" "\$@"
END
chmod +x "$tools/distile_generators"
broken=(tune "$operator" --masks "${masks[@]}" -k 1 --timing-seconds 0.01 --jobs 1 -o broken.json
    --trials)
# expect_fault <text> <lines>: the command in `program` fails and says why; the log then has <lines> lines.
expect_fault() {
    : >calls
    expect_error "no schedule can be compiled here: $1" "${broken[@]}" 6
    [[ $(lines broken.log) == "$2" ]] || fail "a fault of the tool chain was logged: $(cat broken.log)"
    [[ ! -e broken.json ]] || fail "a search without a tool chain wrote a plan"
}
program=("$tools/distile")
CC=/none/cc expect_fault "the C compiler '/none/cc' cannot be started" 1
printf '#!/bin/sh\necho "no cc1 here" >&2\nexit 1\n' >cc1
chmod +x cc1
CC="$folder/cc1 -O2" expect_fault "'$folder/cc1' failed; it printed:
no cc1 here" 1
echo 'echo "$0: error while loading shared libraries: libHalide.so.99: cannot open shared object file" >&2; exit 127' >fault
expect_fault "'$tools/distile_generators' cannot be started (libHalide.so.99: cannot open shared object file): name the folder \
of Halide's library in LD_LIBRARY_PATH" 1
echo 'echo "IO failure on output stream: No space left on device" >&2; exit 1' >fault
expect_fault "'$tools/distile_generators' failed; it printed:
IO failure on output stream: No space left on device" 1
# What may be the schedule's fault is tried with another schedule.
echo 'echo "it fails with everything" >&2; exit 1' >fault
expect_fault "'$tools/distile_generators' failed; it printed:
it fails with everything" 1
[[ $(lines calls) == 2 ]] || fail "the tool chain was tried $(lines calls) times"
plugin=$(readlink "$tools/libautoschedule_polykernel.so")
rm "$tools/libautoschedule_polykernel.so" fault
expect_fault "'$tools/libautoschedule_polykernel.so' is missing" 1
head -c 5000 "$plugin" >"$tools/libautoschedule_polykernel.so"
expect_fault "'$tools/distile_generators' failed" 1
ln -sf "$plugin" "$tools/libautoschedule_polykernel.so"
if [[ -z $sanitizers ]]; then
    expect_error "it needs more memory than --memory-mb allows" "${broken[@]}" 6 --memory-mb 100
fi
TMPDIR=/none expect_error "name one in the environment variable TMPDIR" "${broken[@]}" 6
CC=/none/cc expect_error "no schedule can be compiled here" experiment random "$operator" --masks "${masks[@]}" "${quick[@]}" \
    --log broken-random.log --points 1
[[ $(lines broken-random.log) == 1 ]] || fail "experiment random logged a fault of the tool chain"
CC=/none/cc expect_error "no schedule can be compiled here" "${broken[@]}" 6 --folder broken-folder
[[ ! -e broken-folder/request.json ]] || fail "a batch without a tool chain waits to be measured"
# A compiler that hangs with the first schedule only is the schedule's.
rm broken.log
: >calls
echo '(($(wc -l <"'"$folder"'/calls") != 1)) || sleep 60' >fault
expect_error "no dense schedule is measured with success; the 2 trials are spent" "${broken[@]}" 2 --compile-limit 8
[[ $(grep -c 'compiling it took more than 8 seconds' broken.log) == 1 ]] || fail "a schedule that hangs the compiler was not logged"
rm broken.log
# It breaks after three calls: what was measured before is kept. (The third compiles the reference again.)
echo '(($(wc -l <"'"$folder"'/calls") <= 3)) || exit 1' >fault
expect_fault "'$tools/distile_generators' failed and printed nothing" 3
# A schedule that is at fault is a trial like any other. The second call is that of the first masked schedule. The run
# ends without any, says so and leaves the plan of before.
rm broken.log
: >calls
echo '(($(wc -l <"'"$folder"'/calls") != 2)) || { echo "not this one" >&2; exit 1; }' >fault
echo 'of before' >broken.json
expect_error "no plan is written to 'broken.json': no masked schedule is measured with success; the 2 trials are spent: the same \
command with more --trials continues. The last that failed: '$tools/distile_generators' failed; it printed:
not this one" "${broken[@]}" 2
[[ $(cat broken.json) == 'of before' ]] || fail "a run without masked variants wrote a plan"
[[ $(lines broken.log) == 3 && $(grep -c '"outcome":"not_compiled"' broken.log) == 1 ]] || fail "a bad schedule was not logged"
rm fault
"$tools/distile" "${broken[@]}" 4 -q
[[ $(lines broken.log) == 5 ]] || fail "the search did not go on after a bad schedule"
"$distile" info broken.json | has dense || fail "the search that went on wrote no plan"
program=("$distile")
expect_error "the 0.1 seconds are spent after 0 of 200 trials: run the same command again to continue" \
    tune "$operator" --masks "${masks[@]}" --seconds 0.1 -o late.json
[[ ! -e late.json ]] || fail "a run without any result wrote a plan"

# Logs of before, when such faults were trials. They are measured again.
# poison <file>: makes every measurement in it such a fault.
poison() {
    python3 - "$1" <<'PYTHON'
import json, sys

lines = open(sys.argv[1]).read().splitlines()
with open(sys.argv[1], "w") as file:
    for line in map(json.loads, lines):
        if "theta" in line:
            line = {"theta": line["theta"], "dense": line.get("dense", False), "outcome": "not_compiled",
                    "message": "distile: error: 'distile_generators' failed; it printed:\ndistile_generators: error while "
                               "loading shared libraries: libHalide.so.19: cannot open shared object file"}
        print(json.dumps(line), file=file)
PYTHON
}
cp two.log poisoned.log
poison poisoned.log
"$distile" tune "$operator" --masks "${masks[@]}" --trials 2 "${quick[@]}" -o poisoned.json -q 2>warning
grep -q 'has 2 trials that did not compile because a program or a library was missing' warning ||
    fail "no warning about faults of the tool chain in a log: $(cat warning)"
[[ $(lines poisoned.log) == 5 && $(grep -c '"outcome":"ok"' poisoned.log) == 2 ]] || fail "they were not measured again"
"$distile" report poisoned.log 2>&1 | has 'has 2 trials that did not compile' || fail "report does not warn of them"

# A transposed convolution, whose tiles are whole strides.
"$distile" tune "$source_folder/tests/fixtures/operators/test_transpose2_s2_17_3.json" --masks "${masks[@]}" -k 1 --trials 3 \
    "${quick[@]}" -o t.json -q
[[ $(grep -c '"outcome":"ok"' t.log) == 3 ]] || fail "not every trial of a transposed convolution succeeded"

# Depthwise convolutions have a space of their own.
sed -e 's/"channels": 24/"channels": 16/' "$source_folder/tests/fixtures/operators/test_depthwise3_24.json" >depthwise.json
"$distile" tune depthwise.json --masks "${masks[@]}" -k 2 --trials 6 "${quick[@]}" -o dw.json -q
[[ $(grep -c '"outcome":"ok"' dw.log) == 6 ]] || fail "not every trial of a depthwise convolution succeeded"
"$distile" info dw.json | has 'a thread; .* unrolled' || fail "the plan of a depthwise convolution has another space"

# Random points, compiled here and measured "elsewhere".
random=(experiment random "$operator" --masks "${masks[@]}" --dense-points 1 "${quick[@]}" --log random.log --folder points
    --points)
"$distile" "${random[@]}" 2 | has 'distile measure points' || fail "experiment random --folder does not say how to go on"
expect_error "3 trials in the folder 'points' wait to be measured" "${random[@]}" 2
"$distile" measure points -q
"$distile" "${random[@]}" 2 | has '3 of 3 points are measured' || fail "the random points were not taken over"
"$distile" "${random[@]}" 3 >/dev/null
python3 -c "
import json
assert json.load(open('points/request.json'))['reference_us'] > 0" || fail "the next batch does not know the reference's time"
"$distile" measure points -q
"$distile" "${random[@]}" 3 --first 1 | has 'distile measure points' || fail "the first of the ranking is not compiled"
"$distile" measure points -q
"$distile" "${random[@]}" 3 --first 1 | has 'points are measured' || fail "the first of the ranking was not taken over"
"$distile" experiment correlation random.log --first 1 | has '1/1' || fail "the first of the ranking is not measured"

# A last line that a kill left broken, and the log of another operator.
head -c -20 before.log >a.log
"$distile" tune "$operator" --masks "${masks[@]}" -k 2 --trials 6 "${quick[@]}" -o a.json -q 2>warning
grep -q 'line 7 is broken' warning || fail "no warning about the broken line"
[[ $(lines a.log) == 7 ]] || fail "the broken line was not replaced"
sed 's/my_conv/other_conv/' "$operator" >other.json
expect_error "is of the operator 'my_conv'" tune other.json --masks "${masks[@]}" --log a.log -o b.json

# The weights of a layer travel with its trials, and the plan has their share of zeros: here two thirds.
python3 - "$operator" <<'PYTHON'
import json, struct, sys
operator = json.load(open(sys.argv[1]))
params = operator["params"]
shape = params["out_channels"], params["in_channels"] * params.get("kernel_h", 3) * params.get("kernel_w", 3)
header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
values = [float(i % 4 == 0) for i in range(shape[0] * shape[1])]
with open("pruned.npy", "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    file.write(struct.pack(f"<{len(values)}f", *values))
operator["typical"]["weight_zeros"] = 0.6
json.dump(operator, open("pruned.json", "w"))
PYTHON
pruned=(tune pruned.json --weights pruned.npy --masks "${masks[@]}" -k 1 --trials 2 "${quick[@]}" --folder pruned -o pruned_plan.json)
"$distile" "${pruned[@]}" >pruned.txt
grep -q '"weight_zeros":0.6667' pruned_plan.log || fail "the log has not the zeros of the weights: $(head -n 1 pruned_plan.log)"
printf 'no array at all' >pruned/weights.npy
expect_error "are not a NumPy array (there is no NumPy header)" measure pruned
cp pruned.npy pruned/weights.npy
"$distile" measure pruned >measured.txt
[[ $(grep -c '"outcome":"ok"' pruned/results.jsonl) == 2 ]] || fail "trials with weights failed: $(<pruned/results.jsonl)"
expect_error "says nothing of zeros" tune "$operator" --weights pruned.npy --masks "${masks[@]}" -o none.json
expect_error "0.6667 of the weights are 0)" tune pruned.json --masks "${masks[@]}" --log pruned_plan.log -o none.json
"$distile" plan pruned.json --bound-only -o pruned_plans -q
expect_error "66.7 % of the weights 'pruned.npy' are 0, but the plan 'my_conv_avx2' is for 60.0 %" \
    profile pruned_plans/my_conv_avx2.json --weights pruned.npy -o none.json
"$distile" plan pruned.json --weights pruned.npy --backend cuda --bound-only -o pruned_plans -q
grep -q '"cuda-nonzeros"' pruned_plans/my_conv_cuda_nonzeros.json || fail "the plan for NVIDIA GPUs skips no zeros"
expect_error "no code for OpenCL devices skips zeros" plan pruned.json --weights pruned.npy --backend opencl -o none

# Trials that are compiled here and measured "elsewhere": workers may crash, hang, use up the memory or compute nonsense.
tune=(tune "$operator" --masks "${masks[@]}" -k 1 --trials 8 "${quick[@]}" --per-round 3 --measure-limit 8 --memory-mb 600
    --folder batch -o c.json)
"$distile" "${tune[@]}" | has 'distile measure batch' || fail "tune --folder does not say how to go on"
expect_error "6 trials in the folder 'batch' wait to be measured" "${tune[@]}"
# What an earlier version recorded for want of a tool is no result.
python3 -c "
import json
for trial in json.load(open('batch/request.json'))['trials']:
    print(json.dumps({'theta': trial['theta'], 'dense': trial['dense'], 'outcome': 'ok', 'times': [[1, 1, 1, 1]]}))" \
    >batch/results.jsonl
poison batch/results.jsonl
"$distile" "${tune[@]}" | has 'the 0 measurements so far' || fail "faults of the tool chain were taken over"
behaviours=(HANG CRASH WRONG MEMORY FAIL)
for i in "${!behaviours[@]}"; do
    # The code that it replaces tells the hash of the plan that the workers expect.
    python3 - "$i" >trial.h <<'PYTHON'
import ctypes, json, sys

class PolyKernel(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("op", ctypes.c_void_p),
                ("num_operands", ctypes.c_int32), ("operands", ctypes.c_void_p), ("device", ctypes.c_int),
                ("features", ctypes.c_char_p), ("math", ctypes.c_int), ("plan_hash", ctypes.c_uint64)]

index = int(sys.argv[1])
trial = json.load(open("batch/request.json"))["trials"][index]
code = ctypes.CDLL(f"./batch/trial{index}.so")
plan_hash = PolyKernel.in_dll(code, "distile_measured").plan_hash
for name, value in (("TILE_H", trial["theta"]["tile_h"]), ("TILE_W", trial["theta"]["tile_w"]),
                    ("DENSE", int(trial["dense"])), ("PLAN_HASH", hex(plan_hash))):
    print("#define", name, value)
PYTHON
    "${cc[@]}" -shared -fPIC -I "$source_folder" -I "$source_folder/runtime/include" -DBEHAVIOUR="${behaviours[$i]}" -include trial.h \
        -o "batch/trial$i.so" "$source_folder/tests/tools/failing_trial.c"
done
"$distile" measure batch --seconds 0.1 -q
[[ $(lines batch/results.jsonl) == 1 ]] || fail "measure did not end after its seconds"
printf '{"broken' >>batch/results.jsonl
exec 9>>batch/results.jsonl
flock 9
expect_error "are in use by another" measure batch
exec 9>&-
"$distile" measure batch | has 'all of them' || fail "measure did not go on"
outcomes=(crashed timed_out wrong_result ok)
# Sanitizers cannot live with a limit.
[[ -n $sanitizers ]] || outcomes+=(out_of_memory)
for outcome in "${outcomes[@]}"; do
    grep -q "\"outcome\":\"$outcome\"" batch/results.jsonl || fail "no trial is $outcome: $(cat batch/results.jsonl)"
done
grep -q 'it does not want to' batch/results.jsonl || fail "the error of a kernel is not told"
# A disk that is full keeps them from the log.
status=0
blocks=$((($(stat -c %s c.log) + 1023) / 1024))
message=$( (ulimit -f "$blocks" && "$distile" "${tune[@]}") 2>&1 >/dev/null) || status=$?
[[ $status == 1 && $message == *"cannot be written"* ]] || fail "a full disk ended with $status: $message"
(($(lines c.log) < 7)) || fail "a full disk took all results"
echo 'of another search' >batch/reference.so
"$distile" "${tune[@]}" >/dev/null
[[ $(lines c.log) == 7 ]] || fail "the results were not taken over"
# A reference that is not whole is no fault of the trials.
cp batch/reference.so reference.so
head -c 5000 reference.so >batch/reference.so
expect_error "nothing can be measured here" measure batch
[[ ! -s batch/results.jsonl ]] || fail "a broken reference gave results"
cp reference.so batch/reference.so
"$distile" measure batch -q
"$distile" "${tune[@]}" -q
[[ $(lines c.log) == 9 ]] || fail "the search in a folder did not end"
[[ $(tail -n 2 c.log | grep -c '"outcome":"ok"') == 2 ]] || fail "a reference of another search spoiled the trials"
"$distile" info c.json | has dense || fail "the search in a folder wrote no plan"
sed -i 's/"device": "[^"]*"/"device": "another CPU"/' batch/request.json
rm batch/results.jsonl
expect_error "the trials are for the device 'another CPU'" measure batch

# For 16 threads, whatever number this machine has: request, log and plan say so.
tune=(tune "$operator" --masks "${masks[@]}" -k 1 --trials 2 "${quick[@]}" --device generic_x86_64 --threads 16
    --folder sixteen -o sixteen.json)
"$distile" "${tune[@]}" >/dev/null
"$distile" measure sixteen -q
"$distile" "${tune[@]}" -q
python3 -c "
import json
assert json.load(open('sixteen/request.json'))['threads'] == 16
assert json.loads(open('sixteen.log').readline())['threads'] == 16
times = json.load(open('sixteen.json'))['profile']['times']
assert times and all(time['threads'] == 16 for time in times), times" || fail "tune --threads 16 measured other threads"
expect_error "threads" tune "$operator" --masks "${masks[@]}" -k 1 --trials 2 --device generic_x86_64 --threads 8 \
    --folder sixteen --log sixteen.log -o eight.json

# For another CPU, with AMX: the trials are compiled here, for the instructions and the cores that its profile names.
sed 's/"Intel(R) Xeon(R) Processor"/"another Xeon"/' "$source_folder/data/devices/intel_xeon_amx_16cores.json" >xeon.json
for type in bfloat16:amx_bf16 float16:amx_bf16 uint8:amx_int8; do
    sed "s/\"params\": {/\"params\": {\"dtype\": \"${type%:*}\", /" "$operator" >narrow.json
    "$distile" tune narrow.json --masks "${masks[@]}" -k 1 --trials 2 "${quick[@]}" --device xeon.json \
        --folder "amx_${type%:*}" -o "amx_${type%:*}.json" | has 'distile measure amx_' || fail "tune compiled nothing for $type"
    python3 -c "
import json, sys
request = json.load(open('amx_${type%:*}/request.json'))
assert request['threads'] == 16 and request['device'] == 'another Xeon', request
assert request['target'].endswith('-${type#*:}'), request['target']" || fail "the trials for $type are for another CPU"
    [[ -s amx_${type%:*}/trial0.so ]] || fail "no trial for $type is compiled"
    expect_error "the trials are for the device 'another Xeon'" measure "amx_${type%:*}"
done

# For tensor cores: one batch is compiled in a folder, by a stand-in for nvcc, for a GPU elsewhere.
if [[ -e ${distile%/*}/distile_tensor_core.o ]]; then
    tensor_op=$source_folder/tests/fixtures/operators/test_tc_conv3_64_96.json
    printf '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" != -o ] || echo "some code" >"$2"; shift; done\n' >nvcc
    chmod +x nvcc
    for math in tf32 float32; do
        # 16-bit operators take them unasked.
        [[ $math == tf32 ]] && type=float32 || type=bfloat16
        sed "s/\"dtype\": \"float32\"/\"dtype\": \"$type\"/" "$tensor_op" >tensor.json
        CUDACXX=$folder/nvcc "$distile" tune tensor.json --masks "${masks[@]}" \
            --backend cuda --device generic_cuda_sm90 --math $math -k 1 --per-round 2 --trials 6 "${quick[@]}" \
            --folder tensor_$math -o tensor_$math.json | has 'Run `distile measure' || fail "tune --math $math compiled no batch"
        grep -q 'capability_90a' tensor_$math/request.json || fail "tune --math $math compiled for another target"
        grep -qa 'some code' tensor_$math/trial*.so || fail "tune --math $math did not compile with nvcc"
        grep -q '"block_channels"' tensor_$math/request.json || fail "tune --math $math searched another space"
        [[ $(find tensor_$math -name 'trial*.so' | wc -l) -ge 2 ]] || fail "tune --math $math compiled too few trials"
    done
    "$distile" plan "$tensor_op" -o tensor_plans --bound-only --backend cuda --math tf32 -q
    for level in tf32_sm90 tf32_sm80 cuda; do
        "$distile" info tensor_plans/test_tc_conv3_64_96_$level.json >/dev/null || fail "plan made no plan for $level"
    done
    expect_error "its code is from Halide" tune "$tensor_op" --masks "${masks[@]}" --backend cuda --device generic_cuda_sm90 --math tf32 \
        --include tensor_plans/test_tc_conv3_64_96_cuda.json --folder never -o never.json
fi

# Ctrl-C while it runs. (Not from a shell that starts it in the background with Ctrl-C ignored.)
python3 - "$distile" tune "$operator" --masks "${masks[@]}" -k 1 --trials 40 "${quick[@]}" -o d.json <<'PYTHON'
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
search = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, text=True)
while not (os.path.exists("d.log") and sum(1 for _ in open("d.log")) > 2) and search.poll() is None:
    time.sleep(0.02)
search.send_signal(signal.SIGINT)
message = search.communicate()[1]
assert search.returncode == 130, search.returncode
assert "are kept in d.log: run the same command again to continue" in message, message
PYTHON
[[ ! -e d.json ]] || fail "a search that was stopped wrote a plan"
measured=$(lines d.log)
# Compilers that are ended leave no files.
expect_error "even the first of the space takes longer than --compile-limit allows" \
    tune "$operator" --masks "${masks[@]}" -k 1 --trials 2 --compile-limit 0.1 -o slow.json
[[ $(lines slow.log) == 1 ]] || fail "trials that no limit would let compile were logged"
[[ -z $(ls -A "$TMPDIR") ]] || fail "temporary files are left: $(ls -A "$TMPDIR")"
# While one search has the log, a second one is refused; killed, it leaves a log that the next one goes on with.
"$distile" tune "$operator" --masks "${masks[@]}" -k 1 --trials 40 "${quick[@]}" -o d.json -q &
search=$!
while [[ $(lines d.log) == "$measured" ]]; do
    kill -0 "$search" 2>/dev/null || fail "the search ended before it measured anything"
    sleep 0.05
done
expect_error "is in use by another search" tune "$operator" --masks "${masks[@]}" -k 1 --trials 40 -o d.json
kill -9 "$search"
wait "$search" 2>/dev/null || true
trials=$(($(lines d.log) + 1))
"$distile" tune "$operator" --masks "${masks[@]}" -k 1 --trials "$trials" "${quick[@]}" -o d.json -q
[[ $(lines d.log) == $((trials + 1)) ]] || fail "the search did not go on"

# Bad input.
echo 'not a log' >notes.txt
expect_error "it is not the log of a search" tune "$operator" --masks "${masks[@]}" --log notes.txt -o x.json
[[ $(cat notes.txt) == 'not a log' ]] || fail "a file that is no log was changed"
expect_error "the plan and the log would be one file" tune "$operator" --masks "${masks[@]}" -o x.log
expect_error "there are no masks" tune "$operator" -o x.json
expect_error "no mask family 'cloud'" tune "$operator" --masks cloud:0.1:1 -o x.json
expect_error "no mask has an active pixel" tune "$operator" --masks blob:0:1 -o x.json
expect_error "have 256 x 256 pixels" tune "$operator" --masks "$source_folder/data/masks/sige_church_256.npy" -o x.json
expect_error "cannot be opened" tune "$operator" --masks blob:0.1:1 --device none.json -o x.json
sed 's/generic AVX2 CPU/another CPU/' "$source_folder/data/devices/generic_avx2.json" >another.json
expect_error "the device profile is of 'another CPU'" tune "$operator" --masks blob:0.1:1 --device another.json -o x.json
expect_error "name its profile with --device" tune "$operator" --masks blob:0.1:1 --backend cuda -o x.json
expect_error "is of the backend \"cuda\"" tune "$operator" --masks blob:0.1:1 --device generic_cuda -o x.json
expect_error "cannot check a CPU for the feature 'cuda'" tune "$operator" --masks blob:0.1:1 --device generic_avx2 \
    --target x86-64-linux-cuda-cuda_capability_70 -o x.json
for other in "generic_avx512 x86-64-linux-avx-avx2-f16c-fma-sse41" "generic_avx2 x86-64-linux"; do
    read -r device target <<<"$other"
    expect_error "is for devices like" tune "$operator" --masks blob:0.1:1 --device "$device" --target "$target" -o x.json
done
expect_error "cannot be opened" report none.log
expect_error "cannot be opened" measure none
for wrong in "-k 0" "--trials 0" "--backend vax" "--threads 0"; do
    # shellcheck disable=SC2086
    if "$distile" tune "$operator" --masks blob:0.1:1 -o x.json $wrong 2>/dev/null; then
        fail "tune accepted $wrong"
    fi
done
[[ ! -e x.json && ! -e x.log ]] || fail "bad input left files"
echo "all right"
