/** \file
 * The tiles of AMX-BF16.
 */
#ifndef DISTILE_DOT_PRODUCT_AMX_BF16_TILES_H
#define DISTILE_DOT_PRODUCT_AMX_BF16_TILES_H

#include "kernels/cpu/amx_tiles.h"

namespace distile::dot_product {

/** `Isa` as in Epilogue. */
template<class Isa> struct AmxBf16Tiles : AmxTiles<Isa> {
    template<int C, int A, int B> static void add_product() {
        if constexpr (C == 0) {
            static_assert(A == 4 && B == 6);
            _tile_dpbf16ps(0, 4, 6);
        } else if constexpr (C == 1) {
            static_assert(A == 4 && B == 7);
            _tile_dpbf16ps(1, 4, 7);
        } else if constexpr (C == 2) {
            static_assert(A == 5 && B == 6);
            _tile_dpbf16ps(2, 5, 6);
        } else {
            static_assert(C == 3 && A == 5 && B == 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
};

}  // namespace distile::dot_product

#endif
