/** \file
 * Results of dot products: 16 output channels at a time, in vectors of the compiler's, which it makes from the
 * instructions of the file that includes this.
 */
#ifndef DISTILE_DOT_PRODUCT_EPILOGUE_H
#define DISTILE_DOT_PRODUCT_EPILOGUE_H

#include "kernels/cpu/activation.h"
#include <cstdint>
#include <cstring>
#include <distile/polykernel.h>

namespace distile::dot_product {

/** Output channels of a vector of sums, and of a block of the weights. */
constexpr int32_t vector_channels = 16;

/** Output channels that a task computes, of one section. The last block of a section may have fewer than others. */
struct ChannelBlock {
    int32_t section;
    int32_t first, count;
    int32_t place;            ///< In the weights, and in what there is for each channel of these: a multiple of 16.
    int32_t vectors, padded;  ///< The vectors of sums, and the channels that these hold.
};

/** `Isa` only tells the code of instruction sets apart: a linker must not merge their functions. Vectors are passed by
 * address, because how they are passed otherwise depends on the instruction set. */
template<class Isa> struct Epilogue {
    using Floats = float __attribute__((vector_size(vector_channels * 4)));
    using Integers = int32_t __attribute__((vector_size(vector_channels * 4)));
    using Words = uint32_t __attribute__((vector_size(vector_channels * 4)));

    /** Up to a vector of stored channels. */
    template<typename Element> static void copy_channels(void *to, const void *from, int32_t count) {
        if (count == vector_channels) {
            std::memcpy(to, from, vector_channels * sizeof(Element));
        } else {
            std::memcpy(to, from, count * sizeof(Element));
        }
    }
    /** Narrowed numbers are to be in a register before they are stored: instructions that do both take long on some
     * CPUs.
     */
    template<class Vector> static void keep_in_register(Vector &narrowed) {
#ifdef __AVX512F__
        asm("" : "+v"(narrowed));
#else
        static_cast<void>(narrowed);
#endif
    }
    /** NaN stays NaN. */
    template<distile_activation Kind> [[gnu::always_inline]] static void activate(Floats &x, float slope) {
        for (int64_t i = 0; i < vector_channels; i += register_lanes) {
            typename Activation<Isa>::Floats part;
            std::memcpy(&part, reinterpret_cast<const char *>(&x) + i * sizeof(float), sizeof(part));
            Activation<Isa>::template activate<Kind>(part, slope);
            std::memcpy(reinterpret_cast<char *>(&x) + i * sizeof(float), &part, sizeof(part));
        }
    }

    /** `results.at<Vectors>(channel)` has, for up to 16 channels of each vector from this one on,
     *
     *     // Loads and saves values of the row with this index.
     *     void load(const Row &row, int32_t index, int32_t count, Floats *values) const;
     *     void save(const Row &row, int32_t count, const Floats *values) const;
     *
     * `results.slope` is that of the activation, and `Results::widest` is the number of vectors that it stores together
     * at most. All rows of some channels follow each other, so that what these have in common stays in registers. */
    template<distile_activation Kind, class Results, class Row>
    [[gnu::noinline]] static void store_all(const Results &results, const Row *rows, int32_t num_rows, int32_t count) {
        // Activations take more registers, and more code.
        constexpr int32_t widest = Kind == DISTILE_ACTIVATION_NONE ? Results::widest : 1;
        int32_t c = store_vectors<Kind, widest>(results, rows, num_rows, 0, count);
        if (c < count) {
            store_part<Kind>(results, rows, num_rows, c, count - c);
        }
    }
    /** Returns the first channel of those that fill no vector. */
    template<distile_activation Kind, int32_t Vectors, class Results, class Row> [[gnu::always_inline]] static int32_t
    store_vectors(const Results &results, const Row *rows, int32_t num_rows, int32_t channel, int32_t count) {
        constexpr int32_t channels = Vectors * vector_channels;
        for (; count - channel >= channels; channel += channels) {
            store_channels<Kind, Vectors>(results, rows, num_rows, channel, channels);
        }
        if constexpr (Vectors > 1) {
            return store_vectors<Kind, Vectors - 1>(results, rows, num_rows, channel, count);
        }
        return channel;
    }
    template<distile_activation Kind, int32_t Vectors, class Results, class Row> [[gnu::always_inline]] static void
    store_channels(const Results &results, const Row *rows, int32_t num_rows, int32_t channel, int32_t count) {
        // A value, because bytes that are stored may lie anywhere but there.
        const auto channels = results.template at<Vectors>(channel);
        for (int32_t row = 0; row < num_rows; row++) {
            Floats values[Vectors];
            channels.load(rows[row], row, count, values);
            for (int64_t v = 0; v < Vectors; v++) {
                activate<Kind>(values[v], results.slope);
            }
            channels.save(rows[row], count, values);
        }
    }
    template<distile_activation Kind, class Results, class Row> [[gnu::noinline]] static void
    store_part(const Results &results, const Row *rows, int32_t num_rows, int32_t channel, int32_t count) {
        store_channels<Kind, 1>(results, rows, num_rows, channel, count);
    }
    /** Activates and stores `count` channels of each row. */
    template<class Results, class Row> static void store(distile_activation epilogue, const Results &results,
                                                         const Row *rows, int32_t num_rows, int32_t count) {
        switch (epilogue) {
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        return store_all<DISTILE_ACTIVATION_##NAME>(results, rows, num_rows, count);
            DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
        }
    }
};

}  // namespace distile::dot_product

#endif
