/** \file
 * Products with nonzero weights by AVX-512. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/nonzeros.h"
#include "kernels/dot_products.h"

namespace {

struct Avx512Nonzeros {
    static constexpr int32_t lanes = 16, most_rows = 16;

    static constexpr int32_t shared_sums = 24, most_shared = 4;
};

}  // namespace

extern "C" int distile_call_avx512_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::call_nonzeros<Avx512Nonzeros>(*code, *call);
}
