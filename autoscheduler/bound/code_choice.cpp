#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/bound_backend.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/nonzeros.h"
#include "plans/tensor_core.h"
#include "plans/two_four.h"
#include <algorithm>

namespace distile {

namespace {

bool is_float32(const Operator &op) {
    return op.dtype().dtype == DISTILE_FLOAT32;
}

/** The first that is true, of why code for tensor cores cannot be had for a target. */
std::string why_no_tensor_cores(const Operator &op, const Backend &backend, const std::string &features) {
    const std::string of_operator = why_not_on_tensor_cores(op, tensor_cores_of(features));
    return of_operator.empty() ? backend.why_no_code(Language::TensorCore, op.dtype(), features) : of_operator;
}

/** The target of code for zeros among the weights, if there is some. */
std::string with_own_weights(const Operator &op, const std::string &target, const std::string &features) {
    return with_two_four(op, with_bitmap(op, with_nonzeros(op, target, features), features), features);
}

}  // namespace

std::string why_not_on_tensor_cores(const Operator &op, TensorCores cores) {
    return runs_on_tensor_cores(op, cores)
               ? ""
               : "there is no kernel for tensor cores for this operator: they run convolutions, "
                 "except depthwise ones, and linear layers without scales, with channels of each group that are "
                 "multiples of 8, or channels that are multiples of 16 if they are quantized, and a kernel of at most "
                 "16 x 16, and attention and its products with heads of at most 128 channels, but none in float8; "
                 "those of float32, and the products alone, have code for compute capability 8.0 only";
}

Language language_of(const Operator &op, const CodeChoice &choice) {
    const Backend &backend = backend_of_target(choice.target);
    const std::string features = backend.features_of(choice.target);
    const bool on_cpu = &backend == &cpu_backend(), in_float32 = is_float32(op) && choice.math == Math::Float32;
    if (skips_zeros(op) && (on_cpu || in_float32) &&
        backend.why_no_code(Language::Nonzeros, op.dtype(), features).empty()) {
        return Language::Nonzeros;
    }
    if (reads_bitmap(op) && backend.why_no_code(Language::Bitmap, op.dtype(), features).empty()) {
        return Language::Bitmap;
    }
    if (keeps_two_of_four(op) && backend.why_no_code(Language::TwoFour, op.dtype(), features).empty()) {
        return Language::TwoFour;
    }
    if (why_no_dot_products(op).empty() && backend.why_no_code(Language::DotProduct, op.dtype(), features).empty()) {
        return Language::DotProduct;
    }
    const bool fits = !is_float32(op) || choice.math == Math::TF32;
    return fits && why_no_tensor_cores(op, backend, features).empty() ? Language::TensorCore : Language::Halide;
}

std::string target_for(const Operator &op, const DeviceProfile &device) {
    const std::string target = with_dot_products(op, halide_target(device), device.features);
    return with_own_weights(op, target, device.features);
}

std::string target_for(const Operator &op, const DeviceProfile &device, const Platform &platform) {
    const std::string target = with_dot_products(op, halide_target(device, platform), device.features);
    return with_own_weights(op, target, device.features);
}

CodeChoice choose_code(const Operator &op, const DeviceProfile &device, const std::string &target, Math math) {
    if (math == Math::TF32 && !is_float32(op)) {
        throw FileError("only float32 operators can be multiplied in TF32, but the type of '" + op.name + "' is " +
                        op.dtype().name + ": leave --math out");
    }
    const Backend &backend = get_backend(device.backend);
    const std::vector<std::string> has = bound_backend(device.backend).tensor_core_targets(device.features);
    CodeChoice choice{target.empty() ? target_for(op, device) : target, math};
    if (target.empty() && language_of(op, choice) != Language::Bitmap && language_of(op, choice) != Language::TwoFour) {
        const auto best = std::find_if(has.begin(), has.end(), [&](const std::string &each) {
            return language_of(op, {each, math}) == Language::TensorCore;
        });
        choice.target = best == has.end() ? choice.target : *best;
    }
    const std::string features = backend.features_of(choice.target);
    if (language_of(op, choice) == Language::DotProduct || language_of(op, choice) == Language::Nonzeros ||
        language_of(op, choice) == Language::Bitmap) {
        return choice;
    }
    if (language_of(op, choice) == Language::TensorCore || language_of(op, choice) == Language::TwoFour) {
        if (std::none_of(has.begin(), has.end(),
                         [&](const std::string &other) { return backend.features_of(other) == features; })) {
            throw FileError("the device '" + device.name + "' (" + device.features +
                            ") cannot run code for the target '" + choice.target + "'");
        }
        return choice;
    }
    if (math == Math::TF32) {
        throw FileError("nothing can be multiplied in TF32: " + why_no_tensor_cores(op, backend, features));
    }
    const std::string why_not = backend.why_no_code(Language::Halide, op.dtype(), features);
    const std::string no_dot_products = why_no_dot_products(op);
    if (!why_not.empty() && !no_dot_products.empty() && (op.is_quantized() || &backend == &cpu_backend())) {
        throw FileError("the target '" + choice.target + "': " + why_not + ", and " + no_dot_products);
    }
    if (!why_not.empty() && op.is_quantized()) {
        throw FileError("the target '" + choice.target + "': " + why_not + ", and " +
                        why_no_tensor_cores(op, backend, features) + ": take the target " + target_for(op, device));
    }
    if (!why_not.empty()) {
        throw FileError("the target '" + choice.target + "': " + why_not + ", and " +
                        (is_float32(op) ? "tensor cores multiply float32 operators in TF32: allow it with --math tf32"
                                        : why_no_tensor_cores(op, backend, features)));
    }
    return choice;
}

Workload workload_of(const Operator &op, const DeviceProfile &device, const CodeChoice &choice) {
    Workload workload = workload_of(op, device);
    Problem &problem = workload.problem;
    const Language language = language_of(op, choice);
    if (language == Language::DotProduct) {
        problem.dot_products = dot_products_of(op, backend_of_target(choice.target).features_of(choice.target));
    } else if (language == Language::Nonzeros) {
        const ProductOfNonzeros product =
            product_of_nonzeros(op, backend_of_target(choice.target).features_of(choice.target));
        problem.skips_zeros = true;
        problem.nonzero_channels = product.channels;
        problem.nonzero_instructions = product.instructions;
    } else if (language == Language::Bitmap) {
        problem.reads_bitmap = true;
    } else if (language == Language::TwoFour) {
        problem.sparse_cores = tensor_cores_of(backend_of_target(choice.target).features_of(choice.target));
    } else if (language == Language::TensorCore) {
        problem.tensor_cores = tensor_cores_of(make_plan(op.name, op, get_backend(device.backend), choice));
    }
    if (language != Language::Halide && language != Language::Nonzeros) {
        problem.bytes_per_input = problem.bytes_per_weight = problem.bytes_per_element;
    }
    return workload;
}

Plan make_plan(const std::string &name, const Operator &op, const Backend &backend, const CodeChoice &choice) {
    Plan plan = make_plan(name, op, backend, choice.target);
    plan.math = choice.math;
    if (const BackendLayout *layout = layout_for(backend, language_of(op, choice), op.dtype())) {
        plan.layout = layout->name;
    }
    return plan;
}

void add_variant(Plan &plan, const std::string &name, const Theta &theta, bool dense) {
    plan.variants.push_back({name, theta, dense, "", language_of(plan.op, {plan.target, plan.math})});
}

}  // namespace distile
