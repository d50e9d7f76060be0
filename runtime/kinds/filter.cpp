#include "runtime/kinds/filter.h"
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
                // Sum and scale in double precision; round once.
                double sum = 0;
                for (int h = row.begin; h < row.end; h++) {
                    for (int w = column.begin; w < column.end; w++) {
                        sum += taps[h * from.row + w * from.column];
                    }
                }
                *to++ = static_cast<float>(affine.scale * sum);
            }
        }
    }
    return affine.bias;
}

namespace {

/** Packs a filter whose groups have their channels in order. Writes all weights of a block that share a tap and an
 * input channel together, because they share a cache line. */
void fold_in_blocks(const FilterExtents &extents, const std::vector<MergedTap> &rows,
                    const std::vector<MergedTap> &columns, const FilterSource &source, const GroupBlocks &blocks,
                    std::vector<float> &weights, std::vector<float> &bias) {
    const auto block = static_cast<size_t>(blocks.block);
    const size_t channel_elements = rows.size() * columns.size() * extents.in_channels;
    std::vector<std::vector<float>> folded(block);
    for (int32_t o = 0; o < extents.out_channels;) {
        const auto first = static_cast<size_t>(blocks.channel(o));
        size_t lanes = 0;
        while (o < extents.out_channels && static_cast<size_t>(blocks.channel(o)) == first + lanes &&
               first % block + lanes < block) {
            bias[first + lanes] = fold_channel(extents, rows, columns, source, o++, folded[lanes]);
            lanes++;
        }
        float *to = weights.data() + first / block * block * channel_elements + first % block;
        for (size_t element = 0; element < channel_elements; element++, to += block) {
            for (size_t lane = 0; lane < lanes; lane++) {
                to[lane] = folded[lane][element];
            }
        }
    }
}

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
        fold_in_blocks(extents, rows, columns, source, blocks, weights.values, bias.values);
    }
    std::vector<PackedArray> packed;
    packed.push_back(std::move(weights));
    packed.push_back(std::move(bias));
    return packed;
}

}  // namespace distile
