#include "output_spec.h"
#include "tensor.h"

namespace distile {

distile_status read_planner_options(distile_context *context, const char *call, const distile_planner_options *options,
                                    PlannerSettings &settings) {
    constexpr int32_t usual_buffers = 3, fewest_buffers = 2, most_buffers = 64;
    settings.buffers = options && options->buffers != 0 ? options->buffers : usual_buffers;
    if (settings.buffers < fewest_buffers || settings.buffers > most_buffers) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %d buffers: there may be %d to %d", call, settings.buffers,
                    fewest_buffers, most_buffers);
    }
    settings.clearing = options ? raw(options->clearing) : DISTILE_CLEAR_WRITTEN;
    if (settings.clearing < DISTILE_CLEAR_WRITTEN || settings.clearing > DISTILE_CLEAR_BACKGROUND) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: there is no clearing %d", call, settings.clearing);
    }
    return DISTILE_OK;
}

distile_tensor tensor_of(const distile_output_spec &spec, void *buffer) {
    distile_tensor tensor = distile_tensor_make(buffer, spec.batch, spec.height, spec.width, spec.channels);
    tensor.stride_h = (int64_t{spec.width} + spec.border_left + spec.border_right) * tensor.stride_w;
    tensor.stride_n = (int64_t{spec.height} + spec.border_top + spec.border_bottom) * tensor.stride_h;
    tensor.border_top = spec.border_top;
    tensor.border_bottom = spec.border_bottom;
    tensor.border_left = spec.border_left;
    tensor.border_right = spec.border_right;
    // Without one it is for its strides and border.
    if (buffer) {
        tensor.data =
            static_cast<float *>(buffer) + spec.border_top * tensor.stride_h + spec.border_left * tensor.stride_w;
    }
    return tensor;
}

int64_t bytes_of(const distile_output_spec &spec) {
    const int64_t rows = int64_t{spec.height} + spec.border_top + spec.border_bottom;
    const int64_t columns = int64_t{spec.width} + spec.border_left + spec.border_right;
    return spec.batch * rows * columns * spec.channels * static_cast<int64_t>(sizeof(float));
}

distile_status check_spec(distile_context *context, const char *call, const distile_output_spec &spec,
                          const MaskShape &mask) {
    for (int32_t border : {spec.border_top, spec.border_bottom, spec.border_left, spec.border_right}) {
        if (border < 0 || border > largest_extent) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a border of %d pixels: it goes from 0 to %d", call,
                        border, largest_extent);
        }
    }
    if (spec.channels < 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %d channels", call, spec.channels);
    }
    const distile_status status = check_same_shape(context, call, mask, {spec.batch, spec.height, spec.width});
    if (status != DISTILE_OK) {
        return status;
    }
    distile_tensor tensor = tensor_of(spec, nullptr);
    tensor.data = context;  // Anything but null: the buffer is still to come.
    return check_tensor(context, DISTILE_FLOAT32, call, &tensor, "spec", spec.channels, true);
}

}  // namespace distile
