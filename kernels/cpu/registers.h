/** \file
 * Sums in vector registers: a block of rows times vectors of 16 output channels. An instruction is a class `Dot`:
 *
 *     using Types = ...;                                // As in product.h.
 *     static constexpr int32_t rows_of(int32_t vectors) // The rows whose sums fit the registers.
 *     // Vectors of 16 output channels; a group of a row, spread to all lanes.
 *     using Total = ..., Weights = ..., Spread = ...;
 *     static void clear(Total &), load(const Sum *, Total &), store(const Total &, Sum *);
 *     static void load(const Weight *, Weights &), spread(const Element *, Spread &);
 *     static void add(Total &total, const Spread &group, const Weights &weights);  // Adds the products of a group.
 *     using Lanes = ..., Shuffled = ...;               // Packs of lanes, as ApartLanes has them; those of a row.
 *     static void load(const int32_t *, Lanes &);
 *     // Takes from a row's step the packs `pack` + lanes, which lie in one half of it.
 *     static void shuffle(const Element *step, int32_t pack, const Lanes &lanes, Shuffled &);
 *     static void add(Total &total, const Shuffled &packs, const Weights &weights);
 */
#ifndef DISTILE_DOT_PRODUCT_REGISTERS_H
#define DISTILE_DOT_PRODUCT_REGISTERS_H

#include "kernels/cpu/steps.h"
#include <utility>

namespace distile::dot_product {

/** Work::code<rows, vectors> of each number of rows and vectors whose sums fit the registers; of type Work::Code. */
template<class Dot, class Work> struct RegisterCodes {
    static typename Work::Code find(int32_t rows, int32_t vectors) {
        return vectors == 1 ? of<1>(rows) : vectors == 2 ? of<2>(rows) : vectors == 3 ? of<3>(rows) : of<4>(rows);
    }
    template<int Vectors> static typename Work::Code of(int32_t rows) {
        return of<Vectors>(rows, std::make_integer_sequence<int, Dot::rows_of(Vectors)>());
    }

private:
    template<int Vectors, int... Indices>
    static typename Work::Code of(int32_t rows, std::integer_sequence<int, Indices...>) {
        static constexpr typename Work::Code codes[] = {Work::template code<Indices + 1, Vectors>...};
        return codes[rows - 1];
    }
};

/** Blocks of rows and a vector, with groups kept apart. Types as in RegisterIsa. */
template<class Dot, class Block, class Sum> struct ApartCode {
    using Code = void (*)(const Block &block, bool adds, Sum *sums);

    template<int Rows, int Vectors> static void code(const Block &block, bool adds, Sum *sums) {
        static_assert(Vectors == 1);
        typename Dot::Total totals[Rows];
#pragma GCC unroll 14
        for (int64_t row = 0; row < Rows; row++) {
            if (adds) {
                Dot::load(sums + row * vector_channels, totals[row]);
            } else {
                Dot::clear(totals[row]);
            }
        }
        typename Dot::Lanes lanes;
        Dot::load(block.lanes->first, lanes);
        const auto *staged = block.staged;
        const auto *weights = block.weights.first;
        for (int32_t step = 0; step < block.steps; step++, staged += block.staged_step) {
            const int32_t packs = step + 1 < block.steps ? step_groups : block.last_groups;
            for (int32_t first = 0; first < packs; first += block.lanes->window) {
                for (int32_t pack = first; pack < first + block.lanes->depth; pack++) {
                    typename Dot::Weights loaded;
                    Dot::load(weights, loaded);
                    weights += Block::group_elements * vector_channels;
#pragma GCC unroll 14
                    for (int64_t row = 0; row < Rows; row++) {
                        typename Dot::Shuffled shuffled;
                        Dot::shuffle(staged + row * Block::step_elements, pack, lanes, shuffled);
                        Dot::add(totals[row], shuffled, loaded);
                    }
                }
            }
        }
#pragma GCC unroll 14
        for (int64_t row = 0; row < Rows; row++) {
            Dot::store(totals[row], sums + row * vector_channels);
        }
    }
};

/** An `Isa`, as in steps.h. */
template<class Dot> struct RegisterIsa {
    using Types = typename Dot::Types;
    using Block = dot_product::Block<Types>;
    using Weight = typename Types::Weight;
    using Sum = typename Types::Sum;
    static constexpr int32_t tile_rows = 1, chunk_steps = 8;
    static constexpr bool balances = true, loads_in_place = false, keeps_apart = true;
    static constexpr CostModel cost_model = in_registers;

    static void begin() {
    }
    static void end() {
    }
    static void multiply(const Block &block, int32_t rows, int32_t vectors, bool adds, Sum *sums) {
        if (block.lanes) {
            RegisterCodes<Dot, ApartCode<Dot, Block, Sum>>::template of<1>(rows)(block, adds, sums);
        } else {
            RegisterCodes<Dot, RegisterIsa>::find(rows, vectors)(block, adds, sums);
        }
    }

    using Code = void (*)(const Block &block, bool adds, Sum *sums);

    template<int Rows, int Vectors> static void code(const Block &block, bool adds, Sum *sums) {
        typename Dot::Total totals[Rows][Vectors];
#pragma GCC unroll 14
        for (int64_t row = 0; row < Rows; row++) {
#pragma GCC unroll 4
            for (int64_t v = 0; v < Vectors; v++) {
                if (adds) {
                    Dot::load(sums + (row * Vectors + v) * vector_channels, totals[row][v]);
                } else {
                    Dot::clear(totals[row][v]);
                }
            }
        }
        const auto *staged = block.staged;
        const Weight *weights = block.weights.first;
        constexpr int64_t group_weights = Block::group_elements * vector_channels;
        for (int32_t step = 0; step < block.steps; step++, staged += block.staged_step, weights += Block::weight_step) {
            const int64_t groups = step + 1 < block.steps ? step_groups : block.last_groups;
            for (int64_t group = 0; group < groups; group++) {
                typename Dot::Weights loaded[Vectors];
                for (int64_t v = 0; v < Vectors; v++) {
                    Dot::load(weights + v * block.weights.distance + group * group_weights, loaded[v]);
                }
                for (int64_t row = 0; row < Rows; row++) {
                    typename Dot::Spread spread;
                    Dot::spread(staged + row * Block::step_elements + Block::group_elements * group, spread);
                    for (int64_t v = 0; v < Vectors; v++) {
                        Dot::add(totals[row][v], spread, loaded[v]);
                    }
                }
            }
        }
#pragma GCC unroll 14
        for (int64_t row = 0; row < Rows; row++) {
#pragma GCC unroll 4
            for (int64_t v = 0; v < Vectors; v++) {
                Dot::store(totals[row][v], sums + (row * Vectors + v) * vector_channels);
            }
        }
    }
};

}  // namespace distile::dot_product

#endif
