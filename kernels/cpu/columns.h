/** \file
 * Depthwise convolutions of quantized numbers. Each output channel has its own input. One instruction multiplies four
 * taps of it, one below the other.
 *
 * A task stages columns of the input, for a block of channels: [column][four taps][vector][channel][4 bytes]. Pixels
 * beside each other share most of their columns. The weights lie in the same order, with zeros below the kernel.
 */
#ifndef DISTILE_DOT_PRODUCT_COLUMNS_H
#define DISTILE_DOT_PRODUCT_COLUMNS_H

#include "kernels/cpu/interleave.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/registers.h"
#include "kernels/dot_products.h"
#include <cstring>

namespace distile::dot_product {

/** The taps of a column that are multiplied at a time, and the bytes of these of a vector of channels. */
constexpr int32_t column_group = 4, group_bytes = column_group * vector_channels;

/** A Method, as in product.h, for an instruction of registers.h that can also take numbers of their own for all output
 * channels:
 *
 *     using Own = ...;
 *     static void load(const Element *, Own &);
 *     static void add(Total &total, const Own &group, const Weights &weights);
 */
template<class Dot> class Columns {
public:
    using Types = typename Dot::Types;
    using Element = uint8_t;
    using Sum = typename Types::Sum;
    static constexpr int32_t tile_rows = 1;
    static constexpr bool balances = true;
    static constexpr CostModel cost_model = in_columns;

    Columns(const distile_dot_product_code &code, const distile_kernel_call &call, const Types &types)
        : code_(code), types_(types), weights_(call.operands[1]),
          groups_((code.rows->taps + column_group - 1) / column_group) {
        // Padding as the input stores it.
        types.pad(padding_, widest_bytes);
        for (uint8_t &number : padding_) {
            number ^= types.flip();
        }
    }
    static void begin() {
    }
    static void end() {
    }
    /** There is one phase. */
    int32_t steps_of(const distile_taps & /*rows*/, const distile_taps & /*columns*/) const {
        return static_cast<int32_t>((weight_bytes() + step_bytes * vector_channels - 1) /
                                    (step_bytes * vector_channels));
    }
    int64_t block_elements() const {
        return tap_bytes() +
               int64_t{code_.block_pixels} * code_.columns->taps * column_bytes(code_.block_channels / vector_channels);
    }
    static int32_t first_input(const ChannelBlock &channels) {
        return channels.first;
    }
    /** Finds the taps of all columns. */
    void prepare(const Phase &phase, const Rows<Types> &source, Row *rows, int32_t count, Element *to) const {
        auto *tap = reinterpret_cast<Tap *>(to);
        const int32_t taps = phase.columns.taps;
        int32_t columns = 0;
        for (int32_t i = 0; i < count; i++) {
            int32_t shared = 0;
            for (int32_t right = 1; i != 0 && phase.columns.step == 1 && right < taps && shared == 0; right++) {
                shared = source.continues(rows[i - 1], rows[i], right) ? taps - right : 0;
            }
            rows[i].column = columns - shared;
            columns += taps - shared;
            for (int32_t tx = shared; tx < taps; tx++) {
                for (int32_t ty = 0; ty < column_group * groups_; ty++, tap++) {
                    const uint8_t *const pixel =
                        ty < phase.rows.taps ? source.pixel(rows[i], ty * phase.rows.step, tx * phase.columns.step)
                                             : nullptr;
                    *tap = pixel ? Tap{pixel, -1} : Tap{padding_, 0};
                }
            }
        }
    }
    void stage(const Phase &phase, const Rows<Types> & /*source*/, const Row *rows, int32_t count,
               const ChannelBlock &channels, Element *to) const {
        const int32_t groups = (rows[count - 1].column + phase.columns.taps) * groups_;
        stage_groups<widest_bytes>({reinterpret_cast<const Tap *>(to), groups, int64_t{channels.vectors} * group_bytes},
                                   channels.first, channels.count, to + tap_bytes());
    }
    int32_t chunks(const Phase & /*phase*/) const {
        return 1;
    }
    int64_t weight_elements() const {
        return weights_.room(weight_bytes(), code_.block_channels / vector_channels);
    }
    LoadedWeights<int8_t> load(const Phase & /*phase*/, int32_t /*chunk*/, const ChannelBlock &channels,
                               int8_t *room) const {
        return weights_.load(channels, 0, weight_bytes(), room);
    }
    void multiply(const Phase &phase, int32_t /*chunk*/, const LoadedWeights<int8_t> &weights, const Element *staged,
                  const Row *rows, int32_t count, const ChannelBlock &channels, Sum *sums) const {
        RegisterCodes<Dot, Columns>::find(count, channels.vectors)(
            {staged + tap_bytes(), column_bytes(channels.vectors), weights, phase.columns.taps * groups_}, rows, sums);
    }

    /** Distances in bytes. */
    struct Block {
        const uint8_t *staged;
        int64_t column;  ///< Between columns.
        LoadedWeights<int8_t> weights;
        int32_t groups;  ///< The groups of a pixel.
    };
    using Code = void (*)(const Block &block, const Row *rows, Sum *sums);

    template<int NumRows, int Vectors> static void code(const Block &block, const Row *rows, Sum *sums) {
        typename Dot::Total totals[NumRows][Vectors];
        const uint8_t *staged[NumRows];
#pragma GCC unroll 14
        for (int64_t row = 0; row < NumRows; row++) {
            staged[row] = block.staged + rows[row].column * block.column;
#pragma GCC unroll 4
            for (int64_t v = 0; v < Vectors; v++) {
                Dot::clear(totals[row][v]);
            }
        }
        for (int64_t group = 0; group < block.groups; group++) {
            typename Dot::Weights loaded[Vectors];
            for (int64_t v = 0; v < Vectors; v++) {
                Dot::load(block.weights.first + v * block.weights.distance + group * group_bytes, loaded[v]);
            }
#pragma GCC unroll 14
            for (int64_t row = 0; row < NumRows; row++) {
                for (int64_t v = 0; v < Vectors; v++) {
                    typename Dot::Own own;
                    Dot::load(staged[row] + (group * Vectors + v) * group_bytes, own);
                    Dot::add(totals[row][v], own, loaded[v]);
                }
            }
        }
#pragma GCC unroll 14
        for (int64_t row = 0; row < NumRows; row++) {
#pragma GCC unroll 4
            for (int64_t v = 0; v < Vectors; v++) {
                Dot::store(totals[row][v], sums + (row * Vectors + v) * vector_channels);
            }
        }
    }

private:
    /** The numbers of a tap. */
    struct Tap {
        const uint8_t *at;
        int64_t channels;  ///< All bits set, or none where all channels read the same padding.
    };
    /** The bytes of the taps of all columns of a block, which lie before the columns. */
    int64_t tap_bytes() const {
        return int64_t{code_.block_pixels} * code_.columns->taps * groups_ * column_group *
               static_cast<int64_t>(sizeof(Tap));
    }
    /** The bytes of the weights of a block of 16 channels. */
    int64_t weight_bytes() const {
        return int64_t{code_.columns->taps} * groups_ * group_bytes;
    }
    int64_t column_bytes(int32_t vectors) const {
        return int64_t{groups_} * vectors * group_bytes;
    }
    /** Groups of four taps, staged `distance` bytes apart. */
    struct Groups {
        const Tap *taps;
        int32_t count;
        int64_t distance;
    };
    /** Some channels of all groups, as many as a vector has at a time. */
    template<int32_t Bytes>
    void stage_groups(const Groups &groups, int32_t channel, int32_t channels, uint8_t *to) const {
        for (; channels >= Bytes; channel += Bytes, channels -= Bytes, to += int64_t{Bytes} * column_group) {
            stage_vectors<Bytes>(groups, channel, Bytes, to);
        }
        if constexpr (Bytes > vector_channels) {
            stage_groups<Bytes / 2>(groups, channel, channels, to);
        } else if (channels > 0) {
            stage_vectors<Bytes>(groups, channel, channels, to);
        }
    }
    /** One vector of each tap. */
    template<int32_t Bytes>
    [[gnu::always_inline]] void stage_vectors(const Groups &groups, int64_t channel, int32_t count, uint8_t *to) const {
        using Interleaving = dot_product::Interleaving<Dot, Bytes>;
        using Vector = typename Interleaving::Vector;
        const Vector flip = Vector{} + types_.flip();
        const Tap *tap = groups.taps;
        for (int32_t group = 0; group < groups.count; group++, tap += column_group, to += groups.distance) {
            Vector loaded[column_group];
            for (int32_t i = 0; i < column_group; i++) {
                loaded[i] = Vector{};
                std::memcpy(&loaded[i], tap[i].at + (channel & tap[i].channels), count);
                loaded[i] ^= flip;
            }
            Interleaving::store(loaded[0], loaded[1], loaded[2], loaded[3], to);
        }
    }

    const distile_dot_product_code &code_;
    const Types &types_;
    const PackedWeights<Types> weights_;
    int32_t groups_;
    uint8_t padding_[widest_bytes];
};

/** Runs a call by an instruction, whatever its channels read. */
template<class Dot> int run_quantized(const distile_dot_product_code &code, const distile_kernel_call &call) {
    return code.read_channels == 0 ? Product<Columns<Dot>>(code, call).run()
                                   : Product<Steps<RegisterIsa<Dot>>>(code, call).run();
}

}  // namespace distile::dot_product

#endif
