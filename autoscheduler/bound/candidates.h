/** \file
 * The points of a space that are legal for an operator.
 */
#ifndef DISTILE_CANDIDATES_H
#define DISTILE_CANDIDATES_H

#include "plans/operator.h"
#include "schedules/space.h"
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace distile {

/** The space of a backend for a problem. Throws FileError where there is no such backend. */
const Space &space_of(const std::string &backend, const Problem &problem = {});

/** What the constraints of a backend's space depend on, without building the operator: the facts are the same that
 * recognise_masked_operator() finds in its pipeline. Lanes and registers are a CPU's. */
Problem problem_of(const Operator &op, const std::string &backend, int lanes, int registers);

/** A point of a space in few bytes: for every knob, in the space's order, which of its values it takes. */
struct PackedTheta {
    std::array<uint8_t, 16> choices{};

    bool operator==(const PackedTheta &other) const {
        return choices == other.choices;
    }
    bool operator<(const PackedTheta &other) const {
        return choices < other.choices;
    }
};

Theta unpack(const Space &space, const PackedTheta &point);

/** The space with some knobs held at one value, which need not be among those that it lists. */
Space restrict_space(const Space &space, const Theta &held);

/** Calls `visit` for every legal point of a space, in the order of their choices. */
void for_each_legal(const Space &space, const Problem &problem, const std::function<void(const PackedTheta &)> &visit);

/** All legal points. Throws FileError if there is none, and says why if a single knob is the cause. */
std::vector<PackedTheta> legal_points(const Space &space, const Problem &problem);

/** Throws the same FileError if a single knob is the cause, without walking the space. */
void check_for_legal_points(const Space &space, const Problem &problem);

/** The number of points of a space, legal or not. */
double all_points(const Space &space);

}  // namespace distile

#endif
