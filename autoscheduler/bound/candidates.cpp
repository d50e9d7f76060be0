#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/bound_backend.h"
#include "plans/operator_schema.h"
#include <algorithm>
#include <map>

namespace distile {

namespace {

/** Walks the product of the values of all knobs, and turns back as soon as the chosen knobs violate a constraint. It
 * evaluates a constraint once for every combination of the values of the constraint's own knobs. */
class Walk {
public:
    Walk(const Space &space, const Problem &problem, const std::function<void(const PackedTheta &)> &visit)
        : space_(space), problem_(problem), visit_(visit), checks_(space.knobs.size()) {
        for (const std::vector<Constraint> *constraints : {&space.constraints, &space.distinct}) {
            for (const Constraint &constraint : *constraints) {
                add(constraint);
            }
        }
    }

    void choose(size_t knob) {
        if (knob == space_.knobs.size()) {
            visit_(point_);
            return;
        }
        for (size_t choice = 0; choice < space_.knobs[knob].values.size(); choice++) {
            point_.choices[knob] = static_cast<uint8_t>(choice);
            if (std::all_of(checks_[knob].begin(), checks_[knob].end(), [&](Check &check) { return holds(check); })) {
                choose(knob + 1);
            }
        }
    }

private:
    enum Answer : uint8_t { Unknown, Holds, Fails };

    struct Check {
        const Constraint *constraint;
        std::vector<size_t> knobs, strides; /**< In the order of their names. */
        std::vector<Answer> answers;        /**< By the choices of its knobs. */
        Theta theta; /**< Its knobs. Making a map for each combination would take the most time. */
    };

    void add(const Constraint &constraint) {
        Check check{&constraint, {}, {}, {}, {}};
        std::map<std::string, size_t> knobs;
        size_t combinations = 1, last = 0;
        for (size_t knob = 0; knob < space_.knobs.size(); knob++) {
            const std::vector<std::string> &names = constraint.knobs;
            if (names.empty() || std::find(names.begin(), names.end(), space_.knobs[knob].name) != names.end()) {
                knobs[space_.knobs[knob].name] = knob;
                last = knob;
            }
        }
        for (const auto &[name, knob] : knobs) {
            check.theta[name] = 0;
            check.knobs.push_back(knob);
            check.strides.push_back(combinations);
            combinations *= space_.knobs[knob].values.size();
        }
        check.answers.resize(combinations, Unknown);
        checks_[last].push_back(std::move(check));
    }

    const Space &space_;
    const Problem &problem_;
    const std::function<void(const PackedTheta &)> &visit_;
    std::vector<std::vector<Check>> checks_; /**< By the last of their knobs. */
    PackedTheta point_;

    bool holds(Check &check) const {
        size_t index = 0;
        for (size_t i = 0; i < check.knobs.size(); i++) {
            index += check.strides[i] * point_.choices[check.knobs[i]];
        }
        Answer &answer = check.answers[index];
        if (answer == Unknown) {
            size_t i = 0;
            for (auto &[name, value] : check.theta) {
                const size_t knob = check.knobs[i++];
                value = space_.knobs[knob].values[point_.choices[knob]];
            }
            answer = check.constraint->holds(check.theta, problem_) ? Holds : Fails;
        }
        return answer == Holds;
    }
};

/** The constraint that no point of a space satisfies because of a single knob; "" if there is none. */
std::string missing_in_all(const Space &space, const Problem &problem) {
    for (const Constraint &constraint : space.constraints) {
        for (const Knob &knob : space.knobs) {
            if (constraint.knobs == std::vector<std::string>{knob.name} &&
                std::none_of(knob.values.begin(), knob.values.end(), [&](int value) {
                    return constraint.holds({{knob.name, value}}, problem);
                })) {
                return constraint.meaning;
            }
        }
    }
    return "";
}

[[noreturn]] void refuse_all(const Space &space, const std::string &missing) {
    std::string held;
    for (const Knob &knob : space.knobs) {
        if (knob.values.size() == 1) {
            held += (held.empty() ? " with " : ", ") + knob.name + "=" + std::to_string(knob.values[0]);
        }
    }
    throw FileError("no schedule" + held + " is legal for this operator" +
                    (missing.empty() ? "" : ": none has " + missing));
}

}  // namespace

const Space &space_of(const std::string &backend, const Problem &problem) {
    return bound_backend(backend).space(problem);
}

Problem problem_of(const Operator &op, const std::string &backend, int lanes, int registers) {
    OperatorFacts facts = facts_of(op);
    facts.channel_block = get_backend(backend).layouts.front().channel_block;
    return bound_backend(backend).problem(facts, lanes, registers);
}

Theta unpack(const Space &space, const PackedTheta &point) {
    Theta theta;
    for (size_t knob = 0; knob < space.knobs.size(); knob++) {
        theta[space.knobs[knob].name] = space.knobs[knob].values[point.choices[knob]];
    }
    return theta;
}

Space restrict_space(const Space &space, const Theta &held) {
    Space result = space;
    for (const auto &[name, value] : held) {
        const auto knob = std::find_if(result.knobs.begin(), result.knobs.end(),
                                       [name = name](const Knob &candidate) { return candidate.name == name; });
        if (knob == result.knobs.end()) {
            throw FileError("there is no knob '" + name + "' (there are " + space.known_knobs() + ")");
        }
        knob->values = {value};
    }
    return result;
}

void for_each_legal(const Space &space, const Problem &problem, const std::function<void(const PackedTheta &)> &visit) {
    if (space.knobs.size() > std::tuple_size_v<decltype(PackedTheta::choices)>) {
        throw FileError("the space has " + std::to_string(space.knobs.size()) + " knobs; at most " +
                        std::to_string(std::tuple_size_v<decltype(PackedTheta::choices)>) + " can be ranked");
    }
    Walk(space, problem, visit).choose(0);
}

std::vector<PackedTheta> legal_points(const Space &space, const Problem &problem) {
    std::vector<PackedTheta> points;
    for_each_legal(space, problem, [&](const PackedTheta &point) { points.push_back(point); });
    if (points.empty()) {
        refuse_all(space, missing_in_all(space, problem));
    }
    return points;
}

void check_for_legal_points(const Space &space, const Problem &problem) {
    const std::string missing = missing_in_all(space, problem);
    if (!missing.empty()) {
        refuse_all(space, missing);
    }
}

double all_points(const Space &space) {
    double product = 1;
    for (const Knob &knob : space.knobs) {
        product *= static_cast<double>(knob.values.size());
    }
    return product;
}

}  // namespace distile
