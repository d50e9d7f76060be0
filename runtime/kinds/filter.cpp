#include "runtime/kinds/filter.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** The strides of the source filter. */
struct SourceStrides {
    size_t out_channel, in_channel, row, column;
};

SourceStrides strides_of(distile_weights_order order, size_t o, size_t i, size_t h, size_t w) {
    switch (order) {
    case DISTILE_OIHW:
        return {i * h * w, h * w, w, 1};
    case DISTILE_OHWI:
        return {h * w * i, 1, w * i, i};
    case DISTILE_HWIO:
        return {1, o, w * i * o, i * o};
    case DISTILE_IOHW:
        return {h * w, o * h * w, w, 1};
    }
    return {};
}

/** The scale and the shift of an output channel's sums. */
struct Affine {
    float scale, bias;
};

Affine affine_of(const distile_weights_source &source, int32_t o) {
    const float bias = source.bias ? source.bias[o] : 0;
    if (!source.bn_mean) {
        return {1, bias};
    }
    const float variance = source.bn_variance[o] + source.bn_epsilon;
    if (!(variance > 0)) {
        throw SourceError("variance + epsilon is " + std::to_string(variance) + " at output channel " +
                          std::to_string(o) + ", not above 0");
    }
    const float scale = (source.bn_gamma ? source.bn_gamma[o] : 1) / std::sqrt(variance);
    return {scale, (bias - source.bn_mean[o]) * scale + (source.bn_beta ? source.bn_beta[o] : 0)};
}

/** A weight is summed and scaled in double precision, and rounded once. */
float scaled(const Affine &affine, double sum) {
    return static_cast<float>(affine.scale * sum);
}

}  // namespace

std::vector<MergedTap> single_taps(int kernel) {
    std::vector<MergedTap> taps;
    taps.reserve(kernel);
    for (int i = 0; i < kernel; i++) {
        taps.push_back({i, i + 1});
    }
    return taps;
}

float fold_channel(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                   const std::vector<MergedTap> &columns, const FilterSource &source, int32_t o,
                   std::vector<float> &weights) {
    const size_t in_channels = extents.in_channels;
    const SourceStrides from =
        strides_of(source.source.order, extents.out_channels, in_channels, extents.kernel_h, extents.kernel_w);
    const Affine affine = affine_of(source.source, o);
    weights.resize(rows.size() * columns.size() * in_channels);
    float *to = weights.data();
    for (const MergedTap &row : rows) {
        for (const MergedTap &column : columns) {
            for (size_t i = 0; i < in_channels; i++) {
                const float *taps = source.filter + o * from.out_channel + i * from.in_channel;
                double sum = 0;
                for (int h = row.begin; h < row.end; h++) {
                    for (int w = column.begin; w < column.end; w++) {
                        sum += taps[h * from.row + w * from.column];
                    }
                }
                *to++ = scaled(affine, sum);
            }
        }
    }
    return affine.bias;
}

namespace {

/** Output channels that follow each other in a block of packed weights. */
struct Run {
    int32_t first_output, channels;
    size_t place;  // Where the first channel is, in the order of the blocks.
};

std::vector<Run> runs_in_blocks(const FilterExtents &extents, const GroupBlocks &blocks) {
    std::vector<Run> runs;
    for (int32_t o = 0; o < extents.out_channels;) {
        const int32_t first = blocks.channel(o), begin = o;
        while (o < extents.out_channels && blocks.channel(o) == first + o - begin &&
               first % blocks.block + o - begin < blocks.block) {
            o++;
        }
        runs.push_back({begin, o - begin, static_cast<size_t>(first)});
    }
    return runs;
}

/** Folds a filter into blocks of output channels whose groups have their channels in order. */
class BlockFolding {
public:
    BlockFolding(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                 const std::vector<MergedTap> &columns, const FilterSource &source, const GroupBlocks &blocks,
                 float *weights)
        : extents_(extents), rows_(rows), columns_(columns), source_(source), blocks_(blocks), weights_(weights),
          from_(strides_of(source.source.order, extents.out_channels, extents.in_channels, extents.kernel_h,
                           extents.kernel_w)),
          runs_(runs_in_blocks(extents, blocks)) {
        affine_.reserve(extents.out_channels);
        for (int32_t o = 0; o < extents.out_channels; o++) {
            affine_.push_back(affine_of(source.source, o));
        }
    }

    void fold(PackedValues &bias) const {
        std::fill(bias.begin(), bias.end(), 0.0f);
        for (const Run &run : runs_) {
            for (int32_t lane = 0; lane < run.channels; lane++) {
                bias[run.place + lane] = affine_[run.first_output + lane].bias;
            }
        }
        // A task has as much to do as makes up for waking its thread.
        constexpr size_t task_elements = size_t{1} << 14;
        const size_t tasks = std::clamp<size_t>(block_elements() * blocks_.count() / task_elements, 1, blocks_.count());
        run_tasks(source_.loop, static_cast<int32_t>(tasks), [&](int32_t i) {
            fold_blocks(blocks_.count() * size_t(i) / tasks, blocks_.count() * (size_t(i) + 1) / tasks);
        });
    }

private:
    size_t block_elements() const {
        return rows_.size() * columns_.size() * extents_.in_channels * blocks_.block;
    }

    /** Folds the blocks [begin, end). */
    void fold_blocks(size_t begin, size_t end) const {
        const auto block = static_cast<size_t>(blocks_.block);
        const auto is_before = [](const Run &run, size_t place) { return run.place < place; };
        auto run = std::lower_bound(runs_.begin(), runs_.end(), begin * block, is_before);
        for (size_t b = begin; b < end; b++) {
            float *const to = weights_ + b * block_elements();
            size_t channels = 0;
            for (auto own = run; own != runs_.end() && own->place < (b + 1) * block; own++) {
                channels += own->channels;
            }
            if (channels < block) {
                std::fill_n(to, block_elements(), 0.0f);
            }
            for (; run != runs_.end() && run->place < (b + 1) * block; run++) {
                fold_run(*run, to + run->place % block);
            }
        }
    }

    /** Folds channels of a block. Takes some input channels at a time, whose weights the nearest caches hold for all
     * taps, and writes all weights together that share a tap and an input channel, because they share a cache line. */
    void fold_run(const Run &run, float *to) const {
        constexpr int32_t chunk = 64;
        for (int32_t first = 0; first < extents_.in_channels; first += chunk) {
            const int32_t end = std::min(first + chunk, extents_.in_channels);
            size_t tap = 0;
            for (const MergedTap &row : rows_) {
                for (const MergedTap &column : columns_) {
                    float *line = to + (tap++ * extents_.in_channels + first) * blocks_.block;
                    for (int32_t i = first; i < end; i++, line += blocks_.block) {
                        fold_line(run, row, column, i, line);
                    }
                }
            }
        }
    }

    void fold_line(const Run &run, const MergedTap &row, const MergedTap &column, int32_t i, float *line) const {
        const float *from = source_.filter + run.first_output * from_.out_channel + i * from_.in_channel +
                            row.begin * from_.row + column.begin * from_.column;
        const Affine *const affine = &affine_[run.first_output];
        if (row.end - row.begin == 1 && column.end - column.begin == 1) {
            for (int32_t lane = 0; lane < run.channels; lane++, from += from_.out_channel) {
                line[lane] = scaled(affine[lane], *from);
            }
        } else {
            for (int32_t lane = 0; lane < run.channels; lane++, from += from_.out_channel) {
                line[lane] = scaled(affine[lane], sum_of(row, column, from));
            }
        }
    }

    /** The sum of a merged tap's weights, the first of which is given. */
    double sum_of(const MergedTap &row, const MergedTap &column, const float *from) const {
        double sum = 0;
        for (int h = 0; h < row.end - row.begin; h++) {
            for (int w = 0; w < column.end - column.begin; w++) {
                sum += from[h * from_.row + w * from_.column];
            }
        }
        return sum;
    }

    const FilterExtents &extents_;
    const std::vector<MergedTap> &rows_, &columns_;
    const FilterSource &source_;
    const GroupBlocks &blocks_;
    float *weights_;
    SourceStrides from_;
    std::vector<Run> runs_;
    std::vector<Affine> affine_;
};

}  // namespace

std::vector<PackedArray> pack_filter(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                                     const std::vector<MergedTap> &columns, const FilterSource &source, int32_t block) {
    return pack_filter(extents, rows, columns, source, {1, extents.in_channels, extents.out_channels, block});
}

std::vector<PackedArray> pack_filter(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                                     const std::vector<MergedTap> &columns, const FilterSource &source,
                                     const GroupBlocks &blocks) {
    const int32_t block = blocks.block, count = blocks.count(), in_channels = extents.in_channels;
    const size_t taps = rows.size() * columns.size(), channel_elements = taps * in_channels;
    PackedArray weights{
        DISTILE_ROLE_WEIGHTS,
        {block, in_channels, static_cast<int32_t>(columns.size()), static_cast<int32_t>(rows.size()), count},
        {}};
    PackedArray bias{DISTILE_ROLE_BIAS, {block * count}, {}};
    if (!source.filter) {
        return {weights, bias};
    }
    weights.values.resize(channel_elements * block * count);
    bias.values.resize(static_cast<size_t>(block) * count);
    if (blocks.form() == GroupForm::Diagonals) {
        std::fill(weights.values.begin(), weights.values.end(), 0.0f);
        std::fill(bias.values.begin(), bias.values.end(), 0.0f);
        std::vector<float> folded;
        for (int32_t o = 0; o < extents.out_channels; o++) {
            bias.values[blocks.channel(o)] = fold_channel(extents, rows, columns, source, o, folded);
            for (int32_t i = 0; i < in_channels; i++) {
                const GroupBlocks::Place place = blocks.place(o, i);
                float *to = weights.values.data() +
                            static_cast<size_t>(place.channel / block * block) * channel_elements +
                            static_cast<size_t>(place.row) * block + place.channel % block;
                for (size_t tap = 0; tap < taps; tap++) {
                    to[tap * in_channels * block] = folded[tap * in_channels + i];
                }
            }
        }
    } else {
        BlockFolding(extents, rows, columns, source, blocks, weights.values.data()).fold(bias.values);
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

}  // namespace distile
