/** \file
 * A backend's space of schedules, declared once: the knobs, the values that they may take, and what
 * makes a combination legal. A theta is one point of it.
 */
#ifndef DISTILE_SCHEDULES_SPACE_H
#define DISTILE_SCHEDULES_SPACE_H

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace distile {

/** One point in a space: the value of every knob by name. */
using Theta = std::map<std::string, int>;

/** The facts of an operator and a target that constraints ask for. Extents of the reduction and of
 * the output channels as the kernel sees them. */
struct Problem {
    int in_channels, out_channels, kernel_h, kernel_w;
    int channel_block;    /**< Output channels in a block of the canonical weight layout. */
    int vector_lanes;     /**< Lanes of a vector register for the operator's data type. */
    int vector_registers; /**< Vector registers that the target has. */
};

struct Knob {
    std::string name;
    std::string meaning;
    std::vector<int> values; /**< What a search tries; a plan may hold any other positive value. */
};

struct Constraint {
    std::string meaning; /**< Completes the sentence "a theta must have ...". */
    std::function<bool(const Theta &, const Problem &)> holds;
};

struct Space {
    std::string backend;
    std::vector<Knob> knobs;
    std::vector<Constraint> constraints;

    /** "" if the theta has exactly the knobs of this space and satisfies every constraint, otherwise a
     * sentence that says what is wrong. */
    std::string why_illegal(const Theta &theta, const Problem &problem) const;
};

}  // namespace distile

#endif
