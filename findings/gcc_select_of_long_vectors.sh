#!/usr/bin/env bash
# GCC 12.2.0 (Debian 12's): `x < zero ? zero : x` of a vector that is longer than a register compiles to a comparison and
# a selection for each number; sums of the same vector compile to instructions for whole registers.
#
# The guess: a vector of 64 bytes (attribute vector_size) is two registers of AVX2, for comparisons and ?: as for +, so
# that a ReLU of 16 float32 takes two vcmpltps or vmaxps.
# What happens instead: 16 vcmpltss, at -O2 and at -O3; with vectors of 32 bytes one vcmpltps. clang splits both.
# Why it matters: portable kernels in the compilers' vectors are written once for the longest registers and compiled for
# shorter ones; results are right, and an activation takes several times as long.
# Seen: -O2 long: 16 scalar comparisons, 2 sums of registers; -O3 the same; short: no scalar comparison.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
version=12.2.0-14+deb12u1
apt-get download -o APT::Sandbox::User=root --quiet --quiet "g++-12=$version" libmpc3 libmpfr6 libgmp10 libisl23 libzstd1 >/dev/null
for package in *.deb; do
    dpkg -x "$package" root
done
cat >relu.cpp <<'END'
typedef float Long __attribute__((vector_size(64)));
typedef float Short __attribute__((vector_size(32)));
template <class Vector> void relu(Vector *x) { Vector zero = {}; *x = *x < zero ? zero : *x; }
#ifdef SHORT
template void relu<Short>(Short *);
#else
template void relu<Long>(Long *);
#endif
void add(Long *x) { *x = *x + *x; }
END
count() {
    LD_LIBRARY_PATH=root/usr/lib/x86_64-linux-gnu root/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -quiet -mavx2 "${@:2}" \
        relu.cpp -o relu.s
    grep -cE "\b$1\b" relu.s || true
}
for level in -O2 -O3; do
    echo "$level long: $(count vcmpltss $level) scalar comparisons, $(count vaddps $level) sums of registers"
    [[ $(count vcmpltss $level) == 16 && $(count vaddps $level) == 2 ]]
    echo "$level short: $(count vcmpltss $level -DSHORT) scalar comparisons"
    [[ $(count vcmpltss $level -DSHORT) == 0 ]]
done
