#include "dot_product_layout.h"
#include "polyphase.h"

namespace distile {

namespace {

constexpr int32_t block = 16, step_elements = 32, step_size = block * step_elements;

int32_t steps_of(int64_t elements) {
    return static_cast<int32_t>((elements + step_elements - 1) / step_elements);
}

/** The elements of a channel's weights, which fold_channel() made, in the order of the reduction. */
template<typename Store>
void visit_phases(const FilterExtents &extents, const PhasedTaps &rows, const PhasedTaps &columns, const Store &store) {
    const size_t channels = extents.in_channels;
    int32_t first_step = 0;
    for (const PhasedTaps::Range &phase_rows : rows.phases) {
        for (const PhasedTaps::Range &phase_columns : columns.phases) {
            int64_t k = 0;
            for (int y = phase_rows.begin; y < phase_rows.end; y++) {
                for (int x = phase_columns.begin; x < phase_columns.end; x++) {
                    for (size_t i = 0; i < channels; i++, k++) {
                        store(first_step, k, (y * columns.taps.size() + x) * channels + i);
                    }
                }
            }
            first_step += steps_of(k);
        }
    }
}

std::vector<distile_taps> taps_of(const PolyphaseAxis &axis) {
    std::vector<distile_taps> taps;
    for (const Phase &phase : axis.phases()) {
        taps.push_back({phase.first, phase.step, phase.taps});
    }
    return taps;
}

}  // namespace

PhasedTaps phase_of_all(int kernel) {
    return {single_taps(kernel), {{0, kernel}}};
}

std::vector<PackedArray> pack_for_dot_products(const FilterExtents &extents, const PhasedTaps &rows,
                                               const PhasedTaps &columns, const FilterSource &source) {
    const int32_t blocks = (extents.out_channels + block - 1) / block;
    int32_t steps = 0;
    for (const PhasedTaps::Range &phase_rows : rows.phases) {
        for (const PhasedTaps::Range &phase_columns : columns.phases) {
            steps += steps_of(int64_t{phase_rows.end - phase_rows.begin} * (phase_columns.end - phase_columns.begin) *
                              extents.in_channels);
        }
    }
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {step_size, steps, blocks}, {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {block * blocks}, {}};
    if (source.filter) {
        weights.values.resize(static_cast<size_t>(step_size) * steps * blocks);
        bias.values.resize(static_cast<size_t>(block) * blocks);
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            bias.values[o] = fold_channel(extents, rows.taps, columns.taps, source, o, folded);
            float *const to = weights.values.data() + static_cast<size_t>(o / block) * steps * step_size;
            visit_phases(extents, rows, columns, [&](int32_t first_step, int64_t k, size_t from) {
                const int64_t pair = k / 2;
                to[static_cast<int64_t>(first_step) * step_size + (pair * block + o % block) * 2 + k % 2] =
                    folded[from];
            });
        }
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

DotProductTaps dot_product_taps(distile_operator_kind kind, const distile_conv2d &conv) {
    if (const auto phases = polyphase_of(kind, conv)) {
        return {conv.stride_h, conv.stride_w, 1, 1, taps_of(phases->rows), taps_of(phases->columns)};
    }
    return {1,
            1,
            conv.stride_h,
            conv.stride_w,
            {{-conv.pad_top, conv.dilation_h, conv.kernel_h}},
            {{-conv.pad_left, conv.dilation_w, conv.kernel_w}}};
}

}  // namespace distile
