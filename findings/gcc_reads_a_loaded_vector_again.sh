#!/usr/bin/env bash
# GCC 12.2.0 (Debian 12's): a vector that is loaded once into a variable and multiplied three times is read from memory
# three times, though registers are free.
#
# The guess: `Vector x = in[place][v];` and three sums of products with x take one load, as written: 26 loads in a loop of
# 48 products, which holds 16 sums and 6 weights in 32 registers.
# What happens instead: 40 loads. Every other x becomes the memory operand of each of its products.
# Why it matters: such loops are unrolled so that they load less than they multiply; here they load almost as often, and
# a CPU that multiplies as fast as it loads runs at the speed of the loads. `asm("" : "+v"(x))` behind the load keeps x in
# a register: 26 loads.
# Seen: plain: 48 products, 40 loads; kept: 48 products, 26 loads.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
version=12.2.0-14+deb12u1
apt-get download -o APT::Sandbox::User=root --quiet --quiet "g++-12=$version" libmpc3 libmpfr6 libgmp10 libisl23 libzstd1 >/dev/null
for package in *.deb; do
    dpkg -x "$package" root
done
cat >rows.cpp <<'END'
typedef float Vector __attribute__((vector_size(64)));
// Sums of eight neighbours and two vectors of channels: each input is a factor for up to three neighbours.
void rows(const Vector *const *in, const Vector *weights, Vector *out, int count) {
    Vector sums[8][2] = {};
    for (int row = 0; row < count; row++, in += 10, weights += 6) {
        Vector factors[3][2];
        for (int column = 0; column < 3; column++) {
            for (int v = 0; v < 2; v++) factors[column][v] = weights[2 * column + v];
        }
#pragma GCC unroll 16
        for (int place = 0; place < 10; place++) {
#pragma GCC unroll 16
            for (int v = 0; v < 2; v++) {
                Vector x = in[place][v];
                KEEP(x);
#pragma GCC unroll 16
                for (int column = 0; column < 3; column++) {
                    if (place >= column && place - column < 8) sums[place - column][v] += x * factors[column][v];
                }
            }
        }
    }
    for (int place = 0; place < 8; place++) {
        for (int v = 0; v < 2; v++) out[2 * place + v] = sums[place][v];
    }
}
END
# loop <the definition of KEEP>: the products of the loop, and how many of its instructions read a vector from memory.
loop() {
    LD_LIBRARY_PATH=root/usr/lib/x86_64-linux-gnu root/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -quiet -O3 -mavx512f \
        "-DKEEP(x)=$1" rows.cpp -o rows.s
    # The loop is what ends with a jump back to its label.
    awk '/^\.L[0-9]+:/ { label = $1; body = "" } { body = body "\n" $0 }
         /^\tj[a-z]+\t/ && $2 ":" == label { print body }' rows.s >loop.s
    products=$(grep -c vfmadd loop.s)
    loads=$(grep -cE '(vfmadd|vmov[ua]p).*\(%r[a-z0-9]+\), *%zmm' loop.s)
    echo "$products products, $loads loads"
}
plain=$(loop "")
kept=$(loop 'asm("" : "+v"(x))')
echo "plain: $plain; kept: $kept"
[[ $plain == "48 products, 40 loads" && $kept == "48 products, 26 loads" ]]
