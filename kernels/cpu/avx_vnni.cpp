/** \file
 * Dot products of four quantized numbers by AVX-VNNI. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/avx2_halves.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAvxVnni;

struct AvxVnni : distile::dot_product::Avx2Halves<OfAvxVnni> {
    using Halves = distile::dot_product::Avx2Halves<OfAvxVnni>;
    struct Weights {
        __m256i low, high;
    };
    using Spread = __m256i;
    using Halves::load;

    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors == 1 ? 6 : vectors == 2 ? 2 : 1;
    }
    static void load(const int8_t *from, Weights &weights) {
        weights.low = _mm256_load_si256(reinterpret_cast<const __m256i *>(from));
        weights.high = _mm256_load_si256(reinterpret_cast<const __m256i *>(from) + 1);
    }
    static void spread(const uint8_t *from, Spread &spread) {
        spread = spread_group(from);
    }
    static void add(Total &total, const Halves::Own &own, const Weights &weights) {
        total.low = _mm256_dpbusd_avx_epi32(total.low, own.low, weights.low);
        total.high = _mm256_dpbusd_avx_epi32(total.high, own.high, weights.high);
    }
    static void add(Total &total, const Spread &group, const Weights &weights) {
        total.low = _mm256_dpbusd_avx_epi32(total.low, group, weights.low);
        total.high = _mm256_dpbusd_avx_epi32(total.high, group, weights.high);
    }
};

}  // namespace

extern "C" int distile_call_avx_vnni(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::run_quantized<AvxVnni>(*code, *call);
}
