/** \file
 * How far results may be from the reference, by type: |error| <= rounding * |result| + accumulation * scale. The scale
 * is what the sums are judged by: the largest of them, or the sum of the absolute values of all that is added up.
 */
#ifndef DISTILE_ERROR_BOUNDS_H
#define DISTILE_ERROR_BOUNDS_H

#include <cmath>
#include <distile/distile.h>

namespace distile {

struct ErrorBound {
    distile_dtype dtype;
    /** Of the one rounding of the result to its type, relative: half a unit in the last place. float32 has none of its
     * own, because what is accumulated has that type. */
    double rounding;
    /** The same below the least normal number, absolute. */
    double subnormal;
    /** Of the sums in float32, in whatever order. */
    double accumulation;
};

constexpr ErrorBound error_bounds[] = {
    {DISTILE_FLOAT32, 0, 0, 1e-5},
    {DISTILE_FLOAT16, 0x1p-11, 0x1p-25, 1e-5},
    {DISTILE_BFLOAT16, 0x1p-8, 0x1p-134, 1e-5},
};

/** The largest error of a result that should be `result`, exactly. */
inline double error_bound(distile_dtype dtype, double result, double scale) {
    for (const ErrorBound &bound : error_bounds) {
        if (bound.dtype == dtype) {
            // What accumulation moves beyond the next number moves the rounding, too.
            const double accumulated = bound.accumulation * scale;
            return bound.rounding * (std::abs(result) + accumulated) + bound.subnormal + accumulated;
        }
    }
    return 0;
}

}  // namespace distile

#endif
