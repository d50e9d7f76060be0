/** \file
 * The packed weights of a call, which its code reads in place. Those of 4 bits become bytes first, and those with parts
 * are split, once for all rows that a task has staged.
 */
#ifndef DISTILE_DOT_PRODUCT_PACKED_WEIGHTS_H
#define DISTILE_DOT_PRODUCT_PACKED_WEIGHTS_H

#include "kernels/call.h"
#include "kernels/cpu/epilogue.h"
#include <cstdint>
#include <cstring>
#include <distile/polykernel.h>

namespace distile::dot_product {

/** Weights as instructions read them. */
template<class Weight> struct LoadedWeights {
    const Weight *first;
    int64_t distance;  ///< In elements, between blocks of 16 output channels.
};

/** `Types` as in product.h. */
template<class Types> class PackedWeights {
public:
    using Weight = typename Types::Weight;

    explicit PackedWeights(const distile_array &array) : array_(array) {
    }
    /** The elements to unpack for blocks of output channels with `elements` elements each. */
    int64_t room(int64_t elements, int32_t vectors) const {
        return Types::parts > 1 ? elements * Types::parts * vectors : is_int4() ? vectors * whole(elements) : 0;
    }
    /** Loads `elements` weights of each vector of a block of output channels, from the `first` one on. It unpacks or
     * splits weights into `room`, where the two parts of a step follow each other. */
    LoadedWeights<Weight> load(const ChannelBlock &channels, int64_t first, int64_t elements, Weight *room) const {
        const int64_t distance = array_.dim[2].stride, from = channels.place / vector_channels * distance + first;
        const int32_t vectors = channels.vectors;
        if constexpr (Types::parts == 2) {
            for (int32_t v = 0; v < vectors; v++) {
                const Weight *const stored = static_cast<const Weight *>(array_.data) + from + v * distance;
                Weight *const to = room + 2 * elements * v;
                for (int64_t i = 0; i < elements; i += step) {
                    Types::split(stored + i, step, to + 2 * i, to + 2 * i + step);
                }
            }
            return {room, 2 * elements};
        }
        if (!is_int4()) {
            return {static_cast<const Weight *>(array_.data) + from, distance};
        }
        for (int32_t v = 0; v < vectors; v++) {
            unpack(static_cast<const uint8_t *>(array_.data) + (from + v * distance) / 2, whole(elements),
                   room + v * whole(elements));
        }
        return {room, whole(elements)};
    }

private:
    using Bytes = uint8_t __attribute__((vector_size(64)));
    static constexpr int64_t block = 2 * sizeof(Bytes);  // int4_block.
    static constexpr int64_t step = vector_channels * int64_t{sizeof(Bytes) / sizeof(Weight)};

    bool is_int4() const {
        return sizeof(Weight) == 1 && array_.dtype == DISTILE_INT4;
    }
    static int64_t whole(int64_t elements) {
        return (elements + block - 1) / block * block;
    }
    static void unpack(const uint8_t *from, int64_t elements, Weight *to) {
        for (int64_t i = 0; i < elements; i += block, from += sizeof(Bytes), to += block) {
            Bytes halves;
            std::memcpy(&halves, from, sizeof(halves));
            const Bytes low = ((halves & 15) ^ 8) - 8, high = ((halves >> 4) ^ 8) - 8;
            std::memcpy(to, &low, sizeof(low));
            std::memcpy(to + block / 2, &high, sizeof(high));
        }
    }

    const distile_array &array_;
};

}  // namespace distile::dot_product

#endif
