/** \file
 * Products with nonzero quads of quantized weights by AVX-VNNI. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/avx2_quads.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAvxVnniNonzeros;

struct AvxVnniNonzeros : distile::dot_product::Avx2Quads<OfAvxVnniNonzeros> {
    using Weight = __m256i;

    static constexpr int32_t shared_sums = 12, most_shared = 2;

    static void spread(uint32_t quad, Weight &weight) {
        weight = _mm256_set1_epi32(static_cast<int32_t>(quad));
    }
    static void add(Total &total, const float *pixels, const Weight &weight) {
        total = _mm256_dpbusd_avx_epi32(total, _mm256_load_si256(reinterpret_cast<const __m256i *>(pixels)), weight);
    }
};

}  // namespace

extern "C" int distile_call_avx_vnni_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::call_quad_nonzeros<AvxVnniNonzeros>(*code, *call);
}
