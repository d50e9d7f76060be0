/** \file
 * Sums of 16 output channels in two registers of AVX, for the sets of instructions that have them.
 */
#ifndef DISTILE_DOT_PRODUCT_AVX2_HALVES_H
#define DISTILE_DOT_PRODUCT_AVX2_HALVES_H

#include "kernels/cpu/columns.h"
#include "kernels/cpu/int8.h"
#include <immintrin.h>

namespace distile::dot_product {

/** `Isa` as in Epilogue. */
template<class Isa> struct Avx2Halves {
    using Types = Int8<Isa>;
    struct Total {
        __m256i low, high;
    };

    /** Groups of four numbers, of 8 output channels each. */
    struct Own {
        __m256i low, high;
    };

    static void clear(Total &total) {
        total.low = total.high = _mm256_setzero_si256();
    }
    static void load(const int32_t *from, Total &total) {
        total.low = _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
        total.high = _mm256_load_si256(reinterpret_cast<const __m256i *>(from) + 1);
    }
    static void store(const Total &total, int32_t *to) {
        _mm256_store_si256(reinterpret_cast<__m256i *>(to), total.low);
        _mm256_store_si256(reinterpret_cast<__m256i *>(to) + 1, total.high);
    }
    static void load(const uint8_t *from, Own &own) {
        own.low = _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
        own.high = _mm256_load_si256(reinterpret_cast<const __m256i *>(from) + 1);
    }
    using Shuffled = Own;
    struct Lanes {
        __m256i low, high;
    };
    static void load(const int32_t *from, Lanes &lanes) {
        lanes.low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        lanes.high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from) + 1);
    }
    static void shuffle(const uint8_t *step, int32_t pack, const Lanes &lanes, Shuffled &shuffled) {
        constexpr int32_t packs_of_half = 8;
        const __m256i half = _mm256_load_si256(reinterpret_cast<const __m256i *>(step) + pack / packs_of_half);
        const __m256i first = _mm256_set1_epi32(pack % packs_of_half);
        shuffled.low = _mm256_permutevar8x32_epi32(half, _mm256_add_epi32(lanes.low, first));
        shuffled.high = _mm256_permutevar8x32_epi32(half, _mm256_add_epi32(lanes.high, first));
    }
    static __m256i spread_group(const uint8_t *from) {
        int32_t group = 0;
        __builtin_memcpy(&group, from, sizeof(group));
        return _mm256_set1_epi32(group);
    }
};

}  // namespace distile::dot_product

#endif
