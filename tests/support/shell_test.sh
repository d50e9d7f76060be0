# What the tests written for the shell have in common. They source it.
# shellcheck shell=bash

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# The C compiler with its arguments: $CC as a shell reads it.
eval "cc=(${CC:-cc})"

# has <arguments of grep>: whether standard input has a line. All of it is read, or its writer might fail.
has() {
    local text
    text=$(cat)
    grep -q "$@" <<<"$text"
}

# expect_error <text> <arguments ...>: exit status 1 (2 and more: wrong usage) and the text on standard error, of the
# command in the array `program` with these arguments.
program=()
expect_error() {
    local text=$1 output status=0
    shift
    output=$("${program[@]}" "$@" 2>&1 >/dev/null) || status=$?
    [[ $status == 1 ]] || fail "${program[*]} $* ended with status $status, not 1"
    [[ $output == *"$text"* ]] || fail "${program[*]} $* said '$output', not '$text'"
}
