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
};

constexpr ErrorBound error_bounds[] = {
    {DISTILE_FLOAT32, 0, 0, 1e-5},
    {DISTILE_FLOAT16, 0x1p-11, 0x1p-25, 1e-5},
    {DISTILE_BFLOAT16, 0x1p-8, 0x1p-134, 1e-5},
};

/** The largest allowed error for the exact result `result`. */
inline double error_bound(distile_dtype dtype, double result, double scale) {
    for (const ErrorBound &bound : error_bounds) {
        if (bound.dtype == dtype) {
            // Accumulation errors beyond the next number change the rounding too.
            const double accumulated = bound.accumulation * scale;
            return bound.rounding * (std::abs(result) + accumulated) + bound.subnormal + accumulated;
        }
    }
    return 0;
}

}  // namespace distile

#endif
