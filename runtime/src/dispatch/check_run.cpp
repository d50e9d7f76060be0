#include "mask_checks.h"
#include "run.h"
#include "tensor.h"
#include "types.h"

namespace distile {

namespace {

distile_status check_options(distile_context *context, const char *call, const distile_run_args &args) {
    const int32_t inactive = raw(args.inactive), store = raw(args.store);
    if (inactive < DISTILE_KEEP || inactive > DISTILE_ZERO || store < DISTILE_STORE_EXACT ||
        store > DISTILE_STORE_TILES) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: inactive is %d and store is %d; each must be 0 or 1", call,
                    inactive, store);
    }
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    return DISTILE_OK;
}

/** Checks a tensor against an operand, and its memory. */
distile_status check_operand(distile_context *context, const char *call, const distile_tensor *tensor, const char *name,
                             const distile_operand &operand, bool has_border) {
    const distile_status status =
        check_tensor(context, operand.dtype, call, tensor, name, operand.channels, has_border);
    return status != DISTILE_OK ? status : context->device->check_memory(call, *tensor, name);
}

distile_status check_output_size(const distile_kernel &kernel, const char *call, const distile_tensor &input,
                                 const distile_tensor &output) {
    const ImageSize size = kernel.kind.output_size(kernel.polykernel.op, {input.height, input.width});
    if (output.batch == input.batch && output.height == size.height && output.width == size.width) {
        return DISTILE_OK;
    }
    return fail(&kernel.context, DISTILE_ERROR_BAD_SHAPE,
                "%s: the output is %d x %d x %d (batch, height, width), but this input gives %d x %lld x %lld", call,
                output.batch, output.height, output.width, input.batch, static_cast<long long>(size.height),
                static_cast<long long>(size.width));
}

distile_status check_residual(const distile_kernel &kernel, const char *call, const distile_tensor *residual,
                              const distile_tensor &output) {
    distile_context *context = &kernel.context;
    if (!kernel.residual) {
        return residual ? fail(context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' takes no residual, but one is given", call,
                               kernel.polykernel.name)
                        : DISTILE_OK;
    }
    const distile_status status = check_operand(context, call, residual, "residual", *kernel.residual, false);
    if (status != DISTILE_OK) {
        return status;
    }
    if (residual->batch != output.batch || residual->height != output.height || residual->width != output.width) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the residual is %d x %d x %d (batch, height, width), but the output is %d x %d x %d", call,
                    residual->batch, residual->height, residual->width, output.batch, output.height, output.width);
    }
    if (!same_view(*residual, output) && overlap(without_border(*residual), without_border(output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the residual overlaps the output but is not the same view",
                    call);
    }
    return DISTILE_OK;
}

distile_status check_weights(const distile_kernel &kernel, const char *call, const distile_weights *weights) {
    distile_context *context = &kernel.context;
    if (!weights) {
        return fail_null(context, call, "pointer to the weights");
    }
    if (weights->memory_space != context->device->memory_space()) {
        return fail(context, DISTILE_ERROR_BAD_WEIGHTS, "%s: the weights were packed on another device", call);
    }
    if (weights->kind != kernel.kind.kind || weights->shape != kernel.weights_shape) {
        return fail(context, DISTILE_ERROR_BAD_WEIGHTS, "%s: the weights were packed for %s, but '%s' has %s", call,
                    weights->shape.c_str(), kernel.polykernel.name, kernel.weights_shape.c_str());
    }
    for (const WeightLayout *wanted : kernel.layouts) {
        const distile_weights::Layout *layout = weights->find(wanted->name);
        if (!layout) {
            return fail(context, DISTILE_ERROR_BAD_WEIGHTS, "%s: the weights lack the layout %s, which '%s' reads",
                        call, wanted->name, kernel.polykernel.name);
        }
        for (const distile_weights::Operand &packed : layout->operands) {
            if (packed.array.dtype != stored_type(*wanted, kernel.polykernel, packed.role)) {
                return fail(context, DISTILE_ERROR_BAD_WEIGHTS,
                            "%s: the weights were packed as %s, which '%s' cannot read", call,
                            find_type(packed.array.dtype)->name, kernel.polykernel.name);
            }
        }
    }
    return DISTILE_OK;
}

}  // namespace

distile_status check_run(const distile_kernel &kernel, const char *call, const distile_run_args &args) {
    distile_context *context = &kernel.context;
    distile_status status = check_options(context, call, args);
    if (status == DISTILE_OK) {
        status = check_operand(context, call, args.input, "input", kernel.input, true);
    }
    if (status == DISTILE_OK) {
        status = check_operand(context, call, args.output, "output", kernel.output, false);
    }
    if (status == DISTILE_OK) {
        status = check_output_size(kernel, call, *args.input, *args.output);
    }
    if (status == DISTILE_OK) {
        status = check_residual(kernel, call, args.residual, *args.output);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (overlap(*args.input, without_border(*args.output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call);
    }
    status = check_weights(kernel, call, args.weights);
    return status != DISTILE_OK ? status : check_output_mask(context, call, args.mask, *args.output);
}

}  // namespace distile
