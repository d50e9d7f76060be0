/** \file
 * Sums over a row and its normalization, inlined into each level, where the compiler vectorizes them. The order of the
 * sums is the same in all.
 */
#ifndef DISTILE_ROW_SUMS_H
#define DISTILE_ROW_SUMS_H

#include "runtime/cpu/simd/simd_level.h"

// A function for more instructions takes in others only if it must.
#define DISTILE_INLINE __attribute__((always_inline)) inline

// Before a loop none of whose iterations reads what another one writes.
#ifdef __clang__
#define DISTILE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DISTILE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace distile {

/** The sum of term(x) over a row, in float32. */
template<typename Term> DISTILE_INLINE float sum_terms(const float *from, int64_t count, const Term &term) {
    // As many as the registers of the widest vectors need to hide the latency of an addition.
    constexpr int64_t lanes = 64;
    float sums[lanes] = {};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            sums[lane] += term(from[i + lane]);
        }
    }
    for (int64_t lane = 0; i + lane < count; lane++) {
        sums[lane] += term(from[i + lane]);
    }
    for (int64_t half = lanes / 2; half > 0; half /= 2) {
        for (int64_t lane = 0; lane < half; lane++) {
            sums[lane] += sums[lane + half];
        }
    }
    return sums[0];
}

DISTILE_INLINE float sum_differences(const float *from, int64_t count, float shift) {
    return sum_terms(
        from, count, [=](float x) __attribute__((always_inline)) { return x - shift; });
}

DISTILE_INLINE float sum_squares(const float *from, int64_t count, float shift, float mean) {
    return sum_terms(
        from, count, [=](float x) __attribute__((always_inline)) {
            const float deviation = x - shift - mean;
            return deviation * deviation;
        });
}

DISTILE_INLINE void normalize_row(const float *from, int64_t count, const RowNorm &norm, float *to) {
    const float shift = norm.shift, mean = norm.mean, factor = norm.factor;
    const float *const gamma = norm.gamma, *const beta = norm.beta;
    DISTILE_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        to[i] = (from[i] - shift - mean) * factor * gamma[i] + beta[i];
    }
}

}  // namespace distile

#endif
