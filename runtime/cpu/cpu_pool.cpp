#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/float_rows.h"
#include "runtime/cpu/mask_parts.h"

namespace distile {

namespace {

/** The taps of a window along one axis that are in the image: `count` of them from `first` on, `step` apart. */
struct Taps {
    Taps(int32_t kernel, int32_t stride, int32_t dilation, int32_t pad, int32_t extent, int64_t at) : step(dilation) {
        const int64_t start = at * stride - pad, before = start < 0 ? (dilation - 1 - start) / dilation : 0;
        first = start + before * dilation;
        count = std::min(int64_t{kernel} - before, (extent - 1 - first) / dilation + 1);
    }
    int64_t first, count, step;
};

/** Pools windows of a task. */
class Pooler {
public:
    Pooler(const Pooling &what, const FloatRows &rows, int64_t task)
        : what_(what), level_(supported_simd_levels().best()), tap_(rows.row(task, 0)), result_(rows.row(task, 1)) {
    }

    void row(int64_t number, int32_t begin, int32_t end) {
        const distile_window &window = what_.window;
        const distile_tensor &input = what_.input;
        const int64_t image = number / what_.output.height, y = number % what_.output.height;
        const Taps rows(window.kernel_h, window.stride_h, window.dilation_h, window.pad_top, input.height, y);
        const PixelRow to(what_.output, number);
        for (int32_t x = begin; x < end; x++) {
            const Taps columns(window.kernel_w, window.stride_w, window.dilation_w, window.pad_left, input.width, x);
            float *const result = result_at(to, x, result_);
            for (int64_t i = 0; i < rows.count; i++) {
                const PixelRow from(input, image * input.height + rows.first + i * rows.step);
                take_row(from, columns, i == 0, result);
            }
            if (!what_.largest) {
                const int64_t pixels =
                    what_.count_padding ? int64_t{window.kernel_h} * window.kernel_w : rows.count * columns.count;
                level_.channels.divide(static_cast<float>(pixels), to.channels, result);
            }
            store_floats(level_, result, to, x);
        }
    }

private:
    /** Adds a row of the window to the result, or starts it. */
    void take_row(const PixelRow &from, const Taps &columns, bool is_first, float *result) {
        int64_t tap = 0;
        if (is_first) {
            to_float32(level_, from.dtype, from.at(columns.first), result, from.channels);
            tap = 1;
        }
        const auto take = what_.largest ? level_.channels.maximize : level_.channels.add;
        for (; tap < columns.count; tap++) {
            take(result, floats_at(level_, from, columns.first + tap * columns.step, tap_), from.channels, result);
        }
    }

    const Pooling &what_;
    const SimdLevel &level_;
    float *tap_, *result_;
};

}  // namespace

void CpuDevice::pool(const Pooling &pooling) {
    const Bitmask &bits = cpu_mask(pooling.mask).bitmask();
    const distile_tensor &output = pooling.output;
    const int64_t bytes = output.channels * element_bytes(output.dtype);
    // At most as many reads as there are pixels in the input.
    const int64_t reads = std::min(int64_t{pooling.window.kernel_h} * pooling.window.kernel_w,
                                   int64_t{pooling.input.height} * pooling.input.width);
    constexpr int64_t most_reads = 1 << 20;
    const MaskParts parts(context, bits, pooling.mask.active_pixels(),
                          {(std::min(reads, most_reads) + 1) * bytes, pooling.zero ? bytes : 0});
    const FloatRows rows(*this, output.channels, parts.count(), 2);
    parts.for_each([&](int64_t task, const MaskPart &part) {
        Pooler pooler(pooling, rows, task);
        for_each_run(bits, part, true, [&](int64_t row, int32_t begin, int32_t end) { pooler.row(row, begin, end); });
        if (pooling.zero) {
            zero_inactive(bits, part, output);
        }
    });
}

}  // namespace distile
