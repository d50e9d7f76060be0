#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/code_choice.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include "plans/tensor_core.h"
#include "plans/two_four.h"

namespace distile {

const Space &space_of(const Plan &plan, const PlanVariant &variant) {
    if (variant.language == Language::DotProduct) {
        return dot_product_space(dot_products_of(plan.op, plan.features()).value());
    }
    if (variant.language == Language::TensorCore) {
        return tensor_core_space(tensor_cores_of(plan), facts_of(plan.op));
    }
    Problem problem = problem_of(plan.op, plan.backend, 1, 0);
    problem.skips_zeros = variant.language == Language::Nonzeros;
    problem.reads_bitmap = variant.language == Language::Bitmap;
    if (variant.language == Language::TwoFour) {
        problem.sparse_cores = tensor_cores_of(plan);
    }
    return space_of(plan.backend, problem);
}

void check_buildable(const Plan &plan, const PlanVariant &variant) {
    const std::string where = "the plan '" + plan.name + "', variant " + quote(variant.name) + ": ";
    const std::string why_not = variant.language == Language::TensorCore
                                    ? why_not_on_tensor_cores(plan.op, tensor_cores_of(plan))
                                : variant.language == Language::DotProduct ? why_no_dot_products(plan.op)
                                : variant.language == Language::Nonzeros   ? why_no_nonzeros(plan.op)
                                : variant.language == Language::Bitmap     ? why_no_bitmap(plan.op)
                                : variant.language == Language::TwoFour    ? why_no_two_four(plan.op)
                                                                           : "";
    if (!why_not.empty()) {
        throw FileError(where + why_not);
    }
    const Vectors vectors = bound_backend(plan.backend).vectors_of(plan.target);
    Problem problem = problem_of(plan.op, plan.backend, vectors.lanes, vectors.registers);
    problem.channel_block = plan.channel_block(variant);
    const std::string illegal = space_of(plan, variant).why_illegal(variant.theta, problem);
    if (!illegal.empty()) {
        throw FileError(where + "the schedule is not legal for this operator and target: " + illegal);
    }
}

void check_buildable(const Plan &plan) {
    for (const PlanVariant &variant : plan.variants) {
        check_buildable(plan, variant);
    }
}

}  // namespace distile
