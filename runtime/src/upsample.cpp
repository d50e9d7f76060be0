#include "context.h"
#include "mask.h"
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
    if (!args.mask) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the mask is null", call);
    }
    if (args.mask->context != context) {
        return fail(context, DISTILE_ERROR_BAD_MASK, "%s: the mask belongs to another context", call);
    }
    if (!args.mask->is_set()) {
        return fail(context, DISTILE_ERROR_BAD_MASK, "%s: the mask was never set", call);
    }
    const Bitmask &bits = args.mask->bits;
    if (bits.batch != output.batch || bits.height != output.height || bits.width != output.width) {
        return fail(context, DISTILE_ERROR_BAD_MASK,
                    "%s: the mask is %d x %d x %d (batch, height, width), the output %d x %d x %d", call, bits.batch,
                    bits.height, bits.width, output.batch, output.height, output.width);
    }
    return DISTILE_OK;
}

/** The first pixel of a row, from x on, that is active or not; the width if there is none. */
int32_t find_pixel(const uint64_t *words, int32_t x, int32_t width, bool active) {
    while (x < width) {
        const uint64_t found = (active ? words[x / 64] : ~words[x / 64]) >> (x % 64);
        if (found != 0) {
            return std::min(x + __builtin_ctzll(found), width);
        }
        x = (x / 64 + 1) * 64;
    }
    return width;
}

/** The upsampling of a call, a part of the rows a task. */
class Upsampling {
public:
    explicit Upsampling(const distile_upsample_args &args)
        : args_(args), input_(*args.input), output_(*args.output), rows_(int64_t{output_.batch} * output_.height) {
    }

    void run(distile_context &context) {
        // Below this many elements a second thread costs more than it saves.
        constexpr int64_t elements_per_task = 1 << 15;
        const int64_t pixels = args_.inactive == DISTILE_ZERO ? rows_ * output_.width : args_.mask->active_pixels;
        const int64_t wanted = pixels * output_.channels / elements_per_task + 1;
        // A few tasks a thread even out rows with few active pixels.
        const int64_t most = context.options.threads > 1 ? int64_t{4} * context.options.threads : 1;
        num_tasks_ = std::min({wanted, rows_, most});
        context.run_parallel([](void *closure, int32_t i) { static_cast<Upsampling *>(closure)->fill_rows(i); }, this,
                             static_cast<int32_t>(num_tasks_));
    }

private:
    void fill_rows(int64_t task) const {
        const Bitmask &bits = args_.mask->bits;
        const int64_t end = rows_ * (task + 1) / num_tasks_;
        for (int64_t row = rows_ * task / num_tasks_; row < end; row++) {
            const int64_t n = row / output_.height, y = row % output_.height;
            fill_row(bits.words + row * bits.words_per_row(),
                     static_cast<const float *>(input_.data) + n * input_.stride_n +
                         y / args_.scale_h * input_.stride_h,
                     static_cast<float *>(output_.data) + n * output_.stride_n + y * output_.stride_h);
        }
    }

    void fill_row(const uint64_t *words, const float *from, float *to) const {
        for (int32_t x = 0; x < output_.width;) {
            const int32_t begin = find_pixel(words, x, output_.width, true);
            const int32_t end = find_pixel(words, begin, output_.width, false);
            for (; args_.inactive == DISTILE_ZERO && x < begin; x++) {
                std::fill_n(to + x * output_.stride_w, output_.channels, 0.0f);
            }
            int32_t column = begin / args_.scale_w, left = args_.scale_w - begin % args_.scale_w;
            for (x = begin; x < end; x++) {
                std::copy_n(from + column * input_.stride_w, output_.channels, to + x * output_.stride_w);
                if (--left == 0) {
                    column++;
                    left = args_.scale_w;
                }
            }
        }
    }

    const distile_upsample_args &args_;
    const distile_tensor &input_, &output_;
    int64_t rows_, num_tasks_ = 1;
};

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
            Upsampling(*args).run(*context);
        }
        return status;
    });
}

}  // extern "C"
