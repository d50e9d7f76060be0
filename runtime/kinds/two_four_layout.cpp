#include "runtime/kinds/two_four_layout.h"
#include "kernels/two_four.h"
#include "runtime/base/stored_float.h"
#include <cstring>
#include <optional>
#include <string>

namespace distile {

namespace two_four_layout {
namespace {

constexpr int32_t unit_rows = DISTILE_TWO_FOUR_ROWS, unit_columns = DISTILE_TWO_FOUR_COLUMNS,
                  unit_bytes = DISTILE_TWO_FOUR_UNIT_BYTES, value_bytes = DISTILE_TWO_FOUR_VALUE_BYTES, fours = 4,
                  kept_of_four = 2, whole_channels = 8, most_kernel = 16;

int32_t units_over(int32_t count, int32_t unit) {
    return (count + unit - 1) / unit;
}

uint16_t narrow(float value, distile_dtype type) {
    return type == DISTILE_BFLOAT16 ? StoredFloat<DISTILE_BFLOAT16>::from_float(value)
                                    : StoredFloat<DISTILE_FLOAT16>::from_float(value);
}

/** The weights of one output channel as units have them. */
class Line {
public:
    Line(unsigned char *unit, int32_t row)
        : values_(unit + int64_t{row} * line_bytes), places_(unit + value_bytes), row_(row) {
    }
    /** Puts the two that are kept of four weights, which are the i-th of the line. */
    void put(int32_t i, const uint16_t (&values)[kept_of_four], const int32_t (&places)[kept_of_four]) {
        constexpr int32_t piece_bytes = 16, pieces = line_bytes / piece_bytes, four_bytes = 4, lanes_of_row = 4,
                          warp_rows = 16, lane_fours = 4, place_bits = 2;
        const int32_t at = i * four_bytes, piece = at / piece_bytes ^ row_ / 2 % pieces;
        std::memcpy(values_ + int64_t{piece} * piece_bytes + at % piece_bytes, values, sizeof(values));
        // A lane has two rows, of which this is one half of its word.
        const int32_t half_rows = warp_rows / 2, within = row_ % warp_rows,
                      lane = within % half_rows * lanes_of_row + i / lane_fours,
                      word = row_ / warp_rows * half_rows * lanes_of_row + lane;
        unsigned char *const half = places_ + word * sizeof(uint32_t) + within / half_rows * sizeof(uint16_t);
        const int32_t both = places[0] | places[1] << place_bits, shift = i % lane_fours * 2 * place_bits;
        uint16_t bits = 0;
        std::memcpy(&bits, half, sizeof(bits));
        bits = static_cast<uint16_t>(bits | both << shift);
        std::memcpy(half, &bits, sizeof(bits));
    }

private:
    static constexpr int32_t line_bytes = value_bytes / unit_rows;

    unsigned char *values_, *places_;
    int32_t row_;
};

/** Finds the two of four weights that are kept: those that are not 0, and others where these are fewer. Returns whether
 * there are no more of them. */
bool keep(const uint16_t (&weights)[fours], uint16_t (&values)[kept_of_four], int32_t (&places)[kept_of_four]) {
    constexpr uint16_t magnitude = 0x7fff;
    int32_t found = 0;
    for (int32_t i = 0; i < fours; i++) {
        if ((weights[i] & magnitude) != 0) {
            if (found == kept_of_four) {
                return false;
            }
            places[found++] = i;
        }
    }
    // Instructions need the places in order.
    if (found == 0) {
        places[0] = 0;
        places[1] = 1;
    } else if (found == 1 && places[0] == fours - 1) {
        places[0] = fours - 2;
        places[1] = fours - 1;
    } else if (found == 1) {
        places[1] = fours - 1;
    }
    for (int32_t i = 0; i < kept_of_four; i++) {
        values[i] = weights[places[i]];
    }
    return true;
}

/** Four consecutive input channels, from the first one on, of an output channel and a kernel position. */
struct Four {
    int32_t output, tap, channel;
};

/** Calls take_bias(bias) for each output channel, and take(four, values, places) with what is kept of each of its fours
 * of `channels` input channels, which are 0 behind those of the filter. Returns the first four of which more than two
 * are not 0, where it ends. This alone says whether weights have the pattern. Throws SourceError. */
template<typename TakeBias, typename Take> std::optional<Four> keep_all(const FilterExtents &extents,
                                                                        const FilterSource &source, int32_t channels,
                                                                        const TakeBias &take_bias, const Take &take) {
    const int32_t taps = extents.kernel_h * extents.kernel_w;
    const std::vector<MergedTap> kernel_rows = single_taps(extents.kernel_h),
                                 kernel_columns = single_taps(extents.kernel_w);
    std::vector<float> folded;
    for (int32_t o = 0; o < extents.out_channels; o++) {
        take_bias(fold_channel(extents, kernel_rows, kernel_columns, source, o, folded));
        for (int32_t tap = 0; tap < taps; tap++) {
            for (int32_t channel = 0; channel < channels; channel += fours) {
                uint16_t four[fours] = {}, values[kept_of_four] = {};
                int32_t places[kept_of_four] = {};
                for (int32_t i = 0; i < fours && channel + i < extents.in_channels; i++) {
                    four[i] = narrow(folded[int64_t{tap} * extents.in_channels + channel + i], source.input);
                }
                if (!keep(four, values, places)) {
                    return Four{o, tap, channel};
                }
                take(Four{o, tap, channel}, values, places);
            }
        }
    }
    return std::nullopt;
}

}  // namespace
}  // namespace two_four_layout

bool packs_two_four(const FilterExtents &extents, int32_t groups) {
    using namespace two_four_layout;
    return groups == 1 && extents.in_channels % whole_channels == 0 && extents.out_channels % whole_channels == 0 &&
           extents.kernel_h <= most_kernel && extents.kernel_w <= most_kernel;
}

bool has_two_four(const FilterExtents &extents, const FilterSource &source) {
    using namespace two_four_layout;
    return !keep_all(
        extents, source, extents.in_channels, [](float) {}, [](const auto &...) {});
}

std::vector<PackedArray> pack_two_four(const FilterExtents &extents, const FilterSource &source) {
    using namespace two_four_layout;
    const int32_t taps = extents.kernel_h * extents.kernel_w, units = units_over(extents.in_channels, unit_columns),
                  row_units = units_over(extents.out_channels, unit_rows);
    constexpr auto unit_words = static_cast<int32_t>(unit_bytes / sizeof(float));
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {unit_words, taps * units, row_units}, {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {extents.out_channels}, {}};
    if (source.filter) {
        std::vector<unsigned char> bytes(static_cast<size_t>(unit_bytes) * taps * units * row_units);
        const auto take = [&](const Four &four, const auto &values, const auto &places) {
            const int64_t unit =
                (int64_t{four.output / unit_rows} * taps + four.tap) * units + four.channel / unit_columns;
            Line(bytes.data() + unit * unit_bytes, four.output % unit_rows)
                .put(four.channel % unit_columns / fours, values, places);
        };
        const std::optional<Four> unfit = keep_all(
            extents, source, units * unit_columns, [&](float value) { bias.values.push_back(value); }, take);
        if (unfit) {
            throw SourceError(
                "its layout is for weights of the pattern 2:4, but of output channel " + std::to_string(unfit->output) +
                ", kernel position " + std::to_string(unfit->tap / extents.kernel_w) + ", " +
                std::to_string(unfit->tap % extents.kernel_w) + ", more than two of the four input channels from " +
                std::to_string(unfit->channel) + " on are not 0");
        }
        // Zeros behind the last output channel need places, too.
        for (int32_t o = extents.out_channels; o < row_units * unit_rows; o++) {
            for (int32_t unit = 0; unit < taps * units; unit++) {
                for (int32_t i = 0; i < unit_columns / fours; i++) {
                    Line(bytes.data() + (int64_t{o / unit_rows} * taps * units + unit) * unit_bytes, o % unit_rows)
                        .put(i, {0, 0}, {0, 1});
                }
            }
        }
        weights.values.resize(bytes.size() / sizeof(float));
        std::memcpy(weights.values.data(), bytes.data(), bytes.size());
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

}  // namespace distile
