/** \file
 * Dot products of pairs by AVX512-BF16. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/registers.h"
#include "kernels/dot_products.h"
#include <immintrin.h>

namespace {

struct Avx512Bf16 {
    using Types = distile::dot_product::Bfloat16<Avx512Bf16>;
    using Total = __m512;
    using Weights = __m512i;
    using Spread = __m512i;
    struct Lanes {
        __m512i packs;
    };
    struct Shuffled {
        __m512i pairs;
    };

    /** Beside the weights and a row's pair. */
    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors <= 2 ? 14 : vectors == 3 ? 9 : 6;
    }
    static void clear(Total &total) {
        total = _mm512_setzero_ps();
    }
    static void load(const float *from, Total &total) {
        total = _mm512_load_ps(from);
    }
    static void store(const Total &total, float *to) {
        _mm512_store_ps(to, total);
    }
    static void load(const uint16_t *from, Weights &weights) {
        weights = _mm512_load_si512(from);
    }
    static void spread(const uint16_t *from, Spread &spread) {
        int32_t both = 0;
        __builtin_memcpy(&both, from, sizeof(both));
        spread = _mm512_set1_epi32(both);
    }
    static void load(const int32_t *from, Lanes &lanes) {
        lanes.packs = _mm512_loadu_si512(from);
    }
    static void shuffle(const uint16_t *step, int32_t pack, const Lanes &lanes, Shuffled &shuffled) {
        constexpr __mmask16 all = 0xffff;  // GCC 12 warns of the intrinsic without a mask.
        const __m512i packs = _mm512_add_epi32(lanes.packs, _mm512_set1_epi32(pack));
        shuffled.pairs = _mm512_maskz_permutexvar_epi32(all, packs, _mm512_load_si512(step));
    }
    static void add(Total &total, const Shuffled &shuffled, const Weights &weights) {
        add(total, shuffled.pairs, weights);
    }
    static void add(Total &total, const Spread &pair, const Weights &weights) {
        total = _mm512_dpbf16_ps(total, (__m512bh)pair, (__m512bh)weights);
    }
};

}  // namespace

extern "C" int distile_call_avx512_bf16(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<distile::dot_product::Steps<distile::dot_product::RegisterIsa<Avx512Bf16>>>(
               *code, *call)
        .run();
}
