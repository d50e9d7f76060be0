/** \file
 * Loops over the channels of a pixel in float32, inlined into each level, where the compiler vectorizes them. All
 * levels give the same bits.
 */
#ifndef DISTILE_CHANNEL_LOOPS_H
#define DISTILE_CHANNEL_LOOPS_H

#include "facts/activations.h"
#include "runtime/cpu/simd/row_sums.h"
#include <cstring>
#include <distile/layers.h>

namespace distile {

/** The exponential, to two units in the last place, of -88 to 89; more than 88.4 is infinite, and NaN stays NaN. */
DISTILE_INLINE float exponential(float x) {
    // x = n ln 2 + r. Adding 1.5 * 2^23 rounds, and leaves n in the lowest bits.
    constexpr float shift = 0x1.8p23f, log2_e = 0x1.715476p0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float shifted = x * log2_e + shift, n = shifted - shift;
    const float r = x - n * ln2_high - n * ln2_low;
    // The coefficients are those of Cephes' expf.
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    uint32_t bits = 0;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127) << 23;
    float power = 0;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

// Comparisons in this order keep NaN.
DISTILE_INLINE float at_least(float x, float low) {
    return x < low ? low : x;
}
DISTILE_INLINE float at_most(float x, float high) {
    return x > high ? high : x;
}

DISTILE_INLINE float one_plus_exponential_of_minus(float x) {
    return 1 + exponential(-at_most(at_least(x, -89), 87));
}

/** The error function, computed as in generators/epilogue.cpp. */
DISTILE_INLINE float error_function(float value) {
    const float x = at_most(at_least(value, -4.1f), 4.1f), square = x * x;
    float p = -2.72614225801306e-10f;
    p = p * square + 2.77068142495902e-08f;
    p = p * square + -2.10102402082508e-06f;
    p = p * square + -5.69250639462346e-05f;
    p = p * square + -7.34990630326855e-04f;
    p = p * square + -2.95459980854025e-03f;
    p = p * square + -1.60960333262415e-02f;
    float q = -1.45660718464996e-05f;
    q = q * square + -2.13374055278905e-04f;
    q = q * square + -1.68282697438203e-03f;
    q = q * square + -7.37332916720468e-03f;
    q = q * square + -1.42647390514189e-02f;
    return at_most(at_least(x * p / q, -1), 1);
}

/** The hyperbolic tangent, computed as in generators/epilogue.cpp. */
DISTILE_INLINE float hyperbolic_tangent(float value) {
    const float x = at_most(at_least(value, -9), 9), square = x * x;
    float p = -2.76076847742355e-16f;
    p = p * square + 2.00018790482477e-13f;
    p = p * square + -8.60467152213735e-11f;
    p = p * square + 5.12229709037114e-08f;
    p = p * square + 1.48572235717979e-05f;
    p = p * square + 6.37261928875436e-04f;
    p = p * square + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * square + 1.18534705686654e-04f;
    q = q * square + 2.26843463243900e-03f;
    q = q * square + 4.89352518554385e-03f;
    return at_most(at_least(x * p / q, -1), 1);
}

#define AT_LEAST(x, low) at_least(x, low)
#define LIMIT(x, low, high) at_most(at_least(x, low), high)
#define ONE_PLUS_EXP_MINUS(x) one_plus_exponential_of_minus(x)
#define ERF(x) error_function(x)
#define TANH(x) hyperbolic_tangent(x)
#define KEEP_NAN(x, value) (value)
#define CHOOSE(condition, value, other) ((condition) ? (value) : (other))
template<distile_activation kind> DISTILE_INLINE float activated(float x, [[maybe_unused]] float slope) {
    switch (kind) {
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        return value;
        DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
    }
    return x;
}
#undef CHOOSE
#undef KEEP_NAN
#undef TANH
#undef ERF
#undef ONE_PLUS_EXP_MINUS
#undef LIMIT
#undef AT_LEAST

template<distile_activation kind> DISTILE_INLINE void activate_all(float slope, int64_t count, float *values) {
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        values[i] = activated<kind>(values[i], slope);
    }
}

DISTILE_INLINE void activate_channels(const Activation &activation, int64_t count, float *values) {
    switch (activation.function) {
#define DISTILE_ROW(number, name, NAME, value, gradient)                                                               \
    case DISTILE_ACTIVATION_##NAME:                                                                                    \
        return activate_all<DISTILE_ACTIVATION_##NAME>(activation.slope, count, values);
        DISTILE_ACTIVATIONS(DISTILE_ROW)
#undef DISTILE_ROW
    }
}

DISTILE_INLINE void add_channels(const float *a, const float *b, int64_t count, float *to) {
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        to[i] = a[i] + b[i];
    }
}

DISTILE_INLINE void multiply_channels(const float *a, const float *b, int64_t count, float *to) {
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        to[i] = a[i] * b[i];
    }
}

DISTILE_INLINE void maximize_channels(const float *a, const float *b, int64_t count, float *to) {
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        // NaN if either is.
        to[i] = a[i] > b[i] || __builtin_isnan(a[i]) ? a[i] : b[i];
    }
}

DISTILE_INLINE void divide_channels(float by, int64_t count, float *values) {
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        values[i] /= by;
    }
}

DISTILE_INLINE void add_moments(const float *from, int64_t count, double *sums, double *squares) {
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        const double value = from[i];
        sums[i] += value;
        squares[i] += value * value;
    }
}

DISTILE_INLINE void standardize_channels(const float *from, int64_t count, const ChannelNorm &norm, float *to) {
    const float *const mean = norm.mean, *const factor = norm.factor, *const summand = norm.summand;
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        to[i] = (from[i] - mean[i]) * factor[i] + summand[i];
    }
}

/** In the order of sum_terms(). */
DISTILE_INLINE float dot_channels(const float *a, const float *b, int64_t count) {
    constexpr int64_t lanes = 64;
    float sums[lanes] = {};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    for (int64_t lane = 0; i + lane < count; lane++) {
        sums[lane] += a[i + lane] * b[i + lane];
    }
    for (int64_t half = lanes / 2; half > 0; half /= 2) {
        for (int64_t lane = 0; lane < half; lane++) {
            sums[lane] += sums[lane + half];
        }
    }
    return sums[0];
}

}  // namespace distile

// NOLINTBEGIN(bugprone-macro-parentheses): an attribute stands without parentheses.
/** The table of these loops, compiled with the target attribute of a level. */
#define DISTILE_CHANNEL_LOOPS(target)                                                                                  \
    target void activate_of_level(const Activation &activation, int64_t count, float *values) {                        \
        activate_channels(activation, count, values);                                                                  \
    }                                                                                                                  \
    target void add_of_level(const float *a, const float *b, int64_t count, float *to) {                               \
        add_channels(a, b, count, to);                                                                                 \
    }                                                                                                                  \
    target void multiply_of_level(const float *a, const float *b, int64_t count, float *to) {                          \
        multiply_channels(a, b, count, to);                                                                            \
    }                                                                                                                  \
    target void maximize_of_level(const float *a, const float *b, int64_t count, float *to) {                          \
        maximize_channels(a, b, count, to);                                                                            \
    }                                                                                                                  \
    target void divide_of_level(float by, int64_t count, float *values) {                                              \
        divide_channels(by, count, values);                                                                            \
    }                                                                                                                  \
    target void add_moments_of_level(const float *from, int64_t count, double *sums, double *squares) {                \
        add_moments(from, count, sums, squares);                                                                       \
    }                                                                                                                  \
    target void standardize_of_level(const float *from, int64_t count, const ChannelNorm &norm, float *to) {           \
        standardize_channels(from, count, norm, to);                                                                   \
    }                                                                                                                  \
    target float dot_of_level(const float *a, const float *b, int64_t count) {                                         \
        return dot_channels(a, b, count);                                                                              \
    }                                                                                                                  \
    constexpr ChannelLoops channel_loops = {activate_of_level,    add_of_level,    multiply_of_level,                  \
                                            maximize_of_level,    divide_of_level, add_moments_of_level,               \
                                            standardize_of_level, dot_of_level};
// NOLINTEND(bugprone-macro-parentheses)

#endif
