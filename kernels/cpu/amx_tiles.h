/** \file
 * The tiles of AMX, without their products. */
#ifndef DISTILE_DOT_PRODUCT_AMX_TILES_H
#define DISTILE_DOT_PRODUCT_AMX_TILES_H

#include "kernels/cpu/matrix_tiles.h"
#include <immintrin.h>

namespace distile::dot_product {

/** The configuration of tiles as the instruction reads it. */
struct alignas(64) TileConfiguration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

/** `Isa` as in Epilogue. */
template<class Isa> struct AmxTiles {
    static void configure() {
        constexpr int32_t num_tiles = 8, tile_rows = 16;
        TileConfiguration configuration;
        for (int32_t tile = 0; tile < num_tiles; tile++) {
            configuration.row_bytes[tile] = tile_row_bytes;
            configuration.rows[tile] = tile_rows;
        }
        _tile_loadconfig(&configuration);
    }
    static void release() {
        _tile_release();
    }
    // The intrinsics take literals only.
    template<int T> static void zero() {
        if constexpr (T == 0) {
            _tile_zero(0);
        } else if constexpr (T == 1) {
            _tile_zero(1);
        } else if constexpr (T == 2) {
            _tile_zero(2);
        } else {
            static_assert(T == 3);
            _tile_zero(3);
        }
    }
    template<int T> static void load(const void *from, int32_t stride) {
        if constexpr (T == 4) {
            _tile_loadd(4, from, stride);
        } else if constexpr (T == 5) {
            _tile_loadd(5, from, stride);
        } else if constexpr (T == 6) {
            _tile_loadd(6, from, stride);
        } else {
            static_assert(T == 7);
            _tile_loadd(7, from, stride);
        }
    }
    template<int T> static void store(void *to, int32_t stride) {
        if constexpr (T == 0) {
            _tile_stored(0, to, stride);
        } else if constexpr (T == 1) {
            _tile_stored(1, to, stride);
        } else if constexpr (T == 2) {
            _tile_stored(2, to, stride);
        } else {
            static_assert(T == 3);
            _tile_stored(3, to, stride);
        }
    }
};

}  // namespace distile::dot_product

#endif
