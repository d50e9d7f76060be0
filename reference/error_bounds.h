/** \file
 * Error bounds against the reference, by type: |error| <= rounding * |result| + accumulation * scale. The scale is the
 * largest sum, or the sum of the absolute values of all terms.
 */
#ifndef DISTILE_ERROR_BOUNDS_H
#define DISTILE_ERROR_BOUNDS_H

#include <cmath>
#include <distile/distile.h>

namespace distile {

struct ErrorBound {
    distile_dtype dtype;
    /** The relative error of rounding the result to its type: half a unit in the last place. 0 for float32, the type of
     * the sums. */
    double rounding;
    /** The absolute rounding error of subnormal results. */
    double subnormal;
    /** The error of float32 sums, in any order. */
    double accumulation;
    distile_math math = DISTILE_MATH_FLOAT32;
};

// TF32 keeps 10 bits of a mantissa. Inputs are truncated to them and weights rounded, so a product may be off by
// 2^-10 + 2^-11.
constexpr ErrorBound error_bounds[] = {
    {DISTILE_FLOAT32, 0, 0, 1e-5},
    {DISTILE_FLOAT16, 0x1p-11, 0x1p-25, 1e-5},
    {DISTILE_BFLOAT16, 0x1p-8, 0x1p-134, 1e-5},
    {DISTILE_FLOAT8_E4M3FN, 0x1p-4, 0x1p-10, 1e-5},
    {DISTILE_FLOAT8_E5M2, 0x1p-3, 0x1p-17, 1e-5},
    {DISTILE_FLOAT32, 0, 0, 2e-3, DISTILE_MATH_TF32},
};

/** The largest allowed error for the exact result `result`. `math` is how float32 numbers are multiplied. */
inline double error_bound(distile_dtype dtype, double result, double scale, distile_math math = DISTILE_MATH_FLOAT32) {
    for (const ErrorBound &bound : error_bounds) {
        if (bound.dtype == dtype && bound.math == math) {
            // Accumulation errors beyond the next number change the rounding too.
            const double accumulated = bound.accumulation * scale;
            return bound.rounding * (std::abs(result) + accumulated) + bound.subnormal + accumulated;
        }
    }
    return 0;
}

/** The relative error of the probabilities of attention where tensor cores multiply them in 16 bits: they are rounded
 * to the operator's type, by half of its last bit. Below float16's least normal number they are off by half of its
 * least one, which another half of a last bit of the larger probabilities outweighs. */
inline double probability_error(distile_dtype dtype) {
    switch (dtype) {
    case DISTILE_BFLOAT16:
        return 0x1p-8;
    case DISTILE_FLOAT16:
    case DISTILE_FLOAT32:
        return 0x1p-10;
    default:
        return 0;  // Tensor cores multiply no other type: any error is one too many.
    }
}

}  // namespace distile

#endif
