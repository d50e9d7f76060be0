/** \file
 * Products with nonzero weights by any CPU, four pixels at a time. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cpu/nonzeros.h"
#include "kernels/dot_products.h"

namespace {

struct PortableNonzeros {
    static constexpr int32_t lanes = 4, most_rows = 12;

    static constexpr int32_t shared_sums = 10, most_shared = 2;
};

}  // namespace

extern "C" int distile_call_portable_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::call_nonzeros<PortableNonzeros>(*code, *call);
}
