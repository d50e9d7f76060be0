/** \file
 * Where two tensors differ. Pure functions over memory that the caller owns.
 */
#ifndef DISTILE_DIFFERENCE_H
#define DISTILE_DIFFERENCE_H

#include "levels.h"
#include <cstdint>

namespace distile {

/** The inner loop. All levels give the same results. */
struct DifferenceLevel {
    const char *name;

    /** Bit i of `bits`, of ceil(count / 64) words: whether |a[i] - b[i]| > threshold or is not a number. */
    void (*compare)(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits);
};

Levels<DifferenceLevel> supported_difference_levels();

}  // namespace distile

#endif
