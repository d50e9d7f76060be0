#include "runtime/kinds/dot_product_layout.h"
#include "kernels/dot_products.h"
#include "runtime/kinds/conv2d.h"
#include "runtime/kinds/polyphase.h"
#include "runtime/kinds/requantization.h"
#include <utility>

namespace distile {

namespace {

constexpr int32_t block = ChannelSections::block, step_packs = 16;
static_assert(block == requantized_block);

/** The steps of each phase along the reduction. */
class Steps {
public:
    Steps(const ChannelSections &sections, const PhasedTaps &rows, const PhasedTaps &columns, int32_t step_elements)
        : sections_(sections), rows_(rows), columns_(columns), step_elements_(step_elements) {
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
        const int32_t channels = sections_.group_inputs, all = sections_.inputs(),
                      shift = out_channel / sections_.group_outputs * channels - sections_.first_input(out_channel);
        visit([&](int32_t phase, int32_t first_step, const PhasedTaps::Range &rows, const PhasedTaps::Range &columns) {
            const int64_t height = rows.end - rows.begin, width = columns.end - columns.begin;
            for (int64_t y = 0; y < height; y++) {
                for (int64_t x = 0; x < width; x++) {
                    const int64_t k =
                        sections_.is_depthwise() ? x * column_elements(height) + y : (y * width + x) * all + shift;
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
            sections_.is_depthwise() ? column_elements(height) * width : height * width * sections_.inputs();
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

    const ChannelSections &sections_;
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

ChannelSections sections_of(const FilterExtents &extents, int32_t groups, int32_t pack) {
    return {groups, extents.in_channels, extents.out_channels / groups, pack};
}

}  // namespace

int32_t pack_of(const WeightLayout &layout) {
    return layout.block / step_packs;
}

PhasedTaps phase_of_all(int kernel) {
    return {single_taps(kernel), {{0, kernel}}};
}

std::vector<PackedArray> pack_for_dot_products(const FilterExtents &extents, int32_t groups, const PhasedTaps &rows,
                                               const PhasedTaps &columns, const FilterSource &source,
                                               const WeightLayout &layout) {
    const int32_t pack = pack_of(layout);
    const ChannelSections sections = sections_of(extents, groups, pack);
    const Steps all(sections, rows, columns, layout.block);
    const int32_t blocks = sections.blocks(), steps = all.count(), phases = all.num_phases();
    const int32_t step_size = block * layout.block;
    PackedArray weights{DISTILE_ROLE_WEIGHTS, {step_size, steps, blocks}, {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {block * blocks}, {}};
    WeightSums sums(extents, source, phases, true);
    if (source.filter) {
        weights.values.assign(static_cast<size_t>(step_size) * steps * blocks, 0);
        bias.values.assign(static_cast<size_t>(block) * blocks, 0);
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            const int32_t place = sections.channel(o);
            bias.values[place] = fold_channel(extents, rows.taps, columns.taps, source, o, folded);
            float *const to = weights.values.data() + static_cast<size_t>(place / block) * steps * step_size;
            all.visit_elements(o, [&](int32_t phase, int32_t first_step, int64_t k, size_t from) {
                to[static_cast<int64_t>(first_step) * step_size + (k / pack * block + place % block) * pack +
                   k % pack] = folded[from];
                sums.add(o, phase, folded[from]);
            });
        }
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    add_requantization(source, sums, packed, [&](int32_t o) { return sections.channel(o); });
    return packed;
}

DotProductTaps dot_product_taps(distile_operator_kind kind, const distile_conv2d &conv, int32_t pack) {
    const ChannelSections sections = sections_of(filter_extents(conv), conv.groups, pack);
    DotProductTaps taps{1,
                        1,
                        conv.stride_h,
                        conv.stride_w,
                        sections.is_depthwise() ? 0 : sections.inputs(),
                        sections.outputs(),
                        sections.apart(),
                        {},
                        {}};
    if (const auto phases = polyphase_of(kind, conv)) {
        std::swap(taps.scale_h, taps.stride_h);
        std::swap(taps.scale_w, taps.stride_w);
        taps.rows = taps_of(phases->rows);
        taps.columns = taps_of(phases->columns);
    } else {
        taps.rows = {{-conv.pad_top, conv.dilation_h, conv.kernel_h}};
        taps.columns = {{-conv.pad_left, conv.dilation_w, conv.kernel_w}};
    }
    return taps;
}

}  // namespace distile
