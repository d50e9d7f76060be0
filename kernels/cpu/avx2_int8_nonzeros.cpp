/** \file
 * Products with nonzero quads of quantized weights by AVX2, in numbers of 16 bits, as those of avx2_int8.cpp. Linked
 * into every PolyKernel that has such variants.
 */
#include "kernels/cpu/avx2_quads.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAvx2Int8Nonzeros;

struct Avx2Int8Nonzeros : distile::dot_product::Avx2Quads<OfAvx2Int8Nonzeros> {
    /** The numbers 0 and 2, and 1 and 3, as 16 bits. */
    struct Weight {
        __m256i even, odd;
    };

    static constexpr int32_t shared_sums = 8, most_shared = 2;

    static void spread(uint32_t quad, Weight &weight) {
        const __m256i bytes = _mm256_set1_epi32(static_cast<int32_t>(quad));
        weight.even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
        weight.odd = _mm256_srai_epi16(bytes, 8);
    }
    static void add(Total &total, const float *pixels, const Weight &weight) {
        const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i *>(pixels)),
                      even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), odd = _mm256_srli_epi16(bytes, 8);
        total = _mm256_add_epi32(
            total, _mm256_add_epi32(_mm256_madd_epi16(even, weight.even), _mm256_madd_epi16(odd, weight.odd)));
    }
};

}  // namespace

extern "C" int distile_call_avx2_int8_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::call_quad_nonzeros<Avx2Int8Nonzeros>(*code, *call);
}
