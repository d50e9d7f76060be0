/** \file
 * Products with nonzero quads of quantized weights by AVX512-VNNI. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/quad_nonzeros.h"
#include "kernels/dot_products.h"
#include <immintrin.h>

namespace {

struct Avx512VnniNonzeros {
    static constexpr int32_t lanes = 16, most_rows = 16;
    using Total = __m512i;
    using Weight = __m512i;

    static constexpr int32_t shared_sums = 24, most_shared = 4;

    static void clear(Total &total) {
        total = _mm512_setzero_si512();
    }
    static void load(const float *from, Total &total) {
        total = _mm512_load_si512(from);
    }
    static void store(const Total &total, float *to) {
        _mm512_store_si512(to, total);
    }
    static void spread(uint32_t quad, Weight &weight) {
        weight = _mm512_set1_epi32(static_cast<int32_t>(quad));
    }
    static void add(Total &total, const float *pixels, const Weight &weight) {
        total = _mm512_dpbusd_epi32(total, _mm512_load_si512(pixels), weight);
    }
};

}  // namespace

extern "C" int distile_call_avx512_vnni_nonzeros(const distile_dot_product_code *code,
                                                 const distile_kernel_call *call) {
    return distile::dot_product::call_quad_nonzeros<Avx512VnniNonzeros>(*code, *call);
}
