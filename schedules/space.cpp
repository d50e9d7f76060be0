#include "space.h"

namespace distile {

std::string Space::why_illegal(const Theta &theta, const Problem &problem) const {
    for (const Knob &knob : knobs) {
        auto found = theta.find(knob.name);
        if (found == theta.end()) {
            return "the knob '" + knob.name + "' (" + knob.meaning + ") is missing";
        }
        if (found->second < 0) {
            return "the knob '" + knob.name + "' is negative";
        }
    }
    for (const auto &[name, value] : theta) {
        bool known = false;
        for (const Knob &knob : knobs) {
            known = known || knob.name == name;
        }
        if (!known) {
            return "there is no knob '" + name + "' for the backend '" + backend + "'";
        }
    }
    for (const Constraint &constraint : constraints) {
        if (!constraint.holds(theta, problem)) {
            return "a theta must have " + constraint.meaning;
        }
    }
    return "";
}

}  // namespace distile
