#include "facts/kind_names.h"
#include "runtime/base/enumerators.h"
#include "runtime/dispatch/quantized_operator.h"
#include "runtime/dispatch/run.h"
#include "runtime/dispatch/time_table_file.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <chrono>
#include <cmath>

using namespace distile;

namespace {

/** Checks that this library can call a PolyKernel. */
distile_status check_polykernel(distile_context *context, const distile_polykernel &polykernel) {
    constexpr const char *call = "distile_kernel_create";
    if (polykernel.version != DISTILE_POLYKERNEL_VERSION) {
        return fail(
            context, DISTILE_ERROR_VERSION,
            "%s: the PolyKernel has version %u, but this library reads version %u; rebuild it with this version "
            "of distile",
            call, polykernel.version, DISTILE_POLYKERNEL_VERSION);
    }
    const OperatorKind *kind = find_operator_kind(raw(polykernel.kind));
    if (!kind) {
        return fail(context, DISTILE_ERROR_VERSION,
                    "%s: '%s' has the unknown operator kind %d; build it and this library with the same version of "
                    "distile",
                    call, polykernel.name, raw(polykernel.kind));
    }
    const std::string illegal = kind->why_illegal(polykernel.op);
    if (!illegal.empty()) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: '%s' cannot run: %s", call, polykernel.name,
                    illegal.c_str());
    }
    const std::string bad_types = why_types_illegal(polykernel);
    if (!bad_types.empty()) {
        return fail(context, DISTILE_ERROR_VERSION, "%s: this library cannot run '%s': %s", call, polykernel.name,
                    bad_types.c_str());
    }
    if (!is_enumerator(polykernel.math)) {
        return fail(context, DISTILE_ERROR_VERSION,
                    "%s: '%s' has the unknown math %d; build it and this library with the same version of distile",
                    call, polykernel.name, raw(polykernel.math));
    }
    for (int32_t i = 0; i < polykernel.num_variants; i++) {
        const distile_variant &variant = polykernel.variants[i];
        const WeightLayout *layout = kind->weights ? find_layout(variant.layout) : nullptr;
        if (kind->weights && !layout) {
            return fail(context, DISTILE_ERROR_VERSION,
                        "%s: the variant '%s' of '%s' reads the unknown weight layout %s", call, variant.name,
                        polykernel.name, variant.layout);
        }
        const bool of_type = layout && is_quantized(*layout) == is_quantized(polykernel);
        if (layout && (!of_type || !kind->weights->packs(polykernel.op, layout->order))) {
            return fail(context, DISTILE_ERROR_VERSION,
                        "%s: the variant '%s' of '%s' reads the weight layout %s, in which this library cannot pack "
                        "the weights of such a %s",
                        call, variant.name, polykernel.name, variant.layout, kind_name(kind->kind));
        }
        const int32_t dtype = raw(variant.input_dtype);
        if (dtype != 0 && dtype != raw(find_operand(polykernel, DISTILE_ROLE_INPUT)->dtype) &&
            (dtype != DISTILE_FLOAT32 || raw(polykernel.device) != DISTILE_CPU)) {
            return fail(context, DISTILE_ERROR_VERSION,
                        "%s: the variant '%s' of '%s' reads its input as type %s; this library converts to float32 "
                        "only, on CPUs",
                        call, variant.name, polykernel.name, TypeText(dtype).text);
        }
    }
    if (raw(polykernel.device) != context->device->kind()) {
        return fail(context, DISTILE_ERROR_OTHER_DEVICE, "%s: '%s' is for %s, but the context is for %s", call,
                    polykernel.name, device_name(raw(polykernel.device)), device_name(context->device->kind()));
    }
    return DISTILE_OK;
}

/** The math of a PolyKernel's code. */
distile_math math_of(const distile_polykernel &polykernel) {
    return raw(polykernel.math) == DISTILE_MATH_TF32 ? DISTILE_MATH_TF32 : DISTILE_MATH_FLOAT32;
}

/** Whether a context allows the math of a PolyKernel. */
bool allows_math(const distile_context &context, const distile_polykernel &polykernel) {
    const distile_math chosen = context.options.math;
    return math_of(polykernel) <=
           (chosen == DISTILE_MATH_DEFAULT ? find_operator_kind(polykernel.kind)->default_math : chosen);
}

/** The first PolyKernel of a chain that the device can run with math that the context allows. Throws Failure if there
 * is none. */
const distile_polykernel &find_polykernel(distile_context *context, const distile_polykernel *polykernel) {
    std::string reasons;
    for (const distile_polykernel *candidate = polykernel; candidate; candidate = candidate->fallback) {
        require(check_polykernel(context, *candidate));
        const std::string missing = context->device->missing_features(*candidate);
        const bool allowed = allows_math(*context, *candidate);
        if (missing.empty() && allowed) {
            return *candidate;
        }
        reasons += (reasons.empty() ? "" : "; ") +
                   (missing.empty() ? "the context allows no TF32 (set its option math to DISTILE_MATH_TF32)"
                                    : "this device lacks " + missing) +
                   ", which '" + candidate->name + "' needs";
    }
    throw Failure{fail(context, DISTILE_ERROR_UNSUPPORTED_DEVICE, "distile_kernel_create: %s", reasons.c_str())};
}

/** Runs the variant with this index, the one that the arguments name, or the fastest, which the host or the device
 * chooses. */
distile_status run(distile_kernel *kernel, const char *call, const distile_run_args *args, const int32_t *index) {
    distile_context *context = &kernel->context;
    if (!args) {
        return fail_null(context, call, "pointer to the arguments");
    }
    return guarded(context, call, [&]() -> distile_status {
        require(check_run(*kernel, call, *args));
        int32_t named = index ? *index : -1;
        if (args->variant) {
            named = kernel->find(args->variant);
            if (named < 0) {
                return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' has no variant '%s'", call,
                            kernel->polykernel.name, args->variant);
            }
        }
        require(named >= 0 ? check_named(*kernel, call, *args, named) : DISTILE_OK);
        distile_mask &mask = *args->mask;
        distile_choice choice = named >= 0 ? kernel->describe(named, mask)
                                : context->device->chooses_for(mask)
                                    ? kernel->choose_on_device(mask, args->weights)
                                    : kernel->choose(mask, args->key_mask, args->weights);
        if (!context->options.trace) {
            return run_variant(*kernel, call, *args, choice);
        }
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        require(run_variant(*kernel, call, *args, choice));
        choice.elapsed_us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        context->options.trace(context->options.trace_user, &choice);
        return DISTILE_OK;
    });
}

}  // namespace

extern "C" {

distile_status distile_kernel_create(distile_context *context, const distile_polykernel *polykernel,
                                     distile_kernel **kernel) {
    constexpr const char *call = "distile_kernel_create";
    if (!context) {
        return fail_null(call, "context");
    }
    const distile_status status =
        check_pointers(context, call, {{polykernel, "PolyKernel"}, {kernel, "pointer to the kernel"}});
    return status != DISTILE_OK ? status : guarded(context, call, [&] {
        auto created = std::make_unique<distile_kernel>(*context, find_polykernel(context, polykernel));
        created->code = context->device->load(*created);
        *kernel = created.release();
        return DISTILE_OK;
    });
}

void distile_kernel_destroy(distile_kernel *kernel) {
    if (kernel) {
        destroy(kernel->context, kernel);
    }
}

distile_status distile_kernel_get_info(const distile_kernel *kernel, distile_kernel_info *info) {
    constexpr const char *call = "distile_kernel_get_info";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    if (!info) {
        return fail_null(&kernel->context, call, "pointer to the result");
    }
    const distile_polykernel &polykernel = kernel->polykernel;
    info->name = polykernel.name;
    info->kind = kind_name(kernel->kind.kind);
    info->device = polykernel.device;
    info->features = polykernel.features;
    info->dtype = kernel->input.dtype;
    info->output_dtype = kernel->output.dtype;
    info->in_channels = kernel->input.channels;
    info->out_channels = kernel->output.channels;
    info->has_residual = kernel->residual ? 1 : 0;
    info->num_variants = kernel->num_variants();
    info->math = math_of(polykernel);
    return DISTILE_OK;
}

distile_status distile_kernel_output_shape(const distile_kernel *kernel, int32_t in_height, int32_t in_width,
                                           int32_t *out_height, int32_t *out_width) {
    constexpr const char *call = "distile_kernel_output_shape";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    const distile_status status = check_pointers(
        &kernel->context, call, {{out_height, "pointer to the height"}, {out_width, "pointer to the width"}});
    if (status != DISTILE_OK) {
        return status;
    }
    if (in_height < 1 || in_width < 1 || in_height > largest_extent || in_width > largest_extent) {
        return fail(&kernel->context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the input is %d x %d pixels; each extent must be 1 to %d", call, in_height, in_width,
                    largest_extent);
    }
    const ImageSize size = kernel->kind.output_size(kernel->polykernel.op, {in_height, in_width});
    const bool any = size.height > 0 && size.width > 0;
    if (size.height > largest_extent || size.width > largest_extent) {
        return fail(&kernel->context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: an input of %d x %d pixels gives an output of %lld x %lld, which is too large", call,
                    in_height, in_width, static_cast<long long>(size.height), static_cast<long long>(size.width));
    }
    *out_height = any ? static_cast<int32_t>(size.height) : 0;
    *out_width = any ? static_cast<int32_t>(size.width) : 0;
    return DISTILE_OK;
}

distile_border distile_kernel_border(const distile_kernel *kernel) {
    return kernel ? kernel->kind.border(kernel->polykernel.op) : distile_border{};
}

distile_window distile_kernel_window(const distile_kernel *kernel) {
    return kernel ? kernel->kind.window(kernel->polykernel.op) : distile_window{};
}

int32_t distile_kernel_num_variants(const distile_kernel *kernel) {
    return kernel ? kernel->num_variants() : 0;
}

const char *distile_kernel_variant_name(const distile_kernel *kernel, int32_t index) {
    if (!kernel || index < 0 || index >= kernel->num_variants()) {
        return nullptr;
    }
    return kernel->variants[index].name;
}

distile_status distile_kernel_get_variant(const distile_kernel *kernel, int32_t index, distile_variant_info *info) {
    constexpr const char *call = "distile_kernel_get_variant";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    if (!info) {
        return fail_null(&kernel->context, call, "pointer to the result");
    }
    if (index < 0 || index >= kernel->num_variants()) {
        return fail(&kernel->context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' has no variant %d; it has %d", call,
                    kernel->polykernel.name, index, kernel->num_variants());
    }
    const Variant &variant = kernel->variants[index];
    *info = {variant.name, variant.tile_h, variant.tile_w, variant.dense};
    return DISTILE_OK;
}

distile_status distile_kernel_load_times(distile_kernel *kernel, const char *path) {
    constexpr const char *call = "distile_kernel_load_times";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    distile_context *context = &kernel->context;
    if (!path) {
        return fail_null(context, call, "path");
    }
    return guarded(context, call, [&] {
        std::vector<distile_time_point> points;
        std::string message;
        const distile_status status = read_time_table(path, *kernel, points, message);
        if (status != DISTILE_OK) {
            return fail(context, status, "%s: %s", call, message.c_str());
        }
        kernel->set_times(std::move(points));
        return DISTILE_OK;
    });
}

distile_status distile_kernel_add_time(distile_kernel *kernel, const char *variant, int64_t tiles,
                                       double microseconds) {
    constexpr const char *call = "distile_kernel_add_time";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    distile_context *context = &kernel->context;
    if (!variant) {
        return fail_null(context, call, "variant's name");
    }
    const int32_t index = kernel->find(variant);
    if (index < 0) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' has no variant '%s'", call, kernel->polykernel.name,
                    variant);
    }
    if (tiles < 1 || !(microseconds > 0) || !std::isfinite(microseconds)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE,
                    "%s: %lld tiles in %g microseconds; both must be finite and above 0", call,
                    static_cast<long long>(tiles), microseconds);
    }
    return guarded(context, call, [&] {
        kernel->add_time(index, tiles, microseconds);
        return DISTILE_OK;
    });
}

distile_status distile_kernel_add_dense(distile_kernel *kernel, const distile_dense_candidate *candidate) {
    constexpr const char *call = "distile_kernel_add_dense";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    distile_context *context = &kernel->context;
    if (!candidate) {
        return fail_null(context, call, "candidate");
    }
    const auto *run = reinterpret_cast<const void *>(candidate->run);
    const distile_status status =
        check_pointers(context, call, {{candidate->name, "candidate's name"}, {run, "candidate's function"}});
    if (status != DISTILE_OK) {
        return status;
    }
    if (kernel->find(candidate->name) >= 0) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' already has a variant '%s'", call,
                    kernel->polykernel.name, candidate->name);
    }
    return guarded(context, call, [&] {
        kernel->add_dense(*candidate);
        return DISTILE_OK;
    });
}

distile_status distile_kernel_choose(distile_kernel *kernel, distile_mask *mask, distile_choice *choice) {
    constexpr const char *call = "distile_kernel_choose";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    distile_context *context = &kernel->context;
    if (!choice) {
        return fail_null(context, call, "pointer to the choice");
    }
    const distile_status status = check_mask(context, call, mask);
    return status != DISTILE_OK ? status : guarded(context, call, [&] {
        *choice = kernel->choose(*mask, nullptr, nullptr);
        return DISTILE_OK;
    });
}

distile_status distile_run(distile_kernel *kernel, const distile_run_args *args) {
    constexpr const char *call = "distile_run";
    return kernel ? run(kernel, call, args, nullptr) : fail_null(call, "kernel");
}

distile_status distile_run_variant(distile_kernel *kernel, int32_t index, const distile_run_args *args) {
    constexpr const char *call = "distile_run_variant";
    if (!kernel) {
        return fail_null(call, "kernel");
    }
    if (index < 0 || index >= kernel->num_variants()) {
        return fail(&kernel->context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' has no variant %d; it has %d", call,
                    kernel->polykernel.name, index, kernel->num_variants());
    }
    if (args && args->variant) {
        return fail(&kernel->context, DISTILE_ERROR_BAD_VALUE, "%s: args->variant must be null when an index is given",
                    call);
    }
    return run(kernel, call, args, &index);
}

}  // extern "C"
