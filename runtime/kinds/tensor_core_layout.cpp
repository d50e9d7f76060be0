#include "runtime/kinds/tensor_core_layout.h"
#include "runtime/kinds/requantization.h"
#include "runtime/kinds/tf32.h"

namespace distile {

namespace {

constexpr int32_t row_bytes = 128, row_pieces = 8;

int32_t round_up(int32_t value, int32_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<PackedArray> pack_for_tensor_cores(const FilterExtents &extents, const FilterSource &source,
                                               const WeightLayout &layout, const GroupPanels &panels) {
    const int32_t step = layout.block, piece = step / row_pieces, rows = round_up(panels.outputs, row_pieces);
    const int32_t channels = panels.inputs, taps = extents.kernel_h * extents.kernel_w;
    const int32_t block = channels % step == 0 ? step : channels;
    const int32_t steps = round_up(taps * channels, step) / step;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {step, rows, steps * panels.count}, {}};
    const int32_t biases = round_up(extents.out_channels, source.quantized ? requantized_block : row_pieces);
    PackedArray bias{DISTILE_ROLE_BIAS, {biases}, {}};
    WeightSums sums(extents, source, 1, false);
    if (source.filter) {
        const bool as_tf32 = step * static_cast<int32_t>(sizeof(float)) == row_bytes;
        weights.values.assign(static_cast<size_t>(step) * rows * steps * panels.count, 0);
        bias.values.assign(biases, 0);
        const std::vector<MergedTap> kernel_rows = single_taps(extents.kernel_h),
                                     kernel_columns = single_taps(extents.kernel_w);
        const int32_t group_outputs = panels.outputs / panels.groups;
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            bias.values[o] = fold_channel(extents, kernel_rows, kernel_columns, source, o, folded);
            const float *from = folded.data();
            const int32_t row = o % panels.outputs, first_step = o / panels.outputs * steps;
            const int32_t first_channel = row / group_outputs * extents.in_channels;
            for (int32_t tap = 0; tap < taps; tap++) {
                for (int32_t i = first_channel; i < first_channel + extents.in_channels; i++, from++) {
                    const int32_t k = (i / block * taps + tap) * block + i % block, element = k % step;
                    const int32_t place = ((element / piece) ^ (row % row_pieces)) * piece + element % piece;
                    weights.values[(static_cast<size_t>(first_step + k / step) * rows + row) * step + place] =
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
