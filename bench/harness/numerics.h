/** \file
 * How a row computes: the type of its tensors, and whether float32 factors may be rounded to TF32.
 */
#ifndef DISTILE_BENCH_NUMERICS_H
#define DISTILE_BENCH_NUMERICS_H

#include <distile/distile.h>
#include <string>

namespace distile::bench {

/** A row of the table of numerics. */
struct Numerics {
    const char *name; /**< In rows and results: "float32", "tf32", "float16" or "bfloat16". */
    distile_dtype dtype;
    distile_math math;

    /** float32 without TF32. */
    bool is_strict() const {
        return dtype == DISTILE_FLOAT32 && math == DISTILE_MATH_FLOAT32;
    }
    /** The allowed difference of our results from plain loops, relative to the largest value. */
    double tolerance() const;
    /** The allowed difference of a dense peer's results, which may round the parts of a split sum to the result's type.
     */
    double peer_tolerance() const;
};

/** Throws std::runtime_error if there are none of this name. */
const Numerics &find_numerics(const std::string &name);

}  // namespace distile::bench

#endif
