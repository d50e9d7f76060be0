#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/mask_parts.h"
#include "runtime/cpu/to_float32.h"
#include <cmath>

namespace distile {

namespace {

/** The float32 arrays of a call: gamma and beta where the caller has none, and a pixel's channels for each task, unless
 * they are float32 already. */
class Workspace {
public:
    Workspace(CpuDevice &device, const Normalization &what, int64_t tasks)
        : channels_(what.output.channels), is_float32_(what.output.dtype == DISTILE_FLOAT32) {
        const int64_t arrays = (what.gamma ? 0 : 1) + (what.beta ? 0 : 1) + (is_float32_ ? 0 : tasks);
        if (arrays > 0) {
            memory_ = device.take_scratch(static_cast<size_t>(arrays * stride()) * sizeof(float));
        }
        next_ = static_cast<float *>(memory_.get());
        gamma = what.gamma ? what.gamma : filled(1);
        beta = what.beta ? what.beta : filled(0);
    }
    /** Null for float32. */
    float *row_of_task(int64_t task) const {
        return is_float32_ ? nullptr : next_ + task * stride();
    }

    const float *gamma, *beta;

private:
    /** Whole cache lines. */
    int64_t stride() const {
        return (channels_ + 15) / 16 * 16;
    }
    const float *filled(float value) {
        float *array = next_;
        next_ += stride();
        std::fill_n(array, channels_, value);
        return array;
    }

    int64_t channels_;
    bool is_float32_;
    ScratchMemory memory_;
    float *next_;
};

/** Normalizes pixels of a task. */
class Normalizer {
public:
    Normalizer(const Normalization &what, const Workspace &workspace, int64_t task)
        : what_(what), level_(supported_simd_levels().best()),
          row_(workspace.row_of_task(task)), norm_{0, 0, 0, workspace.gamma, workspace.beta} {
    }

    void pixel(const char *from, char *to) {
        const int64_t channels = what_.output.channels;
        const distile_dtype dtype = what_.output.dtype;
        if (!row_) {
            normalize(reinterpret_cast<const float *>(from), channels, reinterpret_cast<float *>(to));
            return;
        }
        to_float32(level_, dtype, from, row_, channels);
        normalize(row_, channels, row_);
        from_float32(level_, dtype, row_, to, channels);
    }

private:
    void normalize(const float *from, int64_t channels, float *to) {
        const auto count = static_cast<float>(channels);
        if (what_.centred) {
            norm_.shift = from[0];
            norm_.mean = level_.sum_differences(from, channels, norm_.shift) / count;
        }
        const float mean_of_squares = level_.sum_squares(from, channels, norm_.shift, norm_.mean) / count;
        norm_.factor = 1 / std::sqrt(mean_of_squares + what_.epsilon);
        level_.normalize(from, channels, norm_, to);
    }

    const Normalization &what_;
    const SimdLevel &level_;
    float *row_;
    RowNorm norm_;
};

}  // namespace

void CpuDevice::normalize(const Normalization &normalization) {
    const Bitmask &bits = cpu_mask(normalization.mask).bitmask();
    const distile_tensor &input = normalization.input, &output = normalization.output;
    const int64_t bytes = output.channels * element_bytes(output.dtype);
    // Two sums and the result read a pixel, of which the first is the slowest.
    const MaskParts parts(context, bits, normalization.mask.active_pixels(),
                          {3 * bytes, normalization.zero ? bytes : 0});
    const Workspace workspace(*this, normalization, parts.count());
    parts.for_each([&](int64_t task, const MaskPart &part) {
        Normalizer normalizer(normalization, workspace, task);
        for_each_run(bits, part, true, [&](int64_t row, int32_t begin, int32_t end) {
            const PixelRow from(input, row), to(output, row);
            for (int32_t x = begin; x < end; x++) {
                normalizer.pixel(from.at(x), to.at(x));
            }
        });
        if (normalization.zero) {
            zero_inactive(bits, part, output);
        }
    });
}

}  // namespace distile
