/** \file
 * Activations in float32, in registers of the instruction set of the file that includes this. GCC computes comparisons
 * of longer vectors number by number.
 */
#ifndef DISTILE_DOT_PRODUCT_ACTIVATION_H
#define DISTILE_DOT_PRODUCT_ACTIVATION_H

#include "facts/activations.h"
#include <cstdint>
#include <cstring>
#include <distile/polykernel.h>

namespace distile::dot_product {

/** The numbers of a register. */
#if defined(__AVX512F__)
constexpr int32_t register_lanes = 16;
#elif defined(__AVX2__)
constexpr int32_t register_lanes = 8;
#else
constexpr int32_t register_lanes = 4;
#endif

/** `Isa` only tells the code of instruction sets apart: a linker must not merge their functions. Vectors are passed by
 * address, because how they are passed otherwise depends on the instruction set. */
template<class Isa> struct Activation {
    using Floats = float __attribute__((vector_size(register_lanes * 4)));
    using Integers = int32_t __attribute__((vector_size(register_lanes * 4)));

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
};

}  // namespace distile::dot_product

#endif
