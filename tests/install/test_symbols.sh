#!/usr/bin/env bash
# What a program that links us gets to see: of a PolyKernel one symbol, of the library what is called distile; and in the
# code for any CPU, no instruction beyond plain x86-64 or Armv8.0.
# Usage: test_symbols.sh <nm> <objdump> <library> <PolyKernel's archive> <its symbol> [<object or archive for any CPU>...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
nm=$1
objdump=$2
library=$3
archive=$4
symbol=$5
shift 5

global=$("$nm" --defined-only --extern-only --format=posix "$archive" | awk 'NF > 2 {print $1}')
[[ $global == "$symbol" ]] || fail "$archive shows" $global
undefined=$("$nm" --undefined-only --format=posix "$archive" | awk '$2 == "U" {print $1}' | grep -i halide || true)
[[ -z $undefined ]] || fail "$archive asks the program for" $undefined

# Weak symbols are instances of templates of the C++ library, which any program shares.
foreign=$("$nm" --defined-only --extern-only --format=posix "$library" |
    awk 'NF > 2 && $2 !~ /[VWu]/ && $1 !~ /distile/ {print $1}')
[[ -z $foreign ]] || fail "$library shows" $foreign

# AVX's instructions begin with v, as do only verr and verw besides, which nobody uses; the others are SSE3's to
# SSE4.2's and BMI's.
newer='v[a-z0-9]+|(h|addsub)(add|sub)?p[sd]|lddqu|movs[hl]dup|movddup|ps(hufb|ign[bwd])|pabs[bwd]|palignr|ph(add|sub).*'
newer+='|pmaddubsw|pmulhrsw|(p?blend).*|(p)?(extr|insr)[bdq]|(extract|insert)ps|round.*|dpp[sd]|mpsadbw|p(min|max)(s[bd]|u[wd])'
newer+='|pmov[sz]x.*|pmul(dq|ld)|packusdw|pcmp(eqq|gtq|[ei]str.*)|ptest|movntdqa|crc32.*|popcnt.*|lzcnt.*|andn|blsr|shlx|sarx|shrx|rorx|mulx|pdep|pext'
# On AArch64 dot products, atomics, the scalable vectors, and arithmetic of half precision came later; conversions did not.
newer_arm='(s|u|us|su)dot .*|bf(dot|ml|mml|cvt).*|(cas|swp|ld(add|clr|eor|set|[su](max|min)))[a-z]* .*|.* z[0-9]+[.].*|half: .*'
for file in "$@"; do
    if "$objdump" --file-headers "$file" | has 'architecture: aarch64'; then
        beyond=$newer_arm
        print='{
            half = $2 ~ /^f/ && $2 !~ /^fcvt[ln]?2?$/ && $3 ~ /(^|[ ,{])h[0-9]|[.][48]h/
            print (half ? "half: " : "") $2 " " $3
        }'
    else
        beyond=$newer
        print='{split($2, words, " "); print words[1]}'
    fi
    code=$("$objdump" --disassemble --no-show-raw-insn "$file" | awk -F'\t' "NF > 1 $print")
    [[ $(wc -l <<<"$code") -gt 20 ]] || fail "$file holds no code"
    grep -qxE "$beyond" <<<"$code" && fail "$file has" $(grep -xE "$beyond" <<<"$code" | sort -u)
done
echo "all right"
