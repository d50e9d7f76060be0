/** \file
 * Activations in float32. Vectors of the compiler's, which it makes from the instructions of the file that includes
 * this.
 */
#ifndef DISTILE_DOT_PRODUCT_EPILOGUE_H
#define DISTILE_DOT_PRODUCT_EPILOGUE_H

#include "facts/activations.h"
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
    /** Coefficients start at the highest power, which is in `sum`. */
    static void polynomial(const Floats &, Floats &) {
    }
    template<class... Rest> static void polynomial(const Floats &x, Floats &sum, float next, Rest... rest) {
        sum = sum * x + next;
        polynomial(x, sum, rest...);
    }
    /** Clamps. The result is a number also where `x` is NaN. */
    static void clamp(Floats &x, float least, float most) {
        const Floats low = Floats{} + least, high = Floats{} + most;
        x = x > low ? x : low;
        x = x > high ? high : x;
    }
    /** The exponentials of numbers from -87 to 89, to a few units in the last place; infinite above float32's range. */
    static void exponential(Floats &x) {
        constexpr float to_integer = 0x1.8p23f, log2_e = 1.44269504f, ln2_high = 0.693359375f,
                        ln2_low = -2.12194440e-4f;
        const Floats shifted = x * log2_e + to_integer, power = shifted - to_integer;
        const Floats r = (x - power * ln2_high) - power * ln2_low;
        Floats series = Floats{} + 1.9875691500e-4f;
        polynomial(r, series, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f,
                   1.0f, 1.0f);
        const Integers bits = (__builtin_convertvector(power, Integers) + 127) << 23;
        Floats scale;
        std::memcpy(&scale, &bits, sizeof(scale));
        x = series * scale;
    }
    /** The error function to a few units in the last place, with the coefficients of Eigen 3.3; 1 beyond 4. */
    static void error_function(Floats &x) {
        clamp(x, -4.1f, 4.1f);
        const Floats square = x * x;
        Floats p = Floats{} - 2.72614225801306e-10f, q = Floats{} - 1.45660718464996e-05f;
        polynomial(square, p, 2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f,
                   -7.34990630326855e-04f, -2.95459980854025e-03f, -1.60960333262415e-02f);
        polynomial(square, q, -2.13374055278905e-04f, -1.68282697438203e-03f, -7.37332916720468e-03f,
                   -1.42647390514189e-02f);
        x = x * p / q;
        clamp(x, -1, 1);
    }
    /** The hyperbolic tangent to a few units in the last place, with the coefficients of Eigen 3.3; 1 from 9 on. */
    static void hyperbolic_tangent(Floats &x) {
        clamp(x, -9, 9);
        const Floats square = x * x;
        Floats p = Floats{} - 2.76076847742355e-16f, q = Floats{} + 1.19825839466702e-06f;
        polynomial(square, p, 2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f,
                   1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f);
        polynomial(square, q, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f);
        x = x * p / q;
        clamp(x, -1, 1);
    }
    /** 1 + exp(-x). The exponential of 89 is infinite. */
    static void one_plus_exponential_of_minus(Floats &x) {
        clamp(x, -89, 87);
        x = -x;
        exponential(x);
        x += 1;
    }
    /** Keeps NaN. */
    static void limit(Floats &x, float least, float most) {
        const Floats low = Floats{} + least, high = Floats{} + most;
        x = x < low ? low : x;
        x = x > high ? high : x;
    }
    /** The value, or NaN where `x` is NaN: the functions above return a number there. 0 times NaN is NaN. */
    static void keep_nan(const Floats &x, Floats &value) {
        Floats limited = x;
        limit(limited, -1, 1);
        value += 0 * limited;
    }

// Expressions of vectors. A function that returned one would depend on the instruction set.
#define DISTILE_MADE(made, x, ...)                                                                                     \
    __extension__({                                                                                                    \
        Floats made = x;                                                                                               \
        __VA_ARGS__;                                                                                                   \
        made;                                                                                                          \
    })
#define AT_LEAST(x, low) DISTILE_MADE(raised, x, raised = raised < Floats{} + (low) ? Floats{} + (low) : raised)
#define LIMIT(x, low, high) DISTILE_MADE(limited, x, limit(limited, low, high))
#define ONE_PLUS_EXP_MINUS(x) DISTILE_MADE(power, x, one_plus_exponential_of_minus(power))
#define ERF(x) DISTILE_MADE(error, x, error_function(error))
#define TANH(x) DISTILE_MADE(tangent, x, hyperbolic_tangent(tangent))
#define KEEP_NAN(x, value) DISTILE_MADE(kept, value, keep_nan(x, kept))
#define CHOOSE(condition, value, other) ((condition) ? (value) : (other))
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    if constexpr (Kind == DISTILE_ACTIVATION_##NAME) {                                                                 \
        x = value;                                                                                                     \
    }
    /** NaN stays NaN. */
    template<distile_activation Kind> static void activate(Floats &x, [[maybe_unused]] float slope) {
        DISTILE_ACTIVATIONS(DISTILE_ROW)
    }
#undef DISTILE_ROW
#undef CHOOSE
#undef KEEP_NAN
#undef TANH
#undef ERF
#undef ONE_PLUS_EXP_MINUS
#undef LIMIT
#undef AT_LEAST
#undef DISTILE_MADE

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
