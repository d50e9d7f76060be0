/** \file
 * Dot products of four quantized numbers by AVX2. Linked into every PolyKernel that has such variants. Its instruction
 * for bytes saturates sums of two products, so this one multiplies numbers of 16 bits.
 */
#include "kernels/cpu/avx2_halves.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAvx2Int8;

struct Avx2Int8 : distile::dot_product::Avx2Halves<OfAvx2Int8> {
    using Halves = distile::dot_product::Avx2Halves<OfAvx2Int8>;
    /** The numbers 0 and 2 of each group, and 1 and 3, as 16 bits. */
    struct Weights {
        __m256i low_even, low_odd, high_even, high_odd;
    };
    struct Spread {
        __m256i even, odd;
    };
    using Halves::load;

    static constexpr int32_t rows_of(int32_t vectors) {
        return vectors == 1 ? 4 : vectors == 2 ? 2 : 1;
    }
    static void widen(__m256i bytes, __m256i &even, __m256i &odd) {
        even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
        odd = _mm256_srai_epi16(bytes, 8);
    }
    static void load(const int8_t *from, Weights &weights) {
        const auto *const halves = reinterpret_cast<const __m256i *>(from);
        widen(_mm256_load_si256(halves), weights.low_even, weights.low_odd);
        widen(_mm256_load_si256(halves + 1), weights.high_even, weights.high_odd);
    }
    static void widen_unsigned(__m256i bytes, Spread &spread) {
        spread.even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
        spread.odd = _mm256_srli_epi16(bytes, 8);
    }
    static void spread(const uint8_t *from, Spread &spread) {
        widen_unsigned(spread_group(from), spread);
    }
    static __m256i add(__m256i total, const Spread &group, __m256i even, __m256i odd) {
        const __m256i sums = _mm256_add_epi32(_mm256_madd_epi16(group.even, even), _mm256_madd_epi16(group.odd, odd));
        return _mm256_add_epi32(total, sums);
    }
    static void add(Total &total, const Spread &group, const Weights &weights) {
        total.low = add(total.low, group, weights.low_even, weights.low_odd);
        total.high = add(total.high, group, weights.high_even, weights.high_odd);
    }
    static void add(Total &total, const Halves::Own &own, const Weights &weights) {
        Spread low, high;
        widen_unsigned(own.low, low);
        widen_unsigned(own.high, high);
        total.low = add(total.low, low, weights.low_even, weights.low_odd);
        total.high = add(total.high, high, weights.high_even, weights.high_odd);
    }
};

}  // namespace

extern "C" int distile_call_avx2_int8(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::run_quantized<Avx2Int8>(*code, *call);
}
