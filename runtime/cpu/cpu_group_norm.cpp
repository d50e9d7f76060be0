#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/cpu/mask_parts.h"
#include "runtime/cpu/pixel_sums.h"
#include <cmath>

namespace distile {

namespace {

/** The norm of every channel, of each image or of all. */
class ChannelNorms {
public:
    ChannelNorms(CpuDevice &device, const GroupNormalization &what)
        : what_(what), images_(what.shared ? 1 : what.output.batch),
          rows_(device, what.output.channels, images_, num_rows) {
        if (what.mean) {
            for (int64_t image = 0; image < images_; image++) {
                set(image, what.mean + image * what.groups, what.variance + image * what.groups);
            }
            return;
        }
        const PixelSums sums(device, what.input, &what.mask, false);
        for (int64_t image = 0; image < images_; image++) {
            float *const mean = rows_.row(image, num_rows - 2), *const variance = rows_.row(image, num_rows - 1);
            sums.find_statistics(image, what.groups, mean, variance);
            set(image, mean, variance);
        }
    }
    ChannelNorm of(int64_t image) const {
        const int64_t from = what_.shared ? 0 : image;
        return {rows_.row(from, 0), rows_.row(from, 1), rows_.row(from, 2)};
    }

private:
    /** Means, factors and summands of channels; means and variances of groups. */
    static constexpr int64_t num_rows = 5;

    void set(int64_t image, const float *mean, const float *variance) const {
        const int64_t channels = what_.output.channels, size = channels / what_.groups;
        for (int64_t c = 0; c < channels; c++) {
            const int64_t group = c / size;
            rows_.row(image, 0)[c] = mean[group];
            rows_.row(image, 1)[c] = (what_.gamma ? what_.gamma[c] : 1) / std::sqrt(variance[group] + what_.epsilon);
            rows_.row(image, 2)[c] = what_.beta ? what_.beta[c] : 0;
        }
    }

    const GroupNormalization &what_;
    int64_t images_;
    FloatRows rows_;
};

}  // namespace

void CpuDevice::find_statistics(const GroupStatistics &statistics) {
    const PixelSums sums(*this, statistics.input, statistics.mask, false);
    for (int64_t image = 0; image < statistics.input.batch; image++) {
        const int64_t first = image * statistics.groups;
        sums.find_statistics(image, statistics.groups, statistics.mean + first, statistics.variance + first);
    }
}

void CpuDevice::normalize_groups(const GroupNormalization &normalization) {
    const Bitmask &bits = cpu_mask(normalization.mask).bitmask();
    const distile_tensor &input = normalization.input, &output = normalization.output;
    const SimdLevel &level = supported_simd_levels().best();
    const ChannelNorms norms(*this, normalization);
    const int64_t bytes = output.channels * element_bytes(output.dtype);
    const MaskParts parts(context, bits, normalization.mask.active_pixels(),
                          {2 * bytes, normalization.zero ? bytes : 0});
    const FloatRows rows(*this, output.channels, parts.count(), 1);
    parts.for_each([&](int64_t task, const MaskPart &part) {
        float *const memory = rows.row(task, 0);
        for_each_run(bits, part, true, [&](int64_t row, int32_t begin, int32_t end) {
            const PixelRow from(input, row), to(output, row);
            const ChannelNorm norm = norms.of(row / output.height);
            for (int32_t x = begin; x < end; x++) {
                float *const result = result_at(to, x, memory);
                level.channels.standardize(floats_at(level, from, x, memory), to.channels, norm, result);
                level.channels.activate(normalization.activation, to.channels, result);
                store_floats(level, result, to, x);
            }
        });
        if (normalization.zero) {
            zero_inactive(bits, part, output);
        }
    });
}

}  // namespace distile
