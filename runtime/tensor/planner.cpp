#include "runtime/tensor/planner.h"
#include "facts/type_names.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/types.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"

using namespace distile;

namespace {

distile_dtype type_of(const distile_output_spec &spec) {
    return raw(spec.dtype) == 0 ? DISTILE_FLOAT32 : spec.dtype;
}

distile_status read_options(distile_context *context, const char *call, const distile_planner_options *options,
                            PlannerSettings &settings) {
    constexpr int32_t usual_buffers = 3, fewest_buffers = 2, most_buffers = 64;
    settings.buffers = options && options->buffers != 0 ? options->buffers : usual_buffers;
    if (settings.buffers < fewest_buffers || settings.buffers > most_buffers) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: buffers is %d; it must be %d to %d", call, settings.buffers,
                    fewest_buffers, most_buffers);
    }
    settings.clearing = options ? raw(options->clearing) : DISTILE_CLEAR_WRITTEN;
    const distile_status status = options ? check_enumerator(context, call, "clearing", options->clearing) : DISTILE_OK;
    if (status != DISTILE_OK) {
        return status;
    }
    if (options && !is_reserved_zero(options->reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the options is not 0", call);
    }
    return DISTILE_OK;
}

distile_status check_spec(distile_context *context, const char *call, const distile_output_spec &spec,
                          const MaskShape &mask) {
    for (int32_t border : {spec.border_top, spec.border_bottom, spec.border_left, spec.border_right}) {
        if (border < 0 || border > largest_extent) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the border is %d pixels; it must be 0 to %d", call,
                        border, largest_extent);
        }
    }
    if (spec.channels < 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: channels is %d; it must be at least 1", call, spec.channels);
    }
    if (raw(spec.dtype) != 0 && !find_float_type(raw(spec.dtype))) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the data type is %s; the types are %s", call,
                    TypeText(raw(spec.dtype)).text, float_type_names().c_str());
    }
    const distile_status status = check_same_shape(context, call, mask, {spec.batch, spec.height, spec.width});
    if (status != DISTILE_OK) {
        return status;
    }
    distile_tensor tensor = tensor_of(spec, nullptr);
    // Any non-null address: there is no buffer yet.
    tensor.data = reinterpret_cast<void *>(uintptr_t{HostMemory::alignment});
    return check_tensor(context, tensor.dtype, call, &tensor, "spec", spec.channels, true);
}

}  // namespace

distile_tensor distile::tensor_of(const distile_output_spec &spec, void *buffer) {
    distile_tensor tensor = distile_tensor_make(buffer, spec.batch, spec.height, spec.width, spec.channels);
    tensor.dtype = type_of(spec);
    tensor.stride_h = (int64_t{spec.width} + spec.border_left + spec.border_right) * tensor.stride_w;
    tensor.stride_n = (int64_t{spec.height} + spec.border_top + spec.border_bottom) * tensor.stride_h;
    tensor.border_top = spec.border_top;
    tensor.border_bottom = spec.border_bottom;
    tensor.border_left = spec.border_left;
    tensor.border_right = spec.border_right;
    // Without a buffer, the caller needs only strides and border.
    if (buffer) {
        const int64_t origin = spec.border_top * tensor.stride_h + spec.border_left * tensor.stride_w;
        tensor.data = static_cast<char *>(buffer) + origin * element_bytes(tensor.dtype);
    }
    return tensor;
}

int64_t distile::bytes_of(const distile_output_spec &spec) {
    const int64_t rows = int64_t{spec.height} + spec.border_top + spec.border_bottom;
    const int64_t columns = int64_t{spec.width} + spec.border_left + spec.border_right;
    return spec.batch * rows * columns * spec.channels * element_bytes(type_of(spec));
}

extern "C" {

distile_status distile_planner_create(distile_context *context, const distile_planner_options *options,
                                      distile_planner **planner) {
    constexpr const char *call = "distile_planner_create";
    if (!context) {
        return fail_null(call, "context");
    }
    if (!planner) {
        return fail_null(context, call, "pointer to the planner");
    }
    PlannerSettings settings{};
    const distile_status status = read_options(context, call, options, settings);
    return status != DISTILE_OK ? status : guarded(context, call, [&] {
        *planner = context->device->make_planner(settings).release();
        return DISTILE_OK;
    });
}

void distile_planner_destroy(distile_planner *planner) {
    if (planner) {
        destroy(planner->context, planner);
    }
}

distile_status distile_planner_next(distile_planner *planner, const distile_output_spec *spec, distile_mask *mask,
                                    distile_store store, distile_tensor *output) {
    constexpr const char *call = "distile_planner_next";
    if (!planner) {
        return fail_null(call, "planner");
    }
    distile_context *context = &planner->context;
    distile_status status = check_pointers(context, call, {{spec, "spec"}, {output, "pointer to the tensor"}});
    if (status == DISTILE_OK) {
        status = check_mask(context, call, mask);
    }
    if (status == DISTILE_OK) {
        status = check_enumerator(context, call, "store", store);
    }
    if (status == DISTILE_OK) {
        status = check_spec(context, call, *spec, mask->shape);
    }
    return status != DISTILE_OK ? status : guarded(context, call, [&] {
        *output = planner->next(*spec, *mask, store == DISTILE_STORE_TILES);
        return DISTILE_OK;
    });
}

int64_t distile_planner_bytes(const distile_planner *planner) {
    return planner ? planner->bytes() : 0;
}

}  // extern "C"
