/** \file
 * Stages on a GPU, and their weights: groups of 32 output channels, and in each, step by step of the reduction, a line
 * of 128 bytes for each output channel: 64 numbers, or 32 of float32 rounded to TF32. Steps go through the channels of
 * a tap, and then to the next tap; zeros fill them up to a multiple of 4, a tap's channels to whole lines, and output
 * channels to 32 or a multiple of 64. In a group, output channels are in the order in which a thread has neighbours,
 * and the pieces of 16 bytes of the lines are swizzled, both as the instructions for products have it. Weights of
 * depthwise convolutions, which are not rounded to TF32, are all channels of a tap, and then those of the next.
 * Convolutions in 16 bits of the shapes that teams compute (team_layout.h) have their weights a second time behind
 * that, as teams read them. Quantized weights are 128 a line, and what requantizes their sums is behind them.
 */
#include "kernels/dot_products.h"
#include "runtime/base/types.h"
#include "runtime/kinds/requantization.h"
#include "runtime/kinds/tf32.h"
#include "runtime/stage/limits.h"
#include "runtime/stage/stage_target.h"
#include "runtime/stage/team_layout.h"
#include <cstring>
#include <distile/stage.h>
#include <vector>

namespace distile {

namespace {

constexpr int64_t group_channels = stage_columns, steps_together = stage_reduction, most_head_bytes = 256;
constexpr size_t bulk_bytes = 128;
constexpr int32_t head_channels = 8;
/** Kernels keep offsets within a window in 31 bits, of which a float32's take one more than those of 16 bits. */
constexpr int64_t most_span_bytes = int64_t{1} << 32;

/** The numbers of a line. */
int64_t step_channels(distile_dtype dtype) {
    return stage_row_bytes / find_type(dtype)->bytes;
}

/** The output channel of a group that a line holds. Products give a thread columns 2 q and 2 q + 1 of every 8, for q
 * from 0 to 3: this order makes them 8 neighbours. */
constexpr int64_t channel_of_line(int64_t line) {
    return line % 8 / 2 * 8 + line / 8 * 2 + line % 2;
}

/** The place in a line of one of its numbers, of which a piece has some. */
constexpr int64_t swizzled(int64_t line, int64_t number, int64_t of_piece) {
    return ((number / of_piece) ^ (line % 8)) * of_piece + number % of_piece;
}

int64_t round_up(int64_t number, int64_t to) {
    return (number + to - 1) / to * to;
}

/** The steps of the reduction in a tap. */
int64_t steps_of_tap(const StageFilter &filter, distile_dtype dtype) {
    return round_up(filter.in_channels, step_channels(dtype)) / step_channels(dtype);
}

/** The steps of the reduction, with zeros. */
int64_t padded_steps(const StageFilter &filter, distile_dtype dtype) {
    return round_up(filter.taps() * steps_of_tap(filter, dtype), steps_together);
}

/** The output channels, with zeros. */
int64_t padded_outputs(const StageFilter &filter) {
    return round_up(filter.out_channels,
                    filter.out_channels > group_channels ? stage_columns_together : group_channels);
}

bool packs(distile_dtype dtype) {
    return dtype == DISTILE_FLOAT32 || dtype == DISTILE_FLOAT16 || dtype == DISTILE_BFLOAT16;
}
bool takes(distile_dtype dtype) {
    return packs(dtype) || is_quantized(dtype);
}
bool is_float32(distile_dtype dtype) {
    return dtype == DISTILE_FLOAT32;
}

/** How the units of a team's weights divide the weights of a convolution. */
struct TeamUnits {
    int64_t lines, numbers;  ///< Output channels and input channels of a unit.
    int64_t units;           ///< A share's.
    bool shares_outputs;     ///< Else a share has a part of the input channels, a unit a part of these for each tap.
};

/** Null: teams do not compute such a convolution. */
const TeamUnits *team_units(const StageFilter &filter, distile_dtype dtype) {
    static constexpr TeamUnits reducing{team_inner, 16, reducing_units, false},
        middle{team_inner, 16, middle_units, false}, expanding{outer_of_share, 64, expanding_units, true};
    const auto is = [&](uint32_t outputs, uint32_t inputs, int32_t kernel) {
        return find_type(dtype)->bytes == 2 && filter.groups == 1 &&
               filter.out_channels == static_cast<int32_t>(outputs) &&
               filter.in_channels == static_cast<int32_t>(inputs) && filter.kernel_h == kernel &&
               filter.kernel_w == kernel;
    };
    return is(team_inner, team_outer, 1)   ? &reducing
           : is(team_inner, team_inner, 3) ? &middle
           : is(team_outer, team_inner, 1) ? &expanding
                                           : nullptr;
}

/** The bytes of packed weights in front of a team's. */
int64_t plain_bytes(const StageFilter &filter, distile_dtype dtype) {
    return filter.is_depthwise() ? filter.taps() * filter.out_channels * find_type(dtype)->bytes
                                 : padded_steps(filter, dtype) * stage_row_bytes * padded_outputs(filter);
}

int64_t weight_bytes(const StageFilter &filter, distile_dtype dtype) {
    const int64_t of_team = team_units(filter, dtype) ? filter.taps() * filter.out_channels * filter.in_channels : 0;
    return plain_bytes(filter, dtype) + of_team * find_type(dtype)->bytes;
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

/** The output channel of a line of a unit. Products give a thread columns 2 q and 2 q + 1 of every 8: this order makes
 * them neighbours, 4 where a share has 16 of a unit's lines, else 8 of every 32. */
int64_t channel_of_unit_line(const TeamUnits &units, int64_t line) {
    constexpr int64_t of_share = inner_of_share;
    if (units.shares_outputs) {
        return line / group_channels * group_channels + channel_of_line(line % group_channels);
    }
    return line / of_share * of_share + line % 8 / 2 * 4 + line % of_share / 8 * 2 + line % 2;
}

void pack_for_team(const StageFilter &filter, const TeamUnits &units, const Type &type, const float *weights,
                   char *packed) {
    const int64_t taps = filter.taps(), of_tap = units.units / taps, pieces = units.numbers / 8,
                  line_bytes = units.numbers * type.bytes;
    std::vector<float> numbers(static_cast<size_t>(units.numbers));
    for (int64_t share = 0; share < team_shares; share++) {
        for (int64_t unit = 0; unit < units.units; unit++) {
            const int64_t tap = unit / of_tap;
            const int64_t first_input = (units.shares_outputs ? unit : share * of_tap + unit % of_tap) * units.numbers;
            for (int64_t line = 0; line < units.lines; line++, packed += line_bytes) {
                const int64_t out =
                    (units.shares_outputs ? share * units.lines : 0) + channel_of_unit_line(units, line);
                // Lines of 32 bytes are swizzled by groups of four, those of 128 bytes one by one.
                const int64_t turn = pieces == 2 ? line / 4 % 2 : line % 8;
                for (int64_t number = 0; number < units.numbers; number++) {
                    numbers.at(static_cast<size_t>((number / 8 ^ turn) * 8 + number % 8)) =
                        weights[(out * filter.in_channels + first_input + number) * taps + tap];
                }
                type.from_float(numbers.data(), packed, numbers.size());
            }
        }
    }
}

void pack(const StageFilter &filter, distile_dtype dtype, const float *weights, void *packed) {
    const Type &type = *find_type(dtype);
    if (filter.is_depthwise()) {
        pack_depthwise(filter, type, weights, packed);
        return;
    }
    const int64_t taps = filter.taps(), of_tap = steps_of_tap(filter, dtype), of_line = step_channels(dtype);
    auto *line = static_cast<char *>(packed);
    std::vector<float> numbers(static_cast<size_t>(of_line));
    for (int64_t group = 0; group < padded_outputs(filter); group += group_channels) {
        for (int64_t step = 0; step < padded_steps(filter, dtype); step++) {
            const int64_t tap = step / of_tap, first = step % of_tap * of_line;
            for (int64_t at = 0; at < group_channels; at++, line += stage_row_bytes) {
                const int64_t out = group + channel_of_line(at);
                for (int64_t number = 0; number < of_line; number++) {
                    const int64_t channel = first + number;
                    const bool exists = tap < taps && channel < filter.in_channels && out < filter.out_channels;
                    const float weight = exists ? weights[(out * filter.in_channels + channel) * taps + tap] : 0;
                    numbers[static_cast<size_t>(swizzled(at, number, of_line / 8))] =
                        is_float32(dtype) ? round_to_tf32(weight) : weight;
                }
                type.from_float(numbers.data(), line, numbers.size());
            }
        }
    }
    if (const TeamUnits *const units = team_units(filter, dtype)) {
        pack_for_team(filter, *units, type, weights, line);
    }
}

int64_t quantized_bytes(const StageFilter &filter) {
    constexpr int64_t of_channel = 3 * sizeof(float);
    return requantization_offset(filter) + static_cast<int64_t>(sizeof(distile_requantization)) +
           filter.out_channels * of_channel;
}

void pack_quantized(const StageFilter &filter, const FilterSource &source, void *packed) {
    const FilterExtents extents{filter.out_channels, filter.in_channels / filter.groups, filter.kernel_h,
                                filter.kernel_w};
    const std::vector<MergedTap> rows = single_taps(extents.kernel_h), columns = single_taps(extents.kernel_w);
    const int64_t taps = filter.taps();
    std::vector<float> weights(static_cast<size_t>(extents.elements())), folded;
    std::vector<PackedArray> arrays(1);
    arrays[0].extents = {extents.out_channels};
    arrays[0].values.resize(static_cast<size_t>(extents.out_channels));
    WeightSums sums(extents, source, 1, false);
    for (int32_t o = 0; o < extents.out_channels; o++) {
        arrays[0].values[static_cast<size_t>(o)] = fold_channel(extents, rows, columns, source, o, folded);
        for (int64_t tap = 0; tap < taps; tap++) {
            for (int64_t i = 0; i < extents.in_channels; i++) {
                const float weight = folded[static_cast<size_t>(tap * extents.in_channels + i)];
                weights[static_cast<size_t>((o * int64_t{extents.in_channels} + i) * taps + tap)] = weight;
                sums.add(o, 0, weight);
            }
        }
    }
    pack(filter, DISTILE_INT8, weights.data(), packed);
    add_requantization(source, sums, arrays);
    // Borders hold the zero point, so copies of it are not needed.
    const size_t words = sizeof(distile_requantization) / sizeof(float) + 2 * arrays[0].values.size();
    auto *const to = reinterpret_cast<float *>(static_cast<char *>(packed) + requantization_offset(filter));
    std::memcpy(to, arrays[1].values.data(), words * sizeof(float));
    std::memcpy(to + words, arrays[0].values.data(), arrays[0].values.size() * sizeof(float));
}

}  // namespace

int64_t requantization_offset(const StageFilter &filter) {
    return plain_bytes(filter, DISTILE_INT8);
}

int64_t team_weights_offset(const StageFilter &filter, distile_dtype dtype) {
    return team_units(filter, dtype) ? plain_bytes(filter, dtype) : 0;
}

const StageTarget gpu_stage_target{"float32, float16, bfloat16, uint8 and int8",
                                   "float32, float16 and bfloat16",
                                   takes,
                                   packs,
                                   is_float32,
                                   false,
                                   stage_piece_bytes,
                                   most_span_bytes,
                                   bulk_bytes,
                                   false,
                                   false,
                                   DISTILE_STAGE_NORMALIZED,
                                   head_channels,
                                   most_head_bytes,
                                   DISTILE_STAGE_ATTENTION_WORDS,
                                   int64_t{64} * 64,  // A tile.
                                   DISTILE_STAGE_WORDS,
                                   weight_bytes,
                                   pack,
                                   bulk_bytes,
                                   quantized_bytes,
                                   pack_quantized};

}  // namespace distile
