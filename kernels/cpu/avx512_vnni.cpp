/** \file
 * Dot products of four quantized numbers by AVX512-VNNI. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/columns.h"
#include "kernels/cpu/int8.h"
#include "kernels/dot_products.h"
#include <immintrin.h>

namespace {

struct Avx512Vnni {
    using Types = distile::dot_product::Int8<Avx512Vnni>;
    using Total = __m512i;
    using Weights = __m512i;
    using Spread = __m512i;
    struct Own {
        __m512i groups;
    };
    using Shuffled = Own;
    struct Lanes {
        __m512i packs;
    };

    /** Beside the weights and a row's group. */
    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors <= 2 ? 14 : vectors == 3 ? 9 : 6;
    }
    static void clear(Total &total) {
        total = _mm512_setzero_si512();
    }
    static void load(const int32_t *from, Total &total) {
        total = _mm512_load_si512(from);
    }
    static void store(const Total &total, int32_t *to) {
        _mm512_store_si512(to, total);
    }
    static void load(const int8_t *from, Weights &weights) {
        weights = _mm512_load_si512(from);
    }
    static void spread(const uint8_t *from, Spread &spread) {
        int32_t group = 0;
        __builtin_memcpy(&group, from, sizeof(group));
        spread = _mm512_set1_epi32(group);
    }
    static void load(const uint8_t *from, Own &own) {
        own.groups = _mm512_load_si512(from);
    }
    static void load(const int32_t *from, Lanes &lanes) {
        lanes.packs = _mm512_loadu_si512(from);
    }
    static void shuffle(const uint8_t *step, int32_t pack, const Lanes &lanes, Shuffled &shuffled) {
        constexpr __mmask16 all = 0xffff;  // GCC 12 warns of the intrinsic without a mask.
        const __m512i packs = _mm512_add_epi32(lanes.packs, _mm512_set1_epi32(pack));
        shuffled.groups = _mm512_maskz_permutexvar_epi32(all, packs, _mm512_load_si512(step));
    }
    static void add(Total &total, const Own &own, const Weights &weights) {
        add(total, own.groups, weights);
    }
    static void add(Total &total, const Spread &group, const Weights &weights) {
        total = _mm512_dpbusd_epi32(total, group, weights);
    }
};

}  // namespace

extern "C" int distile_call_avx512_vnni(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::run_quantized<Avx512Vnni>(*code, *call);
}
