/** \file
 * Products with nonzero weights by AVX2. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/nonzeros.h"
#include "kernels/dot_products.h"

namespace {

struct Avx2Nonzeros {
    static constexpr int32_t lanes = 8, most_rows = 12;

    static constexpr int32_t shared_sums = 12, most_shared = 2;
};

}  // namespace

extern "C" int distile_call_avx2_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::call_nonzeros<Avx2Nonzeros>(*code, *call);
}
