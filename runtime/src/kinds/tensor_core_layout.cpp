#include "tensor_core_layout.h"
#include "requantization.h"
#include <cstring>

namespace distile {

namespace {

constexpr int32_t row_bytes = 128, row_pieces = 8;

int32_t round_up(int32_t value, int32_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/** Rounds to 10 bits of mantissa, to nearest even. Infinity stays, and NaN stays NaN. */
float round_to_tf32(float value) {
    constexpr uint32_t dropped = 0x1fff, infinity = 0x7f800000, quiet = 0x400000;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffff) > infinity;
    bits = (is_nan ? bits | quiet : bits + dropped / 2 + (bits >> 13 & 1)) & ~dropped;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

}  // namespace

std::vector<PackedArray> pack_for_tensor_cores(const FilterExtents &extents, const FilterSource &source,
                                               const WeightLayout &layout) {
    const int32_t step = layout.block, piece = step / row_pieces, rows = round_up(extents.out_channels, row_pieces);
    const int32_t channels = extents.in_channels, taps = extents.kernel_h * extents.kernel_w;
    const int32_t block = channels % step == 0 ? step : channels;
    const int32_t steps = round_up(taps * channels, step) / step;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {step, rows, steps}, {}};
    const int32_t biases = source.quantized ? round_up(rows, requantized_block) : rows;
    PackedArray bias{DISTILE_ROLE_BIAS, {biases}, {}};
    WeightSums sums(extents, source, 1, false);
    if (source.filter) {
        const bool as_tf32 = step * static_cast<int32_t>(sizeof(float)) == row_bytes;
        weights.values.resize(static_cast<size_t>(step) * rows * steps);
        bias.values.resize(biases);
        const std::vector<MergedTap> kernel_rows = single_taps(extents.kernel_h),
                                     kernel_columns = single_taps(extents.kernel_w);
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            bias.values[o] = fold_channel(extents, kernel_rows, kernel_columns, source, o, folded);
            const float *from = folded.data();
            for (int32_t tap = 0; tap < taps; tap++) {
                for (int32_t i = 0; i < channels; i++, from++) {
                    const int32_t k = (i / block * taps + tap) * block + i % block, element = k % step;
                    const int32_t place = ((element / piece) ^ (o % row_pieces)) * piece + element % piece;
                    weights.values[(static_cast<size_t>(k / step) * rows + o) * step + place] =
                        as_tf32 ? round_to_tf32(*from) : *from;
                    sums.add(o, 0, *from);
                }
            }
        }
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    add_requantization(source, sums, packed);
    return packed;
}

}  // namespace distile
