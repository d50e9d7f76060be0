#include "runtime/stage/stage_weights.h"
#include "runtime/base/context.h"
#include "runtime/base/types.h"
#include "runtime/stage/limits.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <array>

namespace distile {

namespace {

constexpr int64_t step_channels = stage_channels, group_channels = stage_columns, steps_together = stage_reduction;

/** The output channel of a group that a line holds. Products give a thread columns 2 q and 2 q + 1 of every 8, for q
 * from 0 to 3: this order makes them 8 neighbours. */
constexpr int64_t channel_of_line(int64_t line) {
    return line % 8 / 2 * 8 + line / 8 * 2 + line % 2;
}

/** The place in a line of one of its numbers. */
constexpr int64_t swizzled(int64_t line, int64_t number) {
    return ((number / 8) ^ (line % 8)) * 8 + number % 8;
}

}  // namespace

bool StageWeights::is_possible() const {
    return out_channels > 0 && in_channels > 0 && kernel_h > 0 && kernel_w > 0 && in_channels % step_channels == 0 &&
           out_channels % group_channels == 0;
}

int64_t StageWeights::steps() const {
    return int64_t{kernel_h} * kernel_w * in_channels / step_channels;
}

int64_t StageWeights::padded_steps() const {
    return (steps() + steps_together - 1) / steps_together * steps_together;
}

int64_t StageWeights::bytes() const {
    return padded_steps() * step_channels * out_channels * 2;
}

}  // namespace distile

using namespace distile;

extern "C" {

int64_t distile_stage_weights_bytes(int32_t out_channels, int32_t in_channels, int32_t kernel_h, int32_t kernel_w) {
    const StageWeights weights{out_channels, in_channels, kernel_h, kernel_w};
    return weights.is_possible() ? weights.bytes() : 0;
}

distile_status distile_pack_stage_weights(distile_context *context, distile_dtype dtype, int32_t out_channels,
                                          int32_t in_channels, int32_t kernel_h, int32_t kernel_w, const float *weights,
                                          void *packed) {
    constexpr const char *call = "distile_pack_stage_weights";
    if (!context) {
        return fail_null(call, "context");
    }
    if (!weights || !packed) {
        return fail_null(context, call, weights ? "memory for packed weights" : "weights");
    }
    if (dtype != DISTILE_FLOAT16 && dtype != DISTILE_BFLOAT16) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the type is %s; stages take float16 and bfloat16", call,
                    TypeText(dtype).text);
    }
    const StageWeights shape{out_channels, in_channels, kernel_h, kernel_w};
    if (!shape.is_possible()) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS,
                    "%s: a convolution of %d x %d from %d to %d channels; stages take multiples of %d to multiples of "
                    "%d",
                    call, kernel_h, kernel_w, in_channels, out_channels, static_cast<int>(step_channels),
                    static_cast<int>(group_channels));
    }
    const Type &type = *find_type(dtype);
    const int64_t taps = int64_t{kernel_h} * kernel_w, steps_of_tap = in_channels / step_channels;
    auto *line = static_cast<uint16_t *>(packed);
    std::array<float, step_channels> numbers{};
    for (int64_t group = 0; group < out_channels; group += group_channels) {
        for (int64_t step = 0; step < shape.padded_steps(); step++) {
            const int64_t tap = step / steps_of_tap, channel = step % steps_of_tap * step_channels;
            for (int64_t at = 0; at < group_channels; at++, line += step_channels) {
                const int64_t out = group + channel_of_line(at);
                for (int64_t number = 0; number < step_channels; number++) {
                    numbers.at(static_cast<size_t>(swizzled(at, number))) =
                        tap < taps ? weights[(out * in_channels + channel + number) * taps + tap] : 0;
                }
                type.from_float(numbers.data(), line, numbers.size());
            }
        }
    }
    return DISTILE_OK;
}

}  // extern "C"
