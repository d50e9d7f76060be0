/** \file
 * Vectors of sums of nonzero quads in registers of AVX, for the sets of instructions that have them.
 */
#ifndef DISTILE_DOT_PRODUCT_AVX2_QUADS_H
#define DISTILE_DOT_PRODUCT_AVX2_QUADS_H

#include "kernels/cpu/quad_nonzeros.h"
#include <immintrin.h>

namespace distile::dot_product {

/** `Isa` as in Epilogue. */
template<class Isa> struct Avx2Quads {
    static constexpr int32_t lanes = 8, most_rows = 12;
    using Total = __m256i;

    static void clear(Total &total) {
        total = _mm256_setzero_si256();
    }
    static void load(const float *from, Total &total) {
        total = _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
    }
    static void store(const Total &total, float *to) {
        _mm256_store_si256(reinterpret_cast<__m256i *>(to), total);
    }
};

}  // namespace distile::dot_product

#endif
