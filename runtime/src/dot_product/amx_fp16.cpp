/** \file
 * Products of tiles by AMX-FP16. Linked into every PolyKernel that has such variants. The runtime asks the system for
 * the tiles before it calls them.
 */
#include "amx_tiles.h"
#include "float16.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAmxFp16;

struct AmxFp16 : distile::dot_product::AmxTiles<OfAmxFp16> {
    using Numbers = distile::dot_product::Float16<OfAmxFp16>;

    /** The intrinsic for it is younger than GCC 12. */
    template<int C, int A, int B> static void add_product() {
        asm volatile("tdpfp16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};

}  // namespace

extern "C" int distile_call_amx_fp16(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<distile::dot_product::Steps<distile::dot_product::TileSet<AmxFp16>>>(*code,
                                                                                                              *call)
        .run();
}
