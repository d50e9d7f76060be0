/** \file
 * Activations in float32. Vectors of the compiler's, which it makes from the instructions of the file that includes
 * this.
 */
#ifndef DISTILE_DOT_PRODUCT_EPILOGUE_H
#define DISTILE_DOT_PRODUCT_EPILOGUE_H

#include <cstdint>
#include <cstring>
#include <distile/polykernel.h>

namespace distile::dot_product {

/** Output channels of a vector of sums, and of a block of the weights. */
constexpr int32_t vector_channels = 16;

/** Some output channels of a section, of which the last one may have fewer. */
struct ChannelBlock {
    int32_t section;
    int32_t first, count;
    int32_t place;            ///< In the weights, and in what there is for each channel of these: a multiple of 16.
    int32_t vectors, padded;  ///< Of sums, and the channels that these hold.
};

/** `Set` only tells the code of instruction sets apart: a linker must not merge their functions. Vectors are passed by
 * address, because how they are passed otherwise depends on the instruction set. */
template<class Set> struct Epilogue {
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
    /** Also a number where `x` is NaN. */
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
    /** NaN stays NaN. */
    template<distile_epilogue Kind> static void activate(Floats &x) {
        const Floats zero{};
        if constexpr (Kind == DISTILE_EPILOGUE_RELU) {
            x = x < zero ? zero : x;
        } else if constexpr (Kind == DISTILE_EPILOGUE_RELU6) {
            limit(x, 0, 6);
        } else if constexpr (Kind == DISTILE_EPILOGUE_SILU) {
            Floats divisor = x;
            one_plus_exponential_of_minus(divisor);
            x = x / divisor;
        } else if constexpr (Kind == DISTILE_EPILOGUE_SIGMOID) {
            // The exponential of NaN is a number; 0 times NaN is NaN.
            Floats limited = x;
            limit(limited, -1, 1);
            one_plus_exponential_of_minus(x);
            x = 1 / x + 0 * limited;
        } else if constexpr (Kind == DISTILE_EPILOGUE_HARDSIGMOID || Kind == DISTILE_EPILOGUE_HARDSWISH) {
            Floats factor = x + 3;
            limit(factor, 0, 6);
            factor /= 6;
            x = Kind == DISTILE_EPILOGUE_HARDSWISH ? x * factor : factor;
        } else if constexpr (Kind == DISTILE_EPILOGUE_GELU) {
            // Twice the value could overflow.
            Floats error = x * .70710678f;
            error_function(error);
            x = x * (error * .5f + .5f);
        }
    }
    /** `results.at<Vectors>(channel)` has, for up to 16 channels of each vector from this one on,
     *
     *     // Of the row with this index.
     *     void load(const Row &row, int32_t index, int32_t count, Floats *values) const;
     *     void save(const Row &row, int32_t count, const Floats *values) const;
     *
     * and `Results::widest` is the number of vectors that it stores together at most. All rows of some channels follow
     * each other, so that what these have in common stays in registers. */
    template<distile_epilogue Kind, class Results, class Row>
    [[gnu::noinline]] static void store_all(const Results &results, const Row *rows, int32_t num_rows, int32_t count) {
        // Activations take more registers, and more code.
        constexpr int32_t widest = Kind == DISTILE_EPILOGUE_NONE ? Results::widest : 1;
        int32_t c = store_vectors<Kind, widest>(results, rows, num_rows, 0, count);
        if (c < count) {
            store_part<Kind>(results, rows, num_rows, c, count - c);
        }
    }
    /** Returns the first channel of those that fill no vector. */
    template<distile_epilogue Kind, int32_t Vectors, class Results, class Row> [[gnu::always_inline]] static int32_t
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
    template<distile_epilogue Kind, int32_t Vectors, class Results, class Row> [[gnu::always_inline]] static void
    store_channels(const Results &results, const Row *rows, int32_t num_rows, int32_t channel, int32_t count) {
        // A value, because bytes that are stored may lie anywhere but there.
        const auto channels = results.template at<Vectors>(channel);
        for (int32_t row = 0; row < num_rows; row++) {
            Floats values[Vectors];
            channels.load(rows[row], row, count, values);
            for (int64_t v = 0; v < Vectors; v++) {
                activate<Kind>(values[v]);
            }
            channels.save(rows[row], count, values);
        }
    }
    template<distile_epilogue Kind, class Results, class Row> [[gnu::noinline]] static void
    store_part(const Results &results, const Row *rows, int32_t num_rows, int32_t channel, int32_t count) {
        store_channels<Kind, 1>(results, rows, num_rows, channel, count);
    }
    /** Activates and stores `count` channels of each row. */
    template<class Results, class Row> static void store(distile_epilogue epilogue, const Results &results,
                                                         const Row *rows, int32_t num_rows, int32_t count) {
        switch (epilogue) {
        case DISTILE_EPILOGUE_NONE:
            return store_all<DISTILE_EPILOGUE_NONE>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_RELU:
            return store_all<DISTILE_EPILOGUE_RELU>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_RELU6:
            return store_all<DISTILE_EPILOGUE_RELU6>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_SILU:
            return store_all<DISTILE_EPILOGUE_SILU>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_GELU:
            return store_all<DISTILE_EPILOGUE_GELU>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_SIGMOID:
            return store_all<DISTILE_EPILOGUE_SIGMOID>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_HARDSIGMOID:
            return store_all<DISTILE_EPILOGUE_HARDSIGMOID>(results, rows, num_rows, count);
        case DISTILE_EPILOGUE_HARDSWISH:
            return store_all<DISTILE_EPILOGUE_HARDSWISH>(results, rows, num_rows, count);
        }
    }
};

}  // namespace distile::dot_product

#endif
