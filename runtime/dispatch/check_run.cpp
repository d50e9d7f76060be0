#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/dispatch/run.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <cmath>

namespace distile {

namespace {

distile_status check_options(distile_context *context, const char *call, const distile_run_args &args) {
    distile_status status = check_enumerator(context, call, "inactive", args.inactive);
    if (status == DISTILE_OK) {
        status = check_enumerator(context, call, "store", args.store);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (args.fixed_order != 0 && args.fixed_order != 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: fixed_order is %d; it must be 0 or 1", call,
                    args.fixed_order);
    }
    if (!is_reserved_zero(args.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the arguments is not 0", call);
    }
    return DISTILE_OK;
}

/** Checks a tensor against an operand, and its memory. An operand without a number of channels has `tokens`. */
distile_status check_operand(distile_context *context, const char *call, const distile_tensor *tensor, const char *name,
                             const distile_operand &operand, bool has_border, int32_t tokens = 0) {
    const int32_t channels = operand.channels != 0 ? operand.channels : tokens;
    require(check_tensor(context, operand.dtype, call, tensor, name, channels, has_border));
    return context->device->check_memory(call, *tensor, name);
}

/** Fails if an argument is given that the operator does not take. */
distile_status check_absent(const distile_kernel &kernel, const char *call, bool given, const char *name) {
    return given ? fail(&kernel.context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' takes no %s, but one is given", call,
                        kernel.polykernel.name, name)
                 : DISTILE_OK;
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
        return check_absent(kernel, call, residual != nullptr, "residual");
    }
    require(check_operand(context, call, residual, "residual", *kernel.residual, false));
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
    if (!kernel.kind.weights) {
        return weights ? fail(context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' takes no weights, but some are given", call,
                              kernel.polykernel.name)
                       : DISTILE_OK;
    }
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
        const distile_weights::PackedLayout *layout = weights->find(wanted->name);
        if (!layout) {
            return fail(context, DISTILE_ERROR_BAD_WEIGHTS, "%s: the weights lack the layout %s, which '%s' reads",
                        call, wanted->name, kernel.polykernel.name);
        }
        for (const distile_weights::Operand &packed : layout->operands) {
            const distile_dtype stored = stored_type(*wanted, kernel.polykernel, packed.role);
            if (packed.array.dtype != stored && !(packed.array.dtype == DISTILE_INT4 && wanted->keeps_int4)) {
                return fail(context, DISTILE_ERROR_BAD_WEIGHTS,
                            "%s: '%s' reads the weights as %s; pack them with this kernel", call,
                            kernel.polykernel.name, find_type(stored)->name);
            }
        }
    }
    return DISTILE_OK;
}

/** Checks a key or a value. */
distile_status check_tokens(const distile_kernel &kernel, const char *call, const distile_tensor *tensor,
                            const distile_operand *operand, const char *name) {
    if (!operand) {
        return check_absent(kernel, call, tensor != nullptr, name);
    }
    require(check_operand(&kernel.context, call, tensor, name, *operand, false));
    return tensor->height == 1 ? DISTILE_OK
                               : fail(&kernel.context, DISTILE_ERROR_BAD_SHAPE, "%s: the %s has %d rows; tokens have 1",
                                      call, name, tensor->height);
}

/** Checks the key, the value, their mask and the scale. */
distile_status check_keys(const distile_kernel &kernel, const char *call, const distile_run_args &args) {
    distile_context *context = &kernel.context;
    require(check_tokens(kernel, call, args.key, kernel.key, "key"));
    require(check_tokens(kernel, call, args.value, kernel.value, "value"));
    const distile_tensor *keys = args.key ? args.key : args.value;
    if (args.key && args.value && (args.key->batch != args.value->batch || args.key->width != args.value->width)) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the key has %d x %d tokens (batch, tokens), but the value %d x %d; they must be equal", call,
                    args.key->batch, args.key->width, args.value->batch, args.value->width);
    }
    const TokenRows *tokens = kernel.kind.tokens;
    if ((!tokens || tokens->scale(kernel.polykernel.op) == 0) && args.scale != 0) {
        return check_absent(kernel, call, true, "scale");
    }
    if (!std::isfinite(args.scale)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the scale is %g; it must be finite, or 0 for the usual one",
                    call, static_cast<double>(args.scale));
    }
    if (!args.key_mask || !tokens) {
        return check_absent(kernel, call, args.key_mask != nullptr, "key mask");
    }
    require(check_mask(context, call, args.key_mask, "key mask"));
    const MaskShape &shape = args.key_mask->shape;
    if (!(shape == MaskShape{keys->batch, 1, keys->width})) {
        return fail(context, DISTILE_ERROR_BAD_MASK,
                    "%s: the key mask is %d x %d x %d (batch, height, width), but the keys are %d x 1 x %d", call,
                    shape.batch, shape.height, shape.width, keys->batch, keys->width);
    }
    return DISTILE_OK;
}

/** Checks the rows of the input, and that nothing that the operator reads overlaps the output. */
distile_status check_tokens_in(const distile_kernel &kernel, const char *call, const distile_run_args &args) {
    const TokenRows *tokens = kernel.kind.tokens;
    distile_context *context = &kernel.context;
    if (!tokens) {
        return DISTILE_OK;
    }
    const int32_t rows = tokens->input(kernel.polykernel.op);
    const distile_tensor &keys = args.key ? *args.key : *args.value;
    if (args.input->height != rows) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: the input has %d rows, but '%s' reads %d", call,
                    args.input->height, kernel.polykernel.name, rows);
    }
    if (args.input->batch != keys.batch) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: the input has a batch of %d, but the %s of %d", call,
                    args.input->batch, args.key ? "key" : "value", keys.batch);
    }
    const distile_tensor output = without_border(*args.output);
    if ((args.key && overlap(without_border(*args.key), output)) ||
        (args.value && overlap(without_border(*args.value), output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the %s overlaps the output", call,
                    args.key && overlap(without_border(*args.key), output) ? "key" : "value");
    }
    return DISTILE_OK;
}

}  // namespace

distile_status check_run(const distile_kernel &kernel, const char *call, const distile_run_args &args) {
    distile_context *context = &kernel.context;
    require(check_options(context, call, args));
    require(check_keys(kernel, call, args));
    const int32_t tokens = args.key ? args.key->width : args.value ? args.value->width : 0;
    require(check_operand(context, call, args.input, "input", kernel.input, !kernel.kind.tokens, tokens));
    require(check_operand(context, call, args.output, "output", kernel.output, false, tokens));
    require(check_tokens_in(kernel, call, args));
    require(check_output_size(kernel, call, *args.input, *args.output));
    require(check_residual(kernel, call, args.residual, *args.output));
    if (overlap(*args.input, without_border(*args.output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call);
    }
    require(check_weights(kernel, call, args.weights));
    if (!kernel.kind.tokens) {
        return check_output_mask(context, call, args.mask, *args.output);
    }
    require(check_mask(context, call, args.mask));
    return check_same_shape(context, call, args.mask->shape, {args.output->batch, 1, args.output->width});
}

distile_status check_named(const distile_kernel &kernel, const char *call, const distile_run_args &args,
                           int32_t variant) {
    if (!kernel.is_external(variant) || !args.key_mask) {
        return DISTILE_OK;
    }
    const char *const name = kernel.variants[variant].name;
    if (!args.key_mask->counts_on_host()) {
        return fail(&kernel.context, DISTILE_ERROR_BAD_VALUE,
                    "%s: the dense candidate '%s' of '%s' reads every key, but the host does not know how many are "
                    "active; give no key mask, or let the dispatcher choose",
                    call, name, kernel.polykernel.name);
    }
    const int64_t keys = args.key_mask->shape.num_pixels(), active = args.key_mask->active_pixels();
    if (active == keys) {
        return DISTILE_OK;
    }
    return fail(&kernel.context, DISTILE_ERROR_BAD_VALUE,
                "%s: the dense candidate '%s' of '%s' reads every key, but only %lld of %lld are active; name another "
                "variant, or let the dispatcher choose",
                call, name, kernel.polykernel.name, static_cast<long long>(active), static_cast<long long>(keys));
}

}  // namespace distile
