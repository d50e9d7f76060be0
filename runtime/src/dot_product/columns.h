/** \file
 * Depthwise convolutions of quantized numbers. Each output channel has its own input. One instruction multiplies four
 * taps of it, one below the other.
 *
 * A task stages columns of the input, for a block of channels: [column][four taps][vector][channel][4 bytes]. Pixels
 * beside each other share most of their columns. The weights lie in the same order, with zeros below the kernel.
 */
#ifndef DISTILE_DOT_PRODUCT_COLUMNS_H
#define DISTILE_DOT_PRODUCT_COLUMNS_H

#include "product.h"
#include "registers.h"
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
    using Numbers = typename Dot::Numbers;
    using Element = uint8_t;
    using Sum = typename Numbers::Sum;
    static constexpr int32_t tile_rows = 1;
    static constexpr bool balances = true;
    static constexpr Manner manner = in_columns;

    Columns(const distile_dot_product_code &code, const distile_kernel_call &call, const Numbers &numbers)
        : code_(code), numbers_(numbers), weights_(call.operands[1]), channels_(call.operands[0].dim[Channel].extent),
          groups_((code.rows->taps + column_group - 1) / column_group) {
        // As it is stored.
        numbers.pad(padding_, vector_channels);
        numbers.copy(padding_, padding_, vector_channels);
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
    int32_t window(int32_t channel) const {
        return channel;
    }
    /** Finds the taps of all columns. */
    void prepare(const Phase &phase, const Rows<Numbers> &source, Row *rows, int32_t count, Element *to) const {
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
    void stage(const Phase &phase, const Rows<Numbers> & /*source*/, const Row *rows, int32_t count, int32_t channel,
               Element *to) const {
        const int32_t left = channels_ - channel, channels = left < code_.block_channels ? left : code_.block_channels;
        const int64_t bytes = column_bytes((channels + vector_channels - 1) / vector_channels) / groups_;
        const int32_t groups = (rows[count - 1].column + phase.columns.taps) * groups_;
        const auto *taps = reinterpret_cast<const Tap *>(to);
        to += tap_bytes();
        for (int32_t group = 0; group < groups; group++, taps += column_group, to += bytes) {
            stage_group(taps, channel, channels, to);
        }
    }
    int32_t chunks(const Phase & /*phase*/) const {
        return 1;
    }
    int64_t weight_elements() const {
        return weights_.room(weight_bytes(), code_.block_channels / vector_channels);
    }
    LoadedWeights<int8_t> load(const Phase & /*phase*/, int32_t /*chunk*/, int32_t channel, int32_t vectors,
                               int8_t *room) const {
        return weights_.load(channel, 0, weight_bytes(), vectors, room);
    }
    void multiply(const Phase &phase, int32_t /*chunk*/, const LoadedWeights<int8_t> &weights, const Element *staged,
                  const Row *rows, int32_t count, int32_t vectors, Sum *sums) const {
        RegisterCodes<Dot, Columns>::find(count, vectors)(
            {staged + tap_bytes(), column_bytes(vectors), weights, phase.columns.taps * groups_}, rows, sums);
    }

    /** Distances in bytes. */
    struct Block {
        const uint8_t *staged;
        int64_t column;  ///< Between columns.
        LoadedWeights<int8_t> weights;
        int32_t groups;  ///< Of a pixel.
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
    using Bytes = uint8_t __attribute__((vector_size(vector_channels)));
    using Pairs = uint16_t __attribute__((vector_size(vector_channels)));

    /** The numbers of a tap. */
    struct Tap {
        const uint8_t *at;
        int64_t channels;  ///< All bits set, or none where all channels read the same padding.
    };
    /** Those of all columns of a block, which lie before them. */
    int64_t tap_bytes() const {
        return int64_t{code_.block_pixels} * code_.columns->taps * groups_ * column_group *
               static_cast<int64_t>(sizeof(Tap));
    }
    /** Of a block of 16 channels. */
    int64_t weight_bytes() const {
        return int64_t{code_.columns->taps} * groups_ * group_bytes;
    }
    int64_t column_bytes(int32_t vectors) const {
        return int64_t{groups_} * vectors * group_bytes;
    }
    /** Alternates the numbers of two vectors: of the first halves, and of the second ones. */
    static void alternate(const Bytes &a, const Bytes &b, Pairs &first, Pairs &second) {
        const Bytes low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const Bytes high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        std::memcpy(&first, &low, sizeof(first));
        std::memcpy(&second, &high, sizeof(second));
    }
    static void store(const Pairs &a, const Pairs &b, uint8_t *to) {
        const Pairs low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11),
                    high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        std::memcpy(to, &low, sizeof(low));
        std::memcpy(to + sizeof(low), &high, sizeof(high));
    }
    /** Interleaves four taps of 16 channels. */
    static void store(const Bytes &a, const Bytes &b, const Bytes &c, const Bytes &d, uint8_t *to) {
        Pairs first_ab, second_ab, first_cd, second_cd;
        alternate(a, b, first_ab, second_ab);
        alternate(c, d, first_cd, second_cd);
        store(first_ab, first_cd, to);
        store(second_ab, second_cd, to + group_bytes / 2);
    }
    static void load(const uint8_t *from, int32_t count, const Bytes &flip, Bytes &to) {
        to = Bytes{};
        std::memcpy(&to, from, count);
        to ^= flip;
    }
    /** Four taps of some channels. */
    void stage_group(const Tap *taps, int32_t first, int32_t channels, uint8_t *to) const {
        const Bytes flip = Bytes{} + numbers_.flip();
        const Tap a = taps[0], b = taps[1], c = taps[2], d = taps[3];
        const auto stage = [&](int64_t channel, int32_t count) {
            Bytes of_a, of_b, of_c, of_d;
            load(a.at + (channel & a.channels), count, flip, of_a);
            load(b.at + (channel & b.channels), count, flip, of_b);
            load(c.at + (channel & c.channels), count, flip, of_c);
            load(d.at + (channel & d.channels), count, flip, of_d);
            store(of_a, of_b, of_c, of_d, to + (channel - first) * column_group);
        };
        int32_t channel = first;
        for (; first + channels - channel >= vector_channels; channel += vector_channels) {
            stage(channel, vector_channels);
        }
        if (channel < first + channels) {
            stage(channel, first + channels - channel);
        }
    }

    const distile_dot_product_code &code_;
    const Numbers &numbers_;
    const PackedWeights<Numbers> weights_;
    int32_t channels_, groups_;
    uint8_t padding_[vector_channels];
};

/** Runs a call by an instruction, whatever its channels read. */
template<class Dot> int run_quantized(const distile_dot_product_code &code, const distile_kernel_call &call) {
    return code.window_channels == 0 ? Product<Columns<Dot>>(code, call).run()
                                     : Product<Steps<RegisterSet<Dot>>>(code, call).run();
}

}  // namespace distile::dot_product

#endif
