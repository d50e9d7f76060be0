/** \file
 * Products of tiles by AMX-INT8, of unsigned inputs and signed weights. Linked into every PolyKernel that has such
 * variants. The runtime asks the system for the tiles before it calls them.
 */
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/int8.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAmxInt8;

struct AmxInt8 : distile::dot_product::AmxTiles<OfAmxInt8> {
    using Types = distile::dot_product::Int8<OfAmxInt8>;

    template<int C, int A, int B> static void add_product() {
        if constexpr (C == 0) {
            static_assert(A == 4 && B == 6);
            _tile_dpbusd(0, 4, 6);
        } else if constexpr (C == 1) {
            static_assert(A == 4 && B == 7);
            _tile_dpbusd(1, 4, 7);
        } else if constexpr (C == 2) {
            static_assert(A == 5 && B == 6);
            _tile_dpbusd(2, 5, 6);
        } else {
            static_assert(C == 3 && A == 5 && B == 7);
            _tile_dpbusd(3, 5, 7);
        }
    }
};

}  // namespace

extern "C" int distile_call_amx_int8(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<distile::dot_product::Steps<distile::dot_product::TileSet<AmxInt8>>>(*code,
                                                                                                              *call)
        .run();
}
