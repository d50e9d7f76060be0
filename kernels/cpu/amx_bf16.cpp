/** \file
 * Products of tiles by AMX-BF16. Linked into every PolyKernel that has such variants. The runtime asks the system for
 * the tiles before it calls them.
 */
#include "kernels/cpu/amx_bf16_tiles.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAmxBf16;

struct AmxBf16 : distile::dot_product::AmxBf16Tiles<OfAmxBf16> {
    using Types = distile::dot_product::Bfloat16<OfAmxBf16>;
};

}  // namespace

extern "C" int distile_call_amx_bf16(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<distile::dot_product::Steps<distile::dot_product::TileSet<AmxBf16>>>(*code,
                                                                                                              *call)
        .run();
}
