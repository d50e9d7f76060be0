#include "space.h"
#include <algorithm>

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
        if (found->second == 0 && std::count(knob.values.begin(), knob.values.end(), 0) == 0) {
            return "a theta must have at least 1 for the knob '" + knob.name + "'";
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
