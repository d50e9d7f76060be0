/** \file
 * The result of measuring a schedule.
 */
#ifndef DISTILE_MEASUREMENT_H
#define DISTILE_MEASUREMENT_H

#include "schedules/space.h"
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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
    std::string message;             /**< What went wrong; "" if nothing did. */
    std::vector<MeasuredTime> times; /**< By tiles, ascending. Empty unless the outcome is Ok. */
    double compile_s = 0, measure_s = 0;
    double reference_us = 0; /**< The time of the search's reference kernel meanwhile: it shows drifts of the device. */
    std::string doubt;       /**< Why the times are doubtful; "" if they are not. */
    double elapsed_s = 0;    /**< Seconds that all runs of the search had taken by then. */

    bool ok() const {
        return outcome == Outcome::Ok;
    }
    /** Microseconds for a number of tiles: interpolated as by the dispatcher. Needs ok(). */
    double at(int64_t tiles) const;
};

/** The measurements of one log as if the device had always been as fast as in the median: each times the median of the
 * reference's times over its time meanwhile. Those without a reference stay as they are. */
std::vector<Measurement> without_drift(std::vector<Measurement> measured);

/** Whether what a compiler printed shows that a program, a library or room on the disk was missing: no schedule is at
 * fault then. */
bool blames_tools(const std::string &printed);

/** "ok", "not_compiled", ... as logs spell it. */
const char *outcome_name(Outcome outcome);

nlohmann::json to_json(const Measurement &measurement);
/** `where` names the place in messages. Throws FileError. */
Measurement parse_measurement(const nlohmann::json &json, const std::string &where);

}  // namespace distile

#endif
