#!/usr/bin/env bash
# Runs the benchmark as a person would: the documents show the results that are committed, bad input gives a clear error
# and overwrites nothing, and rows of every cheap kind can be measured, kept and shown. No time is looked at.
# Usage: test_bench.sh <source folder> <distile> <distile_bench> [<distile_cuda_bench>]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
source_folder=$1
distile=$2
bench=$3
program=("$bench")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The tables and the figures, written again, stay as they are.
mkdir -p "$folder/docs" "$folder/bench/results"
cp "$source_folder/README.md" "$folder"
cp "$source_folder"/docs/*.md "$folder/docs"
cp "$source_folder/bench/results/README.md" "$folder/bench/results"
"$source_folder/bench/tables.sh" "$bench" "$folder/pages" "$folder"
for document in README.md bench/results/README.md docs/{cpu,gain,h200,h200-break-even,tokens,xeon-16}.svg $(cd "$source_folder" && echo docs/*.md); do
    diff -u "$source_folder/$document" "$folder/$document" >&2 ||
        fail "$document does not show bench/results; write it with 'make bench-tables'"
done
# Each file has a page of every row, and a line for each row.
for file in "$source_folder"/bench/results/*.json; do
    page=$folder/pages/$(basename "$file" .json).md
    has '^# Every row$' <"$page" || fail "there is no page of $file"
done
has '^| MTCNN O |' <"$folder/pages/zoo.md" || fail "there is no page of the zoo"
git -C "$source_folder" ls-files 2>/dev/null | has '^\(bench/results\|python/zoo/results\)/[a-z0-9-]*[a-z0-9]\.md$' && fail "a page of rows is committed"
python3 - "$source_folder" <<'PYTHON' || fail "results are not a row a line: give them to bench/python/json_rows.py"
import json, pathlib, sys

source = pathlib.Path(sys.argv[1])
sys.path.append(str(source / "bench/python"))
import json_rows

for file in [*source.glob("bench/results/**/*.json"), source / "python/zoo/results/zoo.json"]:
    text = file.read_text(encoding="utf-8")
    assert json_rows.text(json.loads(text)) == text, file
PYTHON

# The files of rows can be read, by both programs.
for each in "${@:3}"; do
    "$each" --list | has '^mask/40x40/blob/0.3/' || fail "$each --list does not show the rows of masks"
    "$each" --list --filter '^planner' | has -v '^planner' && fail "$each --list --filter shows other rows"
done
expect_error "is no regular expression" --list --filter '('
expect_error "matches no row" --list --filter 'no such row'
# A type stands in the names of rows unless it is float32.
for dtype in '' /tf32 /float16 /bfloat16; do
    "$bench" --list --rows "$source_folder/bench/rows_cuda.json" | has "^op3/blob/0.3/n4/keep/plain/cudnn$dtype\$" ||
        fail "bench/rows_cuda.json has no row of the type '$dtype'"
done
for row in choice/device/op3/blob/0.05/n1/tf32 choice/linked/op21/blob/1.0/n32/float16 \
    op12/sige_church_edit/out3/n32/keep/plain/cudnn/tf32 op7/blocks8x8/0.3/n4/keep/plain/dense/float16/boxes \
    op26/blob/0.3/n32/keep/plain/cudnn/float16; do
    "$bench" --list --rows "$source_folder/bench/rows_cuda.json" | has "^$row\$" || fail "bench/rows_cuda.json has no $row"
done
# Each convolution of the table has its rows: 26 at seven densities in three batches.
rows=$("$bench" --list | grep -cE '^op([1-9]|1[0-9]|2[0-6])/blob/(0.05|0.1|0.3|0.5|0.7|0.9|1.0)/n[124]/keep/(bordered/onednn3|plain/onednn3)$')
((rows >= 26 * 7 * 3)) || fail "bench/rows.json has $rows rows of the convolutions of data/operators.csv"
sed 's/"modes": *\["keep"\]/"dtypes": ["tf16"], &/' "$source_folder/bench/rows.json" >"$folder/rows.json"
expect_error "'tf16' is no type of rows; the types are 'float32', 'tf32', " --list --rows "$folder/rows.json"
sed -i 's/tf16/tf32/' "$folder/rows.json"
"$bench" --threads 1 --rounds 2 --seconds 0 --rows "$folder/rows.json" --filter '^op39/blob/0.3/' 2>/dev/null \
    >"$folder/printed" && fail "a CPU measured TF32"
has 'failed: on a CPU, operators are compared with dense ones in float32 only' <"$folder/printed" ||
    fail "a row of TF32 said:" "$(cat "$folder/printed")"
echo '{"distile_bench_rows": 1, "operators": {' >"$folder/rows.json"
expect_error "the rows '$folder/rows.json' cannot be read" --list --rows "$folder/rows.json"
sed 's/"mode[s]*": *\["keep"\]/"modes": ["kept"]/' "$source_folder/bench/rows.json" >"$folder/rows.json"
expect_error "'kept' is neither 'zero' nor 'keep'" --list --rows "$folder/rows.json"
sed 's/"peers": \["dense"\], "cpu_features"/"peers": ["onednn3"], "cpu_features"/' "$source_folder/bench/rows.json" \
    >"$folder/rows.json"
expect_error "limits CPU features, but its peer 'onednn3' would use all of them" \
    --list --rows "$folder/rows.json"
expect_error "cannot be opened" --list --rows "$folder/none.json"

# Rows are measured, written, kept, and shown.
rows='^(mask/40x40/blob/0.1/|select/op3|pool/2x5us|dispatch/op3|algebra/.*/unite|layout/.*/1x3x224x224|token/1x197x384/blob/0.3/|op39/blob/0.3/|op32/.*/0.1/.*/portable|op48/blob/0.3/|type/b.*/op32/.*/0.1/)'
quick=(--threads 1 --rounds 2 --seconds 0 --filter "$rows")
results=$folder/results.json
"$bench" "${quick[@]}" --out "$results" >"$folder/printed" 2>&1 || fail "measuring ended with:" "$(cat "$folder/printed")"
count=$("$bench" --list --filter "$rows" | wc -l)
has "^$count rows: .* 0 failed, in $results" <"$folder/printed" || fail "measuring printed:" "$(cat "$folder/printed")"
(($(grep -c '^  {"row":' "$results") == count && $(wc -l <"$results") == count + 6)) || fail "results are not a row a line"
grep -q '"source":".' "$results" || fail "the results do not name the source's version"
grep -q '"others_busy":' "$results" || fail "the results do not say how busy others were"
# Who runs now is warned of, and not who ran before.
for ((i = $(nproc); i > 0; i--)); do
    timeout 60 sh -c 'while :; do :; done' &
done
"$bench" --threads 1 --rounds 2 --seconds 0 --filter '^select/op3' --out "$folder/busy.json" >"$folder/printed" 2>&1
kill $(jobs -p)
has '^warning: others take [0-9]* % of the cores' <"$folder/printed" || fail "nobody was warned of others:" "$(cat "$folder/printed")"
grep -q '"others_busy_before":0*[1-9.]' "$folder/busy.json" || fail "the results do not say how busy others were before"
grep -q load_average "$folder/busy.json" && fail "the results hold a load average"
"$bench" --summary "$results" | has '^| mask/40x40/blob/0.1/.* \(met\|MISSED\) |$' || fail "--summary does not show a row of masks"
"$bench" --summary "$results" | has '^| op32/blob/0.1/n1/keep/bordered/dense/portable | none | ' ||
    fail "--summary does not show the portable code"
"$bench" --summary "$results" | has '^| op48/blob/0.3/n1/keep/plain/dense | ' ||
    fail "--summary does not show a linear layer"
"$bench" --summary "$results" | has '^| op32 .* | bfloat16 | all | 1 | 0.10 | .* | <= 1.05 ' ||
    fail "--summary does not show a type"
"$bench" "${quick[@]}" --out "$results" --resume 2>/dev/null | has '0 failed' || fail "--resume failed"
cp "$results" "$folder/before.json"
expect_error "their 'rounds_at_least' is 2, now it is 3" --threads 1 --rounds 3 --seconds 0 --out "$results" --resume
expect_error "their 'seconds_at_least' is 0.0, now it is 0.1" --threads 1 --rounds 2 --seconds 0.1 --out "$results" --resume
cmp "$folder/before.json" "$results" || fail "--resume changed a file that it refused"

# Operators that are loaded: two plans of one, in turns with the peer, with a time table and without.
own=$folder/own
mkdir "$own"
python3 - "$source_folder/tests/fixtures/plans/test_conv3_16_48_avx2.json" >"$own/test_conv3_16_48.bound.json" <<'PYTHON'
import json, sys

plan = json.load(open(sys.argv[1]))
plan["variants"] = [each for each in plan["variants"] if each["name"] in ("t1x1_p6c16_o0", "dense")]
json.dump(plan, sys.stdout)
PYTHON
base=$own/test_conv3_16_48
"$distile" compile "$base.bound.json" -o "$base.bound.so" -q
for end in json so; do cp "$base.bound.$end" "$base.tune.$end"; done
"$distile" profile "$base.tune.json" --object "$base.tune.so" --into-plan --threads 1 --seconds 0.01 -q
echo '{"tune": 1.5, "compile": 2}' >"$base.tune.seconds.json"
# With a peer that every build has.
sed 's/"peer": "onednn3"/"peer": "dense"/' "$source_folder/bench/rows.json" >"$folder/dense_rows.json"
loaded=(--objects "$own" --rows "$folder/dense_rows.json" --threads 1 --rounds 2 --seconds 0 --filter '^own/.*/(blob/0.1|dense)/' --out "$folder/own.json")
"$bench" --list --objects "$own" | has '^own/test_conv3_16_48/sige_church/real/bordered$' || fail "--objects adds no rows"
"$bench" --list | has '^own/' && fail "there are rows of loaded operators without --objects"
"$bench" "${loaded[@]}" 2>/dev/null | has '^2 rows: 2 measured' || fail "loaded operators were not measured"
# A real mask in the middle of an image twice as wide and high.
sed 's/{"mask": "sige_church"}/{"mask": "sige_church", "zoom_out": [2]}/' "$folder/dense_rows.json" >"$folder/small_rows.json"
"$bench" --objects "$own" --rows "$folder/small_rows.json" --threads 1 --rounds 2 --seconds 0 \
    --filter '^own/.*/sige_church/out2/' --out "$folder/small.json" >/dev/null 2>&1
grep -q '"density":0.039' "$folder/small.json" || fail "a small edit has another density:" "$(cat "$folder/small.json")"
# Only the plan with times has a time to predict.
python3 - "$folder/own.json" <<'PYTHON' || fail "the results of loaded operators are wrong"
import json, sys

row = json.load(open(sys.argv[1]))["rows"][0]
ways = row["ways"]
assert [way["way"] for way in ways] == ["bound", "tune", "general"]
assert ways[0]["predicted_us"] == 0 and ways[1]["predicted_us"] > 0
assert all(abs(way["eta"] * way["t_masked_us"] / row["t_peer_us"] - row["density"]) < 1e-3 for way in ways)
assert ways[1]["seconds"] == {"tune": 1.5, "compile": 2} and ways[0]["seconds"] == {}
PYTHON
shown=$("$bench" --summary "$folder/own.json")
for line in '^| Plan | 0.1 | dense | against tune | plan, s | compile, s |$' '^| tune | .* | 1.00 (1.00 test_conv3_16_48) | 2 | 2 |$' \
    '^| test_conv3_16_48 40x40 16->48 3x3 | blob | 0.10 | bordered | ' '^| test_conv3_16_48 | - | - | compile 2.0, tune 1.5 |$'; do
    has "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
"$bench" "${loaded[@]}" --resume 2>/dev/null | has '0 measured, 2 kept' || fail "--resume measured loaded operators again"
"$bench" --summary "$folder/own.json" --pages "$folder/pages"
grep -q 'compile 2.0, tune 1.5' "$folder/pages/own.md" || fail "the page does not show loaded operators"
# With another plan, the rows are measured again.
"$distile" profile "$base.tune.json" --object "$base.tune.so" --into-plan --threads 1 --seconds 0.01 -q
"$bench" "${loaded[@]}" --resume 2>/dev/null | has '2 measured, 0 kept' || fail "--resume kept the rows of another plan"
expect_error "the folder '$folder/none' cannot be read: No such file" --list --objects "$folder/none"
expect_error "holds no OPERATOR.WAY.so" --list --objects "$folder/docs"
cp "$own/test_conv3_16_48.bound.so" "$own/other.so"
expect_error "other.so' is not named OPERATOR.WAY.so" --list --objects "$own"
rm "$own/other.so"
cp "$own/test_conv3_16_48.bound.so" "$own/test_conv3_16_48.plan.so"
expect_error "test_conv3_16_48.plan.json" --list --objects "$own"
sed 's/"test_conv3_16_48"/"other"/' "$base.bound.json" >"$base.plan.json"
expect_error "is of the operator 'other'" --list --objects "$own"
sed 's/"height": 40/"height": 41/' "$base.bound.json" >"$base.plan.json"
expect_error "is of another operator" --list --objects "$own"
sed 's/"pixels": 6/"pixels": 5/' "$base.bound.json" >"$base.plan.json"
expect_error "was not compiled from the plan" --list --objects "$own"
cp "$base.bound.json" "$base.plan.json"
head -c 2000 "$base.bound.so" >"$base.plan.so"
expect_error "is not whole" --list --objects "$own"
rm "$base.plan.so"
echo '{"tune": "long"}' >"$base.tune.seconds.json"
expect_error "does not hold seconds by step" --list --objects "$own"
# The scripts of bench/own say what they do not know; its operators can be read, and have rows.
program=(env OPERATORS=none "$source_folder/bench/own/run.sh" "$distile" "$bench")
expect_error "there is no operator 'none'" "$folder/scripts"
program=(env WAYS=guess "$source_folder/bench/own/run.sh" "$distile" "$bench")
expect_error "there is no way 'guess'" "$folder/scripts"
program=(env POINTS=no "$source_folder/bench/own/correlation.sh" "$distile")
expect_error "there is no log in '$folder/scripts' yet" "$folder/scripts"
program=("$bench")
for operator in "$source_folder"/bench/own/operators/*.json; do
    "$distile" info "$operator" >/dev/null
    grep -q "\"$(basename "$operator" .json)\"" "$source_folder/bench/rows.json" || fail "bench/rows.json has no $operator"
done

# Results that cannot be understood. They are not touched, and nothing is drawn from them.
# expect_broken <text> <what the file of results holds>
expect_broken() {
    echo "$2" >"$folder/broken.json"
    cp "$folder/broken.json" "$folder/broken.before"
    expect_error "$1" --summary "$folder/broken.json" --figure "$folder/figure.svg"
    expect_error "the results '$folder/broken.json'" --summary "$folder/broken.json"
    [[ ! -e $folder/figure.svg ]] || fail "a figure was drawn from '$2'"
}
header='"header": {"device": "a", "threads": 1, "date": "2026-01-31", "compiler": "c", "versions": {"oneDNN": "o"}}'
one='{"row": "select/op3", "status": "measured", "kind": "select", "t_us": 1}'
expect_broken "cannot be read" '{"distile_bench": 1,'
expect_broken "'distile_bench' must be 1" "{\"distile_bench\": 2, $header, \"rows\": []}"
expect_broken "unknown field 'colour'" "{\"distile_bench\": 1, $header, \"rows\": [], \"colour\": 1}"
expect_broken "'device'" '{"distile_bench": 1, "header": {}, "rows": []}'
expect_broken "row 'select/op3' comes twice" "{\"distile_bench\": 1, $header, \"rows\": [$one, $one]}"
expect_broken "row 'select/op3' is of an unknown kind 'guess'" \
    "{\"distile_bench\": 1, $header, \"rows\": [${one/\"select\",/\"guess\",}]}"
expect_broken "row 'select/op3' has an unknown status 'lost'" \
    "{\"distile_bench\": 1, $header, \"rows\": [${one/measured/lost}]}"
expect_broken "'t_us'" "{\"distile_bench\": 1, $header, \"rows\": [${one/t_us/time}]}"
echo "{\"distile_bench\": 1, $header, \"rows\": [$one]}" >"$folder/broken.json"
"$bench" --summary "$folder/broken.json" | has '^| select/op3 | 1.00 ' || fail "what was to be broken was not whole"
# Older results do not say what a difference is compared with.
old=${one//select/difference}
echo "{\"distile_bench\": 1, $header, \"rows\": [${old/\"t_us\"/\"ratio\": 1, \"t_us\"}]}" >"$folder/old.json"
"$bench" --summary "$folder/old.json" | has ' 1.00 x a copy |$' || fail "--summary does not show an older difference"
# Results of a GPU that has no other rows than those of kinds, types and bandwidths.
gpu_header='"header": {"backend": "cuda", "device": "a", "multiprocessors": 8, "threads": 8, "date": "2026-01-31", "versions": {"cuDNN": "c"}}'
of='"status": "measured", "op": "op42", "shape": "s", "batch": 4, "mask": "blob", "density": 0.3, "variant": "v"'
gpu_rows='{"row": "op42/blob/0.3/n4/keep/plain/dense", "kind": "convolution", '$of', "mode": "keep", "layout": "plain",
  "peer_name": "dense", "peer_implementation": "d", "t_peer_us": 9, "t_kernels_us": 3, "t_masked_us": 4, "speedup": 2.25,
  "eta_kernel": 0.9, "eta": 0.68, "t_host_until_done_us": 9, "t_host_until_launched_us": 5, "best_variant": "v",
  "choice_loss": 0},
 {"row": "type/float16/op42/blob/0.3/n4", "kind": "type", '$of', "type": "float16", "t_us": 2, "t_plain_us": 4,
  "ratio": 0.5, "ratio_kernels": 0.4, "goal_ratio": 1.05, "met": true},
 {"row": "bandwidth/op42/blob/0.3/n4", "kind": "bandwidth", '$of', "t_us": 2, "gb_per_s": 100, "share": 0.5,
  "share_of_large_copy": 0.25, "share_masked": 0.4, "goal_share": 0.6, "met": false}'
echo "{\"distile_bench\": 1, $gpu_header, \"rows\": [$gpu_rows]}" >"$folder/gpu.json"
shown=$("$bench" --summary "$folder/gpu.json") || fail "--summary does not show a GPU's kinds"
for line in '| op42 s | 4 | - | 0.68 | - | - | our dense variant |' \
    '| op42 s | 4 | blob | 0.30 | our dense variant | 9.0 | - | 3.0 | 4.0 | 2.25 |' \
    '| op42 s | float16 | all | 4 | 0.30 | 2.0 | 4.0 | 0.50 | 0.40 | <= 1.05 met | v |' \
    '| op42 s | 4 | 0.30 | 2.0 | 100 | 0.50 | 0.25 | 0.40 | >= 0.6 MISSED | v |'; do
    grep -qF "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
# Other types than float32: means and break-even densities. From the mask on, op12 is as fast as cuDNN at .2.
python3 - "$folder/tensor.json" <<'PYTHON'
import json, sys

rows = []
for op in ("op3", "op7", "op12", "op21"):
    factor = 2.5 if op == "op12" else 1
    for mask, density, name, peer, kernels in (
            ("blob", 0.1, "0.1", "cudnn", 4 * factor), ("blob", 0.3, "0.3", "cudnn", 12 * factor),
            ("blob", 1.0, "1.0", "cudnn", 40 * factor), ("sige_church", 0.02, "out3", "cudnn", 10 * factor),
            ("sige_church", 0.15, "real", "cudnn", 6 * factor), ("blocks8x8", 0.32, "0.3", "dense", 40 * 0.32 / 0.9)):
        rows.append({
            "row": f"{op}/{mask}/{name}/n4/keep/plain/{peer}/tf32" + ("/boxes" if peer == "dense" else ""),
            "status": "measured", "kind": "convolution", "op": op,
            "shape": "s", "batch": 4, "dtype": "tf32", "mask": mask, "mode": "keep", "layout": "plain", "peer_name": peer,
            "peer_implementation": "e", "density": density, "t_peer_us": 40, "t_kernels_us": kernels,
            "t_masked_us": 2 * kernels, "t_host_until_launched_us": 5, "variant": "v", "best_variant": "v", "choice_loss": 0})
rows.append({**rows[1], "row": "op1/blob/0.3/n4/keep/plain/cudnn/tf32", "op": "op1"})
for op, loss in (("op3", 0.01), ("op7", 0.04)):
    choice = {"status": "measured", "kind": "choice", "op": op, "shape": "s", "batch": 4, "dtype": "float16", "mask": "blob",
              "mode": "keep", "density": 0.3, "t_peer_us": 40, "t_kernels_us": 30, "t_masked_us": 35}
    rows.append({**choice, "row": f"choice/linked/{op}/blob/0.3/n4/float16", "chooser": "linked", "variant": "v",
                 "loss": loss, "goal_loss": 0.03, "met": loss <= 0.03})
    rows.append({**choice, "row": f"choice/device/{op}/blob/0.3/n4/float16", "chooser": "device", "best_variant": "w",
                 "loss_us": 30 * loss, "goal_loss_us": 2, "met": True})
header = {"backend": "cuda", "device": "a", "multiprocessors": 132, "threads": 8, "date": "2026-01-31",
          "versions": {"cuDNN": "c"}}
json.dump({"distile_bench": 1, "header": header, "rows": rows}, open(sys.argv[1], "w"))
PYTHON
shown=$("$bench" --summary "$folder/tensor.json") || fail "--summary does not show other types"
for line in '| tf32 | 4 | kernels | 7.95 (4.00 op12), goal 3.60 | 2.65 (1.33 op12), goal 2.20 | 0.80 (0.40 op12), **misses** 0.90 |' \
    '| tf32 | 4 | from the mask | 3.98 (2.00 op12) | 1.33 (0.67 op12), **misses** 1.90 | 0.40 (0.20 op12) |' \
    '| tf32 | 4 | 0.90 (0.90 op' '), **misses** 0.95 |' '| tf32 | op3 | 0.50 (1.00) |' '| tf32 | op12 | 0.20 (0.40) |' \
    'Real edits with 0.020 to 0.020 of the pixels active' '| tf32 | op7 | 2.00 (2.00) |' \
    '| tf32 | op12 | 0.80 (0.80), **misses** 1.00 |' '| tf32 | 4 | 0.3 | 3.33 (3.33 op1) | 1.67 (1.67 op1) | 1 of 1 |' \
    'percent slower than cuDNN alone, by the kernels. Each cell has the operator that loses most; 1 of 2 rows meet the goal, at most 3.' \
    '| float16 | 4 | +4.0 op7 |' '2 of 2 rows meet the goal, at most 2.' '| float16 | 4 | +1.2 op7 |' \
    '| op3 s | float16 | 4 | 0.30 | device | 40.0 | 30.0 | 35.0 | +0.3 | w |' \
    '| op7 s | tf32 | 4 | blob | 0.30 | keep | plain | 40.0 | 12.0 | 24.0 | 3.33 | 1.67 | 5.0 | v |  |'; do
    grep -qF "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
# Operators over active tokens: speed-ups over the dense operator, and over the active tokens gathered.
token='"status": "measured", "shape": "s", "batch": 1, "dtype": "bfloat16", "mask": "random", "density": 0.3, "variant": "v"'
token_header=${gpu_header/\"cuDNN\": \"c\"/\"cuBLAS\": \"cuBLAS 1\"}
token_rows='{"row": "op49/random/0.3/n1/keep/plain/cublas/bfloat16", "kind": "linear", "op": "op49", '$token',
  "t_peer_us": 90, "t_gather_us": 40, "t_kernels_us": 30, "t_masked_us": 36},
 {"row": "op50/random/0.3/n1/keep/plain/cublas/bfloat16", "kind": "linear", "op": "op50", '$token',
  "t_peer_us": 80, "t_gather_us": 36, "t_kernels_us": 40, "t_masked_us": 48},
 {"row": "attention/1", "kind": "attention", "op": "a", '$token',
  "keys": "active", "work_fraction": 0.09, "t_peer_us": 100, "t_gather_us": 16, "t_kernels_us": 5, "t_masked_us": 8},
 {"row": "block/1", "kind": "block", "op": "b", '$token', "work_fraction": 0.28, "t_peer_us": 90, "t_masks_us": 1,
  "t_masked_us": 40}'
echo "{\"distile_bench\": 1, $token_header, \"rows\": [$token_rows]}" >"$folder/tokens.json"
shown=$("$bench" --summary "$folder/tokens.json") || fail "--summary does not show operators over tokens"
for line in 'a, 8 multiprocessors, cuBLAS 1, 2026-01-31.' \
    '| bfloat16 | 0.30 | 2.45 (2.00) (**misses** 2.7) | 2.04 (1.67) | 1.10 (0.90) | 0.91 (0.75) |' \
    '| op49 s | bfloat16 | 1 | 0.30 | 90.0 | 40.0 | 30.0 | 36.0 | 3.00 | 2.50 | 1.33 | 1.11 | v |' \
    '| attention, a, s | bfloat16 | 1 | - | - | 12.5 (1.12) 2.0 | - | - | - |' \
    '| block, b, s | bfloat16 | 1 | - | - | 2.2 (0.63) | - | - | - |' 'Masks take at most 2.5 % of the time of a block.' \
    '| attention, a, s | bfloat16 | 1 | 0.30 | 0.090 | 100.0 | 16.0 | 5.0 | 8.0 | 12.50 | 1.80 | 1.12 | 2.00 | v |'; do
    grep -qF "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
"$bench" --summary "$folder/tokens.json" --figure "$folder/tokens.svg"
grep -q 'active tokens by all tokens' "$folder/tokens.svg" || fail "--figure draws no attention"
sed 's/"backend": "cuda"/"backend": "cpu"/; s/"cuBLAS": "cuBLAS 1"/"PyTorch": "1.0"/' "$folder/tokens.json" \
    >"$folder/cpu_tokens.json"
shown=$("$bench" --summary "$folder/cpu_tokens.json") || fail "--summary does not show attention on a CPU"
for line in 'a, 8 threads, PyTorch 1.0, 2026-01-31. Medians.' \
    '| attention, a, s | bfloat16 | 1 | - | - | 12.5 (1.12) 2.0 | - | - | - |'; do
    grep -qF "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
scaling='"status": "measured", "kind": "scaling", "op": "op3", "shape": "s", "dtype": "bfloat16", "batch": 1, "density": 0.3'
echo "{\"distile_bench\": 1, ${token_header/cuda/cpu}, \"rows\": [
 {\"row\": \"a\", $scaling, \"threads\": 1, \"t_masked_us\": 50, \"t_peer_us\": 100, \"eta\": 0.6},
 {\"row\": \"b\", $scaling, \"threads\": 4, \"t_masked_us\": 20, \"t_peer_us\": 40, \"eta\": 0.6},
 {\"row\": \"c\", ${scaling/0.3/1.0}, \"threads\": 1, \"t_masked_us\": 150, \"t_peer_us\": 100, \"eta\": 0.67}]}" \
    >"$folder/scaling.json"
shown=$("$bench" --summary "$folder/scaling.json") || fail "--summary does not show numbers of threads"
for line in '| Type | Operator | Batch | Density | 1 | 4 |' \
    '| bfloat16 | op3 s | 1 | 0.3 | 50 / 100 (0.60) | 20 / 40 (0.60) |' '| op3 s | bfloat16 | 0.65 | - |' \
    'With 4 threads, by density' '| bfloat16 | op3 s | 1 | 20 / 40 (0.60) |'; do
    grep -qF "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
"$bench" --summary "$folder/scaling.json" --figure "$folder/scaling.svg"
for text in '>threads<' '>a, bfloat16<' '>distile at 0.3<' '>library, all<'; do
    grep -q "$text" "$folder/scaling.svg" || fail "--figure draws no $text"
done
sed 's/"scaling"/"quantized", "t_own_dense_us": 90, "peer": "cuDNN", "variant": "v", "max_rel_err": 0/; s/"cpu"/"cuda"/' \
    "$folder/scaling.json" >"$folder/quantized.json"
shown=$("$bench" --summary "$folder/quantized.json") || fail "--summary does not show quantized operators of a GPU"
for line in '| op3 s | 1 | cuDNN | 20.0 / 40.0 (2.00) | 150.0 / 100.0 (0.67) |' \
    '| op3 s | bfloat16 | 1 | 0.3 | v | 50.0 | 90.0 | cuDNN | 100.0 | 0.60 | 0.0e+00 |'; do
    grep -qF "$line" <<<"$shown" || fail "--summary shows no line '$line' but:" "$shown"
done
sed 's/"shape": "s"/"shape": "80x80 256->64 3x3 stride 2"/g' "$folder/tensor.json" >"$folder/shapes.json"
"$bench" --summary "$folder/shapes.json" --break-even "$folder/break_even.svg"
grep -q '>op12: 3x3 stride 2, 256 to 64 channels, 80x80<' "$folder/break_even.svg" || fail "--break-even names no operator in words"
grep -q 'a, 132 multiprocessors, tf32' "$folder/break_even.svg" || fail "--break-even draws no panel of TF32"
expect_error "the results hold no operator of a GPU" --summary "$results" --break-even "$folder/none.svg"
expect_broken "unknown backend 'abacus'" "{\"distile_bench\": 1, ${header/\"device\"/\"backend\": \"abacus\", \"device\"}, \"rows\": []}"
echo '{"distile_bench": 1,' >"$folder/broken.json"
cp "$folder/broken.json" "$folder/broken.before"
expect_error "cannot be read" "${quick[@]}" --out "$folder/broken.json" --resume
cmp "$folder/broken.before" "$folder/broken.json" || fail "--resume changed a file that it could not read"
echo "passed"
