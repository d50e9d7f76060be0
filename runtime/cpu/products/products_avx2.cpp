/** \file
 * Products of listed pixels by AVX2: 14 of its 16 registers hold sums and weights.
 */
#include "runtime/cpu/products/product_loops.h"

#include <immintrin.h>

namespace distile {

namespace {

struct Avx2 {
    static constexpr int32_t set_panels = 1;
    static constexpr int32_t group_pixels[] = {0, 6};
    static constexpr int32_t depthwise_panels = 1;
    using DepthwisePixels = std::integer_sequence<int, 1, 2, 4>;

    using Floats = float __attribute__((vector_size(32)));

    [[gnu::always_inline]] static void widen(const uint16_t *from, Floats &to) {
        __m128i halves;
        std::memcpy(&halves, from, sizeof(halves));
        to = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
    [[gnu::always_inline]] static void widen(const int8_t *from, Floats &to) {
        __m128i bytes = _mm_setzero_si128();
        std::memcpy(&bytes, from, sizeof(bytes) / 2);
        to = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }

    /** In a register: a compiler may rather read it from memory once for each use. */
    [[gnu::always_inline]] static void keep(Floats &vector) {
        asm("" : "+x"(vector));
    }
    [[gnu::always_inline]] static void load_part(const float *from, int64_t count, Floats &to) {
        to = _mm256_maskload_ps(from, first(count));
    }
    [[gnu::always_inline]] static void store_part(float *to, int64_t count, const Floats &from) {
        _mm256_maskstore_ps(to, first(count), from);
    }
    [[gnu::always_inline]] static __m256i first(int64_t count) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count)),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }

    template<class Choice> static void multiply(const GroupProduct &product) {
        Choice::template call<1, 1, 2, 4, 6>(product);
    }
};

}  // namespace

const PixelProducts avx2_products = make_products<Avx2>("avx2 fma");

}  // namespace distile
