/** \file
 * Products of tiles by AMX-FP16. Linked into every PolyKernel that has such variants. The runtime asks the system for
 * the tiles before it calls them.
 */
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/float16.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAmxFp16;

struct AmxFp16 : distile::dot_product::AmxTiles<OfAmxFp16> {
    using Types = distile::dot_product::Float16<OfAmxFp16>;

    /** tdpfp16ps in bytes: neither the intrinsic nor the assembler of GCC 12's age is sure to know it. */
    template<int C, int A, int B> static void add_product() {
        constexpr int vex = 3 | (~B & 15) << 3, registers = 0xc0 | C << 3 | A;
        asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"(vex), "i"(registers));
    }
};

}  // namespace

extern "C" int distile_call_amx_fp16(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<distile::dot_product::Steps<distile::dot_product::TileSet<AmxFp16>>>(*code,
                                                                                                              *call)
        .run();
}
