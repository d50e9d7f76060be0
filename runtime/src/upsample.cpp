#include "context.h"
#include "mask.h"
#include "pixel_runs.h"
#include "tensor.h"
#include "tensor_buffer.h"
#include <algorithm>
#include <distile/upsample.h>

using namespace distile;

namespace {

constexpr const char *call = "distile_upsample_nearest";

distile_status check_args(distile_context *context, const distile_upsample_args &args) {
    // The check of tensors tells of one that is missing.
    const distile_tensor none{};
    const distile_tensor &input = args.input ? *args.input : none;
    if (args.input && input.channels < 1) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the input has %d channels", call, input.channels);
    }
    distile_status status = check_tensor(context, DISTILE_FLOAT32, call, args.input, "input", input.channels, false);
    if (status == DISTILE_OK) {
        status = check_tensor(context, DISTILE_FLOAT32, call, args.output, "output", input.channels, false);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    const distile_tensor &output = *args.output;
    if (args.scale_h < 1 || args.scale_w < 1) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: scales of %d and %d: each goes from 1", call, args.scale_h,
                    args.scale_w);
    }
    const int32_t inactive = raw(args.inactive);
    if (inactive < DISTILE_KEEP || inactive > DISTILE_ZERO) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: inactive is %d: it is 0 or 1", call, inactive);
    }
    const int64_t height = int64_t{input.height} * args.scale_h, width = int64_t{input.width} * args.scale_w;
    if (output.batch != input.batch || output.height != height || output.width != width) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the output is %d x %d x %d (batch, height, width); this input gives %d x %lld x %lld", call,
                    output.batch, output.height, output.width, input.batch, static_cast<long long>(height),
                    static_cast<long long>(width));
    }
    if (overlap(without_border(input), without_border(output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call);
    }
    return check_output_mask(context, context, call, args.mask, output);
}

void upsample(distile_context &context, const distile_upsample_args &args) {
    const distile_tensor &input = *args.input, &output = *args.output;
    const distile_mask &mask = *args.mask;
    const bool zero = args.inactive == DISTILE_ZERO;
    const int64_t pixels = int64_t{output.batch} * output.height * output.width, active = mask.active_pixels;
    // A copy is read and written.
    const int64_t moved = 2 * active + (zero ? pixels - active : 0);
    const auto bytes = static_cast<int64_t>(output.channels * sizeof(float)) * moved;
    for_each_row(context, output, bytes, [&](int64_t row) {
        const uint64_t *words = mask.bits.words + row * mask.bits.words_per_row();
        const int64_t image = row / output.height, y = row % output.height;
        const float *from = row_of(input, image * input.height + y / args.scale_h);
        float *to = row_of(output, row);
        for_each_run(words, output.width, true, [&](int32_t begin, int32_t end) {
            int32_t column = begin / args.scale_w, left = args.scale_w - begin % args.scale_w;
            for (int32_t x = begin; x < end; x++) {
                std::copy_n(from + column * input.stride_w, output.channels, to + x * output.stride_w);
                if (--left == 0) {
                    column++;
                    left = args.scale_w;
                }
            }
        });
        for_each_run(words, zero ? output.width : 0, false, [&](int32_t begin, int32_t end) {
            for (int32_t x = begin; x < end; x++) {
                std::fill_n(to + x * output.stride_w, output.channels, 0.0f);
            }
        });
    });
}

}  // namespace

extern "C" {

distile_status distile_upsample_nearest(distile_context *context, const distile_upsample_args *args) {
    if (!context) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!args) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the arguments are null", call);
    }
    return guarded(context, [&] {
        const distile_status status = check_args(context, *args);
        if (status == DISTILE_OK) {
            upsample(*context, *args);
        }
        return status;
    });
}

}  // extern "C"
