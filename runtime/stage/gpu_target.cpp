/** \file
 * Stages on a GPU, and their weights: groups of 32 output channels, and in each, step by step of the reduction, 64
 * numbers for each output channel. Steps go through the channels of a tap, and then to the next tap; zeros fill them up
 * to a multiple of 4, a tap's channels to one of 64, and output channels to 32 or a multiple of 64. In a group, output
 * channels are in the order in which a thread has neighbours, and the pieces of 16 bytes of the lines of 128 bytes are
 * swizzled, both as the instructions for products have it. Weights of depthwise convolutions are all channels of a tap,
 * and then those of the next.
 */
#include "runtime/base/types.h"
#include "runtime/stage/limits.h"
#include "runtime/stage/stage_target.h"
#include <array>
#include <distile/stage.h>
#include <vector>

namespace distile {

namespace {

constexpr int64_t step_channels = stage_channels, group_channels = stage_columns, steps_together = stage_reduction;
constexpr size_t vector_bytes = 16, bulk_bytes = 128;
constexpr int32_t vector_channels = vector_bytes / 2, most_head_channels = 128;

/** The output channel of a group that a line holds. Products give a thread columns 2 q and 2 q + 1 of every 8, for q
 * from 0 to 3: this order makes them 8 neighbours. */
constexpr int64_t channel_of_line(int64_t line) {
    return line % 8 / 2 * 8 + line / 8 * 2 + line % 2;
}

/** The place in a line of one of its numbers. */
constexpr int64_t swizzled(int64_t line, int64_t number) {
    return ((number / 8) ^ (line % 8)) * 8 + number % 8;
}

int64_t round_up(int64_t number, int64_t to) {
    return (number + to - 1) / to * to;
}

/** The steps of the reduction in a tap. */
int64_t steps_of_tap(const StageFilter &filter) {
    return (filter.in_channels + step_channels - 1) / step_channels;
}

/** The steps of the reduction, with zeros. */
int64_t padded_steps(const StageFilter &filter) {
    return round_up(filter.taps() * steps_of_tap(filter), steps_together);
}

/** The output channels, with zeros. */
int64_t padded_outputs(const StageFilter &filter) {
    return round_up(filter.out_channels,
                    filter.out_channels > group_channels ? stage_columns_together : group_channels);
}

bool has_16_bits(distile_dtype dtype) {
    return dtype == DISTILE_FLOAT16 || dtype == DISTILE_BFLOAT16;
}

int64_t weight_bytes(const StageFilter &filter, distile_dtype dtype) {
    const int64_t numbers = filter.is_depthwise() ? filter.taps() * filter.out_channels
                                                  : padded_steps(filter) * step_channels * padded_outputs(filter);
    return numbers * find_type(dtype)->bytes;
}

void pack_depthwise(const StageFilter &filter, const Type &type, const float *weights, void *packed) {
    const int64_t taps = filter.taps();
    std::vector<float> numbers(static_cast<size_t>(taps * filter.out_channels));
    for (int64_t tap = 0; tap < taps; tap++) {
        for (int64_t channel = 0; channel < filter.out_channels; channel++) {
            numbers[static_cast<size_t>(tap * filter.out_channels + channel)] = weights[channel * taps + tap];
        }
    }
    type.from_float(numbers.data(), packed, numbers.size());
}

void pack(const StageFilter &filter, distile_dtype dtype, const float *weights, void *packed) {
    const Type &type = *find_type(dtype);
    if (filter.is_depthwise()) {
        pack_depthwise(filter, type, weights, packed);
        return;
    }
    const int64_t taps = filter.taps(), of_tap = steps_of_tap(filter);
    auto *line = static_cast<uint16_t *>(packed);
    std::array<float, step_channels> numbers{};
    for (int64_t group = 0; group < padded_outputs(filter); group += group_channels) {
        for (int64_t step = 0; step < padded_steps(filter); step++) {
            const int64_t tap = step / of_tap, first = step % of_tap * step_channels;
            for (int64_t at = 0; at < group_channels; at++, line += step_channels) {
                const int64_t out = group + channel_of_line(at);
                for (int64_t number = 0; number < step_channels; number++) {
                    const int64_t channel = first + number;
                    const bool exists = tap < taps && channel < filter.in_channels && out < filter.out_channels;
                    numbers.at(static_cast<size_t>(swizzled(at, number))) =
                        exists ? weights[(out * filter.in_channels + channel) * taps + tap] : 0;
                }
                type.from_float(numbers.data(), line, numbers.size());
            }
        }
    }
}

}  // namespace

const StageTarget gpu_stage_target{"float16 and bfloat16",
                                   "float16 and bfloat16",
                                   has_16_bits,
                                   has_16_bits,
                                   false,
                                   vector_channels,
                                   vector_channels,
                                   vector_channels,
                                   vector_bytes,
                                   bulk_bytes,
                                   false,
                                   false,
                                   DISTILE_STAGE_NORMALIZED,
                                   vector_channels,
                                   most_head_channels,
                                   DISTILE_STAGE_ATTENTION_WORDS,
                                   int64_t{64} * 64,  // A tile.
                                   DISTILE_STAGE_WORDS,
                                   weight_bytes,
                                   pack};

}  // namespace distile
