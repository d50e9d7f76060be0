/** \file
 * Products of listed pixels by AVX-512: up to 28 of its 32 registers hold sums and weights.
 */
#include "runtime/cpu/products/product_loops.h"

#include <immintrin.h>
#ifndef __clang__
// GCC 12 warns about the undefined vectors in its own headers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace distile {

namespace {

struct Avx512 {
    static constexpr int32_t set_panels = 4;
    static constexpr int32_t group_pixels[] = {0, 12, 12, 8, 6};
    static constexpr int32_t depthwise_panels = 2;
    using DepthwisePixels = std::integer_sequence<int, 1, 2, 4, 8>;

    using Floats = float __attribute__((vector_size(64)));

    [[gnu::always_inline]] static void widen(const uint16_t *from, Floats &to) {
        __m256i halves;
        std::memcpy(&halves, from, sizeof(halves));
        to = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    [[gnu::always_inline]] static void widen(const int8_t *from, Floats &to) {
        __m128i bytes;
        std::memcpy(&bytes, from, sizeof(bytes));
        to = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }

    /** In a register: a compiler may rather read it from memory once for each use. */
    [[gnu::always_inline]] static void keep(Floats &vector) {
        asm("" : "+v"(vector));
    }
    [[gnu::always_inline]] static void load_part(const float *from, int64_t count, Floats &to) {
        to = _mm512_maskz_loadu_ps(first(count), from);
    }
    [[gnu::always_inline]] static void store_part(float *to, int64_t count, const Floats &from) {
        _mm512_mask_storeu_ps(to, first(count), from);
    }
    [[gnu::always_inline]] static __mmask16 first(int64_t count) {
        return static_cast<__mmask16>((1U << count) - 1);
    }

    template<class Choice> static void multiply(const GroupProduct &product) {
        switch (product.panels) {
        case 1:
            return Choice::template call<1, 1, 2, 4, 12>(product);
        case 2:
            return Choice::template call<2, 1, 2, 4, 12>(product);
        case 3:
            return Choice::template call<3, 1, 2, 4, 8>(product);
        default:
            return Choice::template call<4, 1, 2, 4, 6>(product);
        }
    }
};

}  // namespace

const PixelProducts avx512_products = make_products<Avx512>("avx2 fma avx512f avx512bw avx512dq avx512vl");

}  // namespace distile

#ifndef __clang__
#pragma GCC diagnostic pop
#endif
