#include "buildable.h"
#include "bound_backend.h"
#include "candidates.h"

namespace distile {

void check_buildable(const Plan &plan, const PlanVariant &variant) {
    const std::string where = "the plan '" + plan.name + "', variant " + quote(variant.name) + ": ";
    if (!variant.is_generated()) {
        throw FileError(where + "its code is in '" + variant.source +
                        "', but this version builds code from Halide only");
    }
    const Vectors vectors = bound_backend(plan.backend).vectors_of(plan.target);
    Problem problem = problem_of(plan.op, plan.backend, vectors.lanes, vectors.registers);
    problem.channel_block = plan.channel_block(variant);
    const std::string illegal = space_of(plan.backend, problem).why_illegal(variant.theta, problem);
    if (!illegal.empty()) {
        throw FileError(where + "the theta is not legal for this operator and target: " + illegal);
    }
}

void check_buildable(const Plan &plan) {
    for (const PlanVariant &variant : plan.variants) {
        check_buildable(plan, variant);
    }
}

}  // namespace distile
