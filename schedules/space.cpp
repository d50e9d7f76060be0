#include "schedules/space.h"
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
            return "the knob '" + knob.name + "' is 0; it must be at least 1";
        }
    }
    for (const auto &[name, value] : theta) {
        bool known = false;
        for (const Knob &knob : knobs) {
            known = known || knob.name == name;
        }
        if (!known) {
            return "there is no knob '" + name + "' (there are " + known_knobs() + ")";
        }
    }
    for (const Constraint &constraint : constraints) {
        if (!constraint.holds(theta, problem)) {
            return "a schedule must have " + constraint.meaning;
        }
    }
    return "";
}

std::string Space::known_knobs() const {
    std::string names;
    for (const Knob &knob : knobs) {
        names.append(names.empty() ? "" : ", ").append(knob.name);
    }
    return names;
}

Constraint one_of(const Knob &knob) {
    std::string values;
    for (const int value : knob.values) {
        values.append(values.empty() ? "" : ", ").append(std::to_string(value));
    }
    return {"a value of " + knob.name + " among " + values,
            [knob](const Theta &theta, const Problem &) {
                return std::count(knob.values.begin(), knob.values.end(), theta.at(knob.name)) != 0;
            },
            {knob.name}};
}

int value_of(const Theta &theta, const char *knob) {
    const auto found = theta.find(knob);
    return found == theta.end() ? 0 : found->second;
}

std::string extents_of(const Theta &theta, const char *first, const char *second) {
    return std::to_string(value_of(theta, first)) + " x " + std::to_string(value_of(theta, second));
}

std::string count_of(const Theta &theta, const char *knob, const std::string &noun) {
    const int number = value_of(theta, knob);
    return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace distile
