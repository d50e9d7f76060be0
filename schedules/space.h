/** \file
 * A backend's space of schedules, declared once: the knobs, the values that they may take, what makes a combination
 * legal, and how it reads in words. A theta is one point of it.
 */
#ifndef DISTILE_SCHEDULES_SPACE_H
#define DISTILE_SCHEDULES_SPACE_H

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace distile {

inline int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/** One point in a space: the value of every knob by name. */
using Theta = std::map<std::string, int>;

/** The facts of an operator that schedules depend on. Where there are phases, the kernel is that of the phase with the
 * most taps. */
struct OperatorFacts {
    /** The input channels of one group, which an output channel reads, and the output channels of all groups. */
    int in_channels = 0, out_channels = 0;
    int groups = 1;
    bool depthwise = false; /**< Each output channel reads the input channel of the same index, alone in its group. */
    int kernel_h = 1, kernel_w = 1;
    int stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
    int scale_h = 1, scale_w = 1; /**< Output pixels, each of its own phase, that a virtual pixel stands for. */
    int channel_block = 1;        /**< Output channels in a block of the canonical weight layout. */
    int bytes_per_element = 4;    /**< Of the activations. All sums are float32. */
    int bytes_per_weight = 4;     /**< As they are packed. */

    int phases() const {
        return scale_h * scale_w;
    }
    /** Whether a CPU copies all of the input that it reads, to convert it. */
    bool stages_all() const {
        return bytes_per_element < 4 && !depthwise;
    }
};

/** What constraints depend on: the operator, and the registers of its target. */
struct Problem : OperatorFacts {
    int vector_lanes = 1;     /**< Lanes of a vector register, or of a vector load, for float32. */
    int vector_registers = 0; /**< Vector registers that a CPU has. */
};

struct Knob {
    std::string name;
    std::string meaning;
    /** What a search tries. A plan may hold any other positive value, and 0 where that is among them. */
    std::vector<int> values;
};

struct Constraint {
    std::string meaning; /**< Completes the sentence "a theta must have ...". */
    std::function<bool(const Theta &, const Problem &)> holds;
    std::vector<std::string> knobs; /**< All that `holds` depends on, so that a search need not try the others; none
                                     * stands for all. */
};

struct Space {
    std::vector<Knob> knobs;
    std::vector<Constraint> constraints;
    /** A theta in words. Knobs that it lacks count as 0. */
    std::string (*describe)(const Theta &theta);

    /** "" if the theta has exactly the knobs of this space and satisfies every constraint, otherwise a
     * sentence that says what is wrong. */
    std::string why_illegal(const Theta &theta, const Problem &problem) const;
    /** The names of all knobs, for messages. */
    std::string known_knobs() const;
};

// For descriptions.

/** The value of a knob; 0 if the theta lacks it. */
int value_of(const Theta &theta, const char *knob);
/** The values of two knobs, for instance "2 x 3". */
std::string extents_of(const Theta &theta, const char *first, const char *second);
/** The value of a knob and what it counts, for instance "1 task" or "2 tasks". */
std::string count_of(const Theta &theta, const char *knob, const std::string &noun);

}  // namespace distile

#endif
