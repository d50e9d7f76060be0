/** \file
 * What a search knows of a schedule once it was measured.
 */
#ifndef DISTILE_MEASUREMENT_H
#define DISTILE_MEASUREMENT_H

#include "space.h"
#include <cstdint>
#include <string>
#include <vector>

namespace distile {

/** A time at a number of tiles: the median of the repeats, and their middle half. */
struct MeasuredTime {
    int64_t tiles = 0;
    double us = 0, low_us = 0, high_us = 0;
};

enum class Outcome {
    Ok,
    NotCompiled, /**< The compiler refused it, or took too long. */
    Crashed,
    TimedOut,
    OutOfMemory,
    WrongResult
};

/** A trial: one theta of one operator. */
struct Measurement {
    Theta theta;
    bool dense = false; /**< Over every tile of the image, as a dense candidate. */
    Outcome outcome = Outcome::Ok;
    std::string message;             /**< What went wrong, "" if nothing did. */
    std::vector<MeasuredTime> times; /**< By tiles, ascending. Empty unless the outcome is Ok. */
    double compile_s = 0, measure_s = 0;

    /** Microseconds for a number of tiles: interpolated as the dispatcher does it. */
    double at(int64_t tiles) const;
};

}  // namespace distile

#endif
