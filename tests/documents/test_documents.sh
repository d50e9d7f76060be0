#!/usr/bin/env bash
# Holds what the documents tell to type against the Makefile, the build and its options, and the code that they show
# against the files that are built.
# Usage: test_documents.sh <source folder> <build folder>
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
cd "$1"
build_folder=$2
# A make that runs this test has its own goals and variables.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES

goals=$(make help)
for goal in $(sed -n 's/^\.PHONY: //p' Makefile); do
    has "^make $goal " <<<"$goals" || fail "make help does not show '$goal'"
done
for goal in $(grep -ohE '(^|`)make [a-z-]+' README.md HACKING.md docs/*.md | cut -d' ' -f2 | sort -u); do
    has "^make $goal " <<<"$goals" || fail "the documents name 'make $goal', which is no goal"
done
make -n bench | has -e --resume && fail "make bench resumes what it was not told to"
make -n bench RESUME=1 | has -e --resume || fail "make bench RESUME=1 does not resume"

# The set-up installs CMake nowhere else, and a preset is configured before it is built.
bare=$(grep -nE '(^|[^/[:alnum:]])(cmake --(preset|build|install)|ctest --preset)' README.md HACKING.md || true)
[[ -z $bare ]] || fail "CMake is in .venv/bin only: $bare"
for preset in $(grep -ohE 'cmake --build --preset [a-z-]+' README.md HACKING.md | cut -d' ' -f4 | sort -u); do
    [[ $preset == release ]] || has "cmake --preset $preset &&" <HACKING.md || fail "nothing configures $preset"
done
for path in $(grep -ohE 'build/release/[[:alnum:]_/]+' README.md HACKING.md | sort -u); do
    [[ -e $build_folder/${path#build/release/} ]] || fail "the documents name $path, which is not built"
done

options=$(grep -rhoE --include=CMakeLists.txt --include='*.cmake' --exclude-dir=build --exclude-dir=.venv \
    '(option|find_path|find_program)\(DISTILE_[A-Z_]+|set\(DISTILE_[A-Z_]+ .*CACHE' . | grep -oE 'DISTILE_[A-Z_]+')
[[ $options == *DISTILE_BUILD_TESTS* && $options == *DISTILE_SANITIZE* ]] || fail "found the options $options only"
for option in $options; do
    has "\`$option\`" <docs/install.md || fail "docs/install.md does not explain $option"
done
# A block of code behind the mark <!-- all of FILE --> or <!-- part of FILE --> is that file, or whole lines of it, which
# may be indented there.
quotes=""
for document in README.md docs/*.md; do
    while IFS=: read -r line mark; do
        read -r _ how _ file _ <<<"$mark"
        block=$(awk -v mark="$line" 'NR <= mark || over { next } NR == mark + 1 { over = !/^```[a-z]/; next }
            /^```$/ { over = 1; next } { print }' "$document")
        [[ -n $block ]] || fail "$document:$line: no block of code follows the mark"
        text=$(<"$file")
        case $how in
        all) [[ $text == "$block" ]] || fail "$document:$line does not show $file as it is; copy the file" ;;
        part) [[ $'\n'$text$'\n' == *$'\n'"$block"$'\n'* || $'\n'$text$'\n' == *$'\n'"$(sed 's/^./    &/' <<<"$block")"$'\n'* ]] ||
            fail "$document:$line shows lines that $file lacks" ;;
        esac
        quotes+=" $file"
    done < <(grep -nE '^<!-- (all|part) of [^ ]+ -->$' "$document")
done
for file in apps/first_program.c apps/own_operator.c apps/my_operator.json apps/block.cpp apps/own_pool.cpp apps/tokens.c python/examples/{first_lines,block,onnx_block,several_devices}.py; do
    [[ "$quotes " == *" $file "* ]] || fail "no document shows $file"
done

# Figures come from committed results.
python3 tests/documents/figures.py . || fail "documents hold other figures than those of bench/results"

python3 tests/documents/links.py . || fail "documents have links that lead nowhere"

# HACKING.md lists the places of what one may add, as paths; a folder stands for its files. Each file that names an
# example is in the list of its kind, and what is listed exists.
places_of() {
    sed -n "/^\* \*\*$1\*\*/,/^\* \*\*/p" HACKING.md | sed '1!{/^\* \*\*/d}' | grep -oE '`[a-z]+/[^` ]*`' | tr -d '`'
}
check_places() {
    local what=$1 example=$2 listed naming file
    shift 2
    listed=$(places_of "$what")
    naming=$(grep -rliE "$example" --include='*.'{h,hpp,c,cpp,cu,cuh,cl,py} --exclude=_facts.py \
        --exclude-dir={build,tests,.venv*} "$@" .)
    [[ -n $listed && -n $naming ]] || fail "found no places of '$what'"
    for file in $naming; do
        file=${file#./}
        has -Fx -e "$file" -e "${file%/*}/" <<<"$listed" ||
            fail "$file names $example, but is not in HACKING.md's list of '$what'"
    done
    for file in $listed; do
        [[ -e $file ]] || fail "$file, in HACKING.md's list of '$what', does not exist"
    done
}
# The examples are activations that no network here has; networks, benchmarks and programs only use the others.
users=(--exclude-dir={networks,zoo,bench,apps,examples,findings})
check_places "An activation" '(^|[^a-z])(hard_?swish|mish|leaky_?relu)\b'
enumerators=$(sed -n 's/^    ROW([0-9]*, \([A-Z0-9_]*\), .*/\1/p' facts/kinds.h | paste -sd'|')
[[ $enumerators == CONV2D*MATMUL* ]] || fail "found the kinds $enumerators only"
for example in "DISTILE_MASKED_($enumerators)\\b" '"(masked_)?upsample_conv2d|upsample_conv2d[_(]|"MaskedUpsampleConv' masked_attention; do
    check_places "A kind of operator" "$example" "${users[@]}"
done
check_places "A layer" '(distile|masked)_?group_?norm\b|normalize_groups|\bgroup_norm\b' "${users[@]}"
check_places "A function of the C API" 'distile_upsample|\bupsample_nearest\(' --exclude='*.py' "${users[@]}"
for file in $(places_of "An activation" | grep -v '^\(python/\)\?tests/'); do
    grep -qE 'hard_?swish|leaky_?relu|facts/activations|import _facts|_facts import' -i "$file" || fail "$file, in HACKING.md, has no activation"
done
activations=$(sed -n 's/^    ROW([0-9]*, \([a-z0-9_]*\),.*/\1/p' facts/activations.h)
[[ $activations == *relu*mish* ]] || fail "found the activations $activations only"
for name in $activations; do
    for document in docs/plans.md docs/python.md docs/onnx.md; do
        has -F "\`$name\`" <"$document" || fail "$document does not name the activation $name"
    done
done

# It also lists the places of a data type: the files that name one of which no fast path knows. The document of types
# names those of facts/types.h.
listed=$(sed -n '/^\* \*\*A data type\*\*/,/^  `tests/p' HACKING.md | grep -oE '`[^`]+/[^`]+\.[a-z]+`' | tr -d '`' | grep -v '/tests\?/\|^tests/')
naming=$(grep -rliE 'float8_?e5m2' --include='*.'{h,hpp,c,cpp,cu,cuh,cl,py,cmake} --exclude=_facts.py \
    --exclude-dir={build,tests,third_party,.venv*} .)
for file in $naming; do
    has -Fx "${file#./}" <<<"$listed" || fail "$file names a data type, but is not in HACKING.md's list of its places"
done
for file in $listed; do
    grep -qE 'DISTILE_BFLOAT16|DISTILE_FLOAT_TYPES' "$file" || fail "$file, in HACKING.md, has no data type"
done
types=$(sed -n 's/^    ROW([0-9]*, \([a-z0-9_]*\), .*/\1/p' facts/types.h)
[[ $types == *float16*float8_e5m2*int4* ]] || fail "found the types $types only"
for name in $types; do
    has -w "$name" <docs/runtime.md || fail "docs/runtime.md does not name the type $name"
done
layouts=$(sed -n 's/^    ROW("\([a-z0-9-]*\)", .*/\1/p' facts/weight_layouts.h)
[[ $layouts == *cpu-o16*cuda-k64*opencl-o32* ]] || fail "found the weight layouts $layouts only"
for name in $layouts; do
    has -F "\`$name\`" <docs/runtime.md || fail "docs/runtime.md does not name the weight layout $name"
done

# The messages that docs/own_operator.md explains; test_messages.cpp has those of the runtime.
misspelt='masked_conv2d has no parameter "in_chanels"'
file=$(mktemp)
trap 'rm -f "$file"' EXIT
sed 's/in_channels/in_chanels/' apps/my_operator.json >"$file"
program=("$build_folder/autoscheduler/distile")
expect_error "$misspelt" info "$file"
elsewhere='there is no member "typcal"; the nearest known one is "typical"'
sed 's/"typical"/"typcal"/' apps/my_operator.json >"$file"
expect_error "$elsewhere" info "$file"
for message in "$misspelt" "$elsewhere" "distile's component compiler needs Halide"; do
    has -F "| \`$message\` |" <docs/own_operator.md || fail "docs/own_operator.md does not explain '$message'"
done
has -F "distile's component compiler needs Halide" <cmake/distile-config.cmake.in || fail "no Halide gets another message"
echo "all right"
