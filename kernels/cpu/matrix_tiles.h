/** \file
 * Matrix instructions on tiles of 16 rows x 64 bytes, as AMX has them. The instructions themselves are a class `Tiles`,
 * so that tests can run the same code on CPUs without them:
 *
 *     using Types = ...;                                                   // As in product.h.
 *     static void configure(), release();
 *     template<int T> static void zero();
 *     template<int T> static void load(const void *from, int32_t stride);  // Bytes between rows.
 *     template<int C, int A, int B> static void add_product();             // C += A * B, by groups of 4 bytes.
 *     template<int T> static void store(void *to, int32_t stride);
 */
#ifndef DISTILE_DOT_PRODUCT_MATRIX_TILES_H
#define DISTILE_DOT_PRODUCT_MATRIX_TILES_H

#include "kernels/cpu/product.h"
#include "kernels/cpu/steps.h"

namespace distile::dot_product {

constexpr int32_t tile_row_bytes = 64;

/** Blocks of up to 2 x 2 tiles of sums. */
template<class Tiles> struct TileSet {
    using Types = typename Tiles::Types;
    using Block = dot_product::Block<Types>;
    using Sum = typename Types::Sum;
    static constexpr int32_t tile_rows = 16, chunk_steps = 0;
    static constexpr bool balances = false, loads_in_place = true, keeps_apart = false;
    static constexpr CostModel cost_model = Types::parts == 1 ? in_tiles : in_split_tiles;

    static void begin() {
        Tiles::configure();
    }
    static void end() {
        Tiles::release();
    }

    static void multiply(const Block &block, int32_t rows, int32_t vectors, bool /*adds*/, Sum *sums) {
        if (rows > tile_rows) {
            vectors == 2 ? code<true, true>(block, sums) : code<true, false>(block, sums);
        } else {
            vectors == 2 ? code<false, true>(block, sums) : code<false, false>(block, sums);
        }
    }

private:
    using Element = typename Types::Element;
    using Weight = typename Types::Weight;

    /** What a step multiplies: tiles 4 and 5 are rows, 6 and 7 weights. */
    struct Operands {
        const Element *upper, *lower;
        int32_t upper_distance, lower_distance;
        const Weight *weights;
        int64_t weights_distance;
    };

    /** Adds a part of a step. What is not loaded is that of the part before. */
    template<bool TwoRows, bool TwoColumns, bool LoadsRows, bool LoadsWeights>
    [[gnu::always_inline]] static void add(const Operands &of) {
        if constexpr (LoadsRows) {
            Tiles::template load<4>(of.upper, of.upper_distance);
        }
        if constexpr (LoadsWeights) {
            Tiles::template load<6>(of.weights, tile_row_bytes);
        }
        Tiles::template add_product<0, 4, 6>();
        if constexpr (TwoColumns) {
            if constexpr (LoadsWeights) {
                Tiles::template load<7>(of.weights + of.weights_distance, tile_row_bytes);
            }
            Tiles::template add_product<1, 4, 7>();
        }
        if constexpr (TwoRows) {
            if constexpr (LoadsRows) {
                Tiles::template load<5>(of.lower, of.lower_distance);
            }
            Tiles::template add_product<2, 5, 6>();
        }
        if constexpr (TwoRows && TwoColumns) {
            Tiles::template add_product<3, 5, 7>();
        }
    }

    /** Tiles 0 to 3 are sums. */
    template<bool TwoRows, bool TwoColumns> static void code(const Block &block, Sum *sums) {
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        Tiles::template zero<2>();
        Tiles::template zero<3>();
        const auto &upper = block.tiles[0], &lower = block.tiles[TwoRows ? 1 : 0];
        const auto *weights = block.weights.first;
        for (int32_t step = 0; step < block.steps; step++, weights += Block::weight_step) {
            Operands high{upper.first + upper.steps[step],
                          lower.first + lower.steps[step],
                          upper.distance,
                          lower.distance,
                          weights,
                          block.weights.distance};
            add<TwoRows, TwoColumns, true, true>(high);
            if constexpr (Types::parts == 2) {
                Operands low = high;
                low.upper += block.staged_step / 2;
                low.lower += block.staged_step / 2;
                low.weights += Block::weight_part;
                add<TwoRows, TwoColumns, true, false>(low);
                add<TwoRows, TwoColumns, false, true>(low);
                add<TwoRows, TwoColumns, true, false>(high);
            }
        }
        constexpr int32_t columns = TwoColumns ? 2 * vector_channels : vector_channels,
                          stride = columns * static_cast<int32_t>(sizeof(Sum));
        Tiles::template store<0>(sums, stride);
        if constexpr (TwoColumns) {
            Tiles::template store<1>(sums + vector_channels, stride);
        }
        if constexpr (TwoRows) {
            Tiles::template store<2>(sums + int64_t{tile_rows} * columns, stride);
        }
        if constexpr (TwoRows && TwoColumns) {
            Tiles::template store<3>(sums + int64_t{tile_rows} * columns + vector_channels, stride);
        }
    }
};

}  // namespace distile::dot_product

#endif
