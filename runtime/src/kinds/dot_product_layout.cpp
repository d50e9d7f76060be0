#include "dot_product_layout.h"
#include "conv2d.h"
#include "polyphase.h"
#include "requantization.h"
#include <algorithm>

namespace distile {

namespace {

constexpr int32_t block = requantized_block, step_groups = 16;

/** The steps of each phase along the reduction. */
class Steps {
public:
    Steps(const ReadChannels &reads, const PhasedTaps &rows, const PhasedTaps &columns, int32_t step_elements)
        : reads_(reads), rows_(rows), columns_(columns), step_elements_(step_elements) {
    }

    int32_t num_phases() const {
        return static_cast<int32_t>(rows_.phases.size() * columns_.phases.size());
    }
    int32_t count() const {
        int32_t steps = 0;
        visit([&](int32_t, int32_t first_step, const PhasedTaps::Range &rows, const PhasedTaps::Range &columns) {
            steps = first_step + steps_of(rows, columns);
        });
        return steps;
    }
    /** Calls store(phase, first step of the phase, element of its reduction, element of a channel's weights as
     * fold_channel() makes them) for the weights of an output channel. */
    template<typename Store> void visit_elements(int32_t out_channel, const Store &store) const {
        const int32_t channels = reads_.group_inputs, all = reads_.count(),
                      shift = out_channel / reads_.group_outputs * channels - reads_.first(out_channel);
        visit([&](int32_t phase, int32_t first_step, const PhasedTaps::Range &rows, const PhasedTaps::Range &columns) {
            const int64_t height = rows.end - rows.begin, width = columns.end - columns.begin;
            for (int64_t y = 0; y < height; y++) {
                for (int64_t x = 0; x < width; x++) {
                    const int64_t k =
                        reads_.is_depthwise() ? x * column_elements(height) + y : (y * width + x) * all + shift;
                    const size_t from = (rows.begin + y) * columns_.taps.size() + columns.begin + x;
                    for (int32_t i = 0; i < channels; i++) {
                        store(phase, first_step, k + i, from * channels + i);
                    }
                }
            }
        });
    }

private:
    static int64_t column_elements(int64_t height) {
        constexpr int64_t group = 4;
        return (height + group - 1) / group * group;
    }
    int32_t steps_of(const PhasedTaps::Range &rows, const PhasedTaps::Range &columns) const {
        const int64_t height = rows.end - rows.begin, width = columns.end - columns.begin;
        const int64_t elements =
            reads_.is_depthwise() ? column_elements(height) * width : height * width * reads_.count();
        return static_cast<int32_t>((elements + step_elements_ - 1) / step_elements_);
    }
    template<typename Visit> void visit(const Visit &visit) const {
        int32_t phase = 0, first_step = 0;
        for (const PhasedTaps::Range &rows : rows_.phases) {
            for (const PhasedTaps::Range &columns : columns_.phases) {
                visit(phase++, first_step, rows, columns);
                first_step += steps_of(rows, columns);
            }
        }
    }

    const ReadChannels &reads_;
    const PhasedTaps &rows_, &columns_;
    int32_t step_elements_;
};

std::vector<distile_taps> taps_of(const PolyphaseAxis &axis) {
    std::vector<distile_taps> taps;
    for (const Phase &phase : axis.phases()) {
        taps.push_back({phase.first, phase.step, phase.taps});
    }
    return taps;
}

}  // namespace

int32_t ReadChannels::count() const {
    if (is_depthwise()) {
        return block;
    }
    // A block may begin at any channel of a group.
    const int32_t parts = group_outputs % block == 0   ? 1
                          : block % group_outputs == 0 ? block / group_outputs
                                                       : (block - 2) / group_outputs + 2;
    return std::min(parts, groups) * group_inputs;
}

int32_t ReadChannels::first(int32_t out_channel) const {
    const int32_t group = out_channel / block * block / group_outputs;
    return std::min(group * group_inputs, groups * group_inputs - count());
}

PhasedTaps phase_of_all(int kernel) {
    return {single_taps(kernel), {{0, kernel}}};
}

std::vector<PackedArray> pack_for_dot_products(const FilterExtents &extents, const ReadChannels &reads,
                                               const PhasedTaps &rows, const PhasedTaps &columns,
                                               const FilterSource &source, const WeightLayout &layout) {
    const Steps all(reads, rows, columns, layout.block);
    const int32_t blocks = (extents.out_channels + block - 1) / block, steps = all.count(), phases = all.num_phases();
    const int32_t step_size = block * layout.block, group = layout.block / step_groups;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {step_size, steps, blocks}, {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {block * blocks}, {}};
    WeightSums sums(extents, source, phases, true);
    if (source.filter) {
        weights.values.resize(static_cast<size_t>(step_size) * steps * blocks);
        bias.values.resize(static_cast<size_t>(block) * blocks);
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            bias.values[o] = fold_channel(extents, rows.taps, columns.taps, source, o, folded);
            float *const to = weights.values.data() + static_cast<size_t>(o / block) * steps * step_size;
            all.visit_elements(o, [&](int32_t phase, int32_t first_step, int64_t k, size_t from) {
                to[static_cast<int64_t>(first_step) * step_size + (k / group * block + o % block) * group + k % group] =
                    folded[from];
                sums.add(o, phase, folded[from]);
            });
        }
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    add_requantization(source, sums, packed);
    return packed;
}

DotProductTaps dot_product_taps(distile_operator_kind kind, const distile_conv2d &conv) {
    const ReadChannels reads(filter_extents(conv), conv.groups);
    const int32_t read_channels = reads.is_depthwise() ? 0 : reads.count();
    if (const auto phases = polyphase_of(kind, conv)) {
        return {conv.stride_h,         conv.stride_w,           1, 1, conv.groups, read_channels,
                taps_of(phases->rows), taps_of(phases->columns)};
    }
    return {1,
            1,
            conv.stride_h,
            conv.stride_w,
            conv.groups,
            read_channels,
            {{-conv.pad_top, conv.dilation_h, conv.kernel_h}},
            {{-conv.pad_left, conv.dilation_w, conv.kernel_w}}};
}

}  // namespace distile
