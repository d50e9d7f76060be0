/** \file
 * The autoscheduler plugin PolyKernel for masked operators. With a plan it applies one of its variants:
 *
 *     autoscheduler=PolyKernel autoscheduler.plan=FILE autoscheduler.variant=NAME_OR_INDEX
 *
 * to a pipeline that was built for the variant's granularity.
 *
 * Without one it takes the schedule that the analytical bound ranks first among all that are legal, for the pipeline's
 * granularity and the image size of its estimates. Both parameters may be left out:
 *
 *     autoscheduler=PolyKernel autoscheduler.density=.3 autoscheduler.device=FILE
 */
#include "Halide.h"
#include "autoscheduler/bound/rank.h"
#include "plans/plan.h"
#include "schedules/apply.h"
#include <optional>
#include <sstream>

namespace distile {

namespace {

using namespace Halide;

std::string param(const AutoschedulerParams &params, const std::string &name) {
    const auto found = params.extra.find(name);
    if (found == params.extra.end()) {
        throw CompileError(
            "PolyKernel: the parameter autoscheduler." + name +
            " is missing; autoscheduler.plan=FILE and autoscheduler.variant=NAME_OR_INDEX go together.\n");
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

Theta theta_of_plan(const Target &target, const AutoschedulerParams &params) {
    const Plan plan = read_plan(param(params, "plan"), Times::Drop);
    const std::string wanted = param(params, "variant");
    const PlanVariant *variant = plan.find(wanted);
    if (!variant) {
        throw CompileError("PolyKernel: the plan '" + plan.name + "' has no variant '" + wanted + "'.\n");
    }
    if (variant->language != Language::Halide) {
        throw CompileError("PolyKernel: the code of the variant '" + wanted + "' of the plan '" + plan.name +
                           "' is not from Halide.\n");
    }
    if (!can_use(target, Target(plan.target))) {
        throw CompileError("PolyKernel: the plan '" + plan.name + "' is for the target " + plan.target + ", not for " +
                           target.to_string() + ".\n");
    }
    return variant->theta;
}

/** The extent of a dimension of the output that the pipeline's author expects; 1 for one that the output lacks. */
int estimated_extent(const Func &output, int dimension) {
    if (dimension >= output.dimensions()) {
        return 1;
    }
    const Expr estimate = output.function().output_buffers()[0].extent_constraint_estimate(dimension);
    const std::optional<int64_t> extent =
        estimate.defined() ? Internal::as_const_int(Internal::simplify(estimate)) : std::nullopt;
    if (!extent || *extent < 1) {
        throw CompileError("PolyKernel: to choose a schedule without a plan, the output '" + output.name() +
                           "' needs constant estimates; dimension " + std::to_string(dimension) +
                           " has none. Set them with set_estimates().\n");
    }
    return static_cast<int>(*extent);
}

double density_of(const AutoschedulerParams &params) {
    const auto found = params.extra.find("density");
    if (found == params.extra.end()) {
        return .3;
    }
    std::istringstream stream(found->second);
    double density = 0;
    if (!(stream >> density) || !stream.eof() || !(density > 0 && density <= 1)) {
        throw CompileError("PolyKernel: autoscheduler.density is '" + found->second +
                           "', not a number above 0 and at most 1.\n");
    }
    return density;
}

const Backend &backend_of(const Target &target) {
    // Unlike plans, it schedules for CPUs of any architecture.
    const Backend &backend = backend_of_words(split_words(target.to_string()));
    if (!backend.target_word && target.has_gpu_feature()) {
        std::string known;
        for (const Backend *other : backends()) {
            known.append(known.empty() ? "" : " and ").append(other->display_name);
        }
        throw FileError("there are schedules for " + known + ", not for the target " + target.to_string());
    }
    return backend;
}

DeviceProfile device_of(const Backend &backend, const Target &target, const AutoschedulerParams &params) {
    const auto found = params.extra.find("device");
    DeviceProfile device = found != params.extra.end()
                               ? read_device_profile(found->second)
                               : generic_device_profile(backend.generic_profile(target.to_string()));
    if (device.backend != backend.name) {
        throw CompileError("PolyKernel: the device profile of '" + device.name + "' is for the backend \"" +
                           device.backend + "\", not for the target " + target.to_string() + ".\n");
    }
    return device;
}

/** The schedule that the bound ranks first, with given tiles. */
Theta best_theta(const Backend &backend, const Func &output, const Problem &problem, const Theta &tiles,
                 const Target &target, const AutoschedulerParams &params) {
    Workload workload;
    workload.device = device_of(backend, target, params);
    workload.problem = problem;
    workload.width = estimated_extent(output, 1);
    workload.height = estimated_extent(output, 2);
    workload.batch = estimated_extent(output, 3);
    workload.threads = workload.device.cores;
    RankOptions options;
    options.keep = 0;
    options.per_bucket = 1;
    options.held = tiles;
    return rank(workload, {density_bucket(workload, density_of(params))}, options).kept.front().theta;
}

void poly_kernel(const Pipeline &pipeline, const Target &target, const AutoschedulerParams &params,
                 AutoSchedulerResults *results) {
    const bool has_plan = params.extra.count("plan") != 0 || params.extra.count("variant") != 0;
    for (const auto &[name, value] : params.extra) {
        const bool of_plan = name == "plan" || name == "variant", of_bound = name == "density" || name == "device";
        if (!of_plan && !of_bound) {
            throw CompileError("PolyKernel: there is no parameter autoscheduler." + name + ".\n");
        }
        if (has_plan && of_bound) {
            throw CompileError("PolyKernel: autoscheduler." + name +
                               " chooses a schedule where there is no autoscheduler.plan; give one or the other.\n");
        }
    }
    try {
        const Backend &backend = backend_of(target);
        Theta theta = has_plan ? theta_of_plan(target, params) : Theta();
        if (is_token_operator(pipeline)) {
            TokenOperator op = recognise_token_operator(pipeline);
            if (!has_plan) {
                Theta held;
                if (target.has_gpu_feature()) {
                    held = {{"block_rows", op.block_rows}, {"block_keys", op.block_keys}};
                } else if (op.product == TokenProduct::Attention) {
                    held = {{"softmax_keys", op.softmax_keys}};
                }
                theta = best_theta(backend, op.output, problem_on(op, target), held, target, params);
            }
            results->schedule_source = apply_schedule(pipeline, op, theta, target);
        } else {
            MaskedOperator op = recognise_masked_operator(pipeline);
            if (!has_plan) {
                theta = best_theta(backend, op.output, problem_on(op, target),
                                   {{"tile_h", op.tile_h}, {"tile_w", op.tile_w}}, target, params);
            }
            results->schedule_source = apply_schedule(pipeline, op, theta, target);
        }
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
