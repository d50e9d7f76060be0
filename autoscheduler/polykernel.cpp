/** \file
 * The autoscheduler plugin PolyKernel: applies one variant of a plan to a masked operator.
 *
 *     autoscheduler=PolyKernel autoscheduler.plan=FILE autoscheduler.variant=NAME_OR_INDEX
 */
#include "Halide.h"
#include "cpu.h"
#include "cuda.h"
#include "plan.h"

namespace distile {

namespace {

using namespace Halide;

std::string param(const AutoschedulerParams &params, const std::string &name) {
    const auto found = params.extra.find(name);
    if (found == params.extra.end()) {
        throw CompileError("PolyKernel: the parameter autoscheduler." + name +
                           " is missing; it takes autoscheduler.plan=FILE and autoscheduler.variant=NAME_OR_INDEX.\n");
    }
    return found->second;
}

/** True if a target has all that a plan was made for, and no wider vectors. */
bool can_use(const Target &target, const Target &made_for) {
    for (int i = 0; i < Target::FeatureEnd; i++) {
        const auto feature = static_cast<Target::Feature>(i);
        if (made_for.has_feature(feature) && !target.has_feature(feature)) {
            return false;
        }
    }
    return target.arch == made_for.arch && target.natural_vector_size<float>() == made_for.natural_vector_size<float>();
}

void poly_kernel(const Pipeline &pipeline, const Target &target, const AutoschedulerParams &params,
                 AutoSchedulerResults *results) {
    for (const auto &[name, value] : params.extra) {
        if (name != "plan" && name != "variant") {
            throw CompileError("PolyKernel: there is no parameter autoscheduler." + name + ".\n");
        }
    }
    try {
        const Plan plan = read_plan(param(params, "plan"));
        const std::string wanted = param(params, "variant");
        const PlanVariant *variant = plan.find(wanted);
        if (!variant) {
            throw CompileError("PolyKernel: the plan '" + plan.name + "' has no variant '" + wanted + "'.\n");
        }
        if (!can_use(target, Target(plan.target))) {
            throw CompileError("PolyKernel: the plan '" + plan.name + "' is for the target " + plan.target +
                               ", not for " + target.to_string() + ".\n");
        }
        MaskedOperator op = recognise_masked_operator(pipeline);
        results->schedule_source = plan.backend == "cuda" ? apply_cuda_schedule(pipeline, op, variant->theta)
                                                          : apply_cpu_schedule(op, variant->theta, target);
        results->target = target;
        results->autoscheduler_params = params;
    } catch (const FileError &error) {
        throw CompileError(std::string("PolyKernel: ") + error.what() + ".\n");
    }
}

struct Registration {
    Registration() {
        Pipeline::add_autoscheduler("PolyKernel", poly_kernel);
    }
} registration;

}  // namespace

}  // namespace distile
