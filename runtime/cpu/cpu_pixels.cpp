#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/pixel_runs.h"
#include "runtime/cpu/to_float32.h"
#include <cstring>

namespace distile {

namespace {

/** Copies pixels of one type, or converts them to float32. */
void copy_pixels(const PixelRow &from, const PixelRow &to, int32_t begin, int32_t end) {
    // Pixels without gaps are one array.
    const int32_t step = from.stride == from.bytes && to.stride == to.bytes ? end - begin : 1;
    for (int32_t x = begin; x < end; x += step) {
        if (from.dtype == to.dtype) {
            std::memcpy(to.at(x), from.at(x), to.bytes * step);
        } else {
            to_float32(supported_simd_levels().best(), from.dtype, from.at(x), reinterpret_cast<float *>(to.at(x)),
                       to.channels * step);
        }
    }
}

/** The bytes moved: `copy` reads and writes the `active` pixels, and `zero` writes the others. */
int64_t moved_bytes(const distile_tensor &output, int64_t active, bool copy, bool zero) {
    const int64_t pixels = int64_t{output.batch} * output.height * output.width;
    return output.channels * element_bytes(output.dtype) * ((copy ? 2 * active : 0) + (zero ? pixels - active : 0));
}

}  // namespace

void CpuDevice::update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from, bool zero) {
    const int64_t pixels = int64_t{output.batch} * output.height * output.width;
    const int64_t active = mask ? mask->active_pixels() : from ? pixels : 0;
    const Bitmask bits = mask ? cpu_mask(*mask).bitmask() : Bitmask{};
    for_each_row(context, output, moved_bytes(output, active, from != nullptr, zero), [&](int64_t row) {
        const PixelRow to(output, row);
        const uint64_t *words = mask ? bits.words + row * bits.words_per_row() : nullptr;
        if (from) {
            const PixelRow source(*from, row);
            const auto copy = [&](int32_t begin, int32_t end) { copy_pixels(source, to, begin, end); };
            if (words) {
                for_each_run(words, output.width, true, copy);
            } else {
                copy(0, output.width);
            }
        }
        if (zero && words) {
            for_each_run(words, output.width, false, [&](int32_t begin, int32_t end) { zero_pixels(to, begin, end); });
        } else if (zero && !from) {
            zero_pixels(to, 0, output.width);
        }
    });
}

void CpuDevice::write(const Zeros &zeros) {
    if (zeros.byte == 0) {
        update_pixels(&zeros.mask, zeros.output, nullptr, true);
        return;
    }
    const Bitmask &bits = cpu_mask(zeros.mask).bitmask();
    for_each_row(context, zeros.output, moved_bytes(zeros.output, zeros.mask.active_pixels(), false, true),
                 [&](int64_t row) {
                     const PixelRow to(zeros.output, row);
                     for_each_run(bits.words + row * bits.words_per_row(), zeros.output.width, false,
                                  [&](int32_t begin, int32_t end) { fill_pixels(to, begin, end, zeros.byte); });
                 });
}

void CpuDevice::upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                                 int32_t scale_h, int32_t scale_w, bool zero) {
    const Bitmask &bits = cpu_mask(mask).bitmask();
    for_each_row(context, output, moved_bytes(output, mask.active_pixels(), true, zero), [&](int64_t row) {
        const uint64_t *words = bits.words + row * bits.words_per_row();
        const int64_t image = row / output.height, y = row % output.height;
        const PixelRow from(input, image * input.height + y / scale_h), to(output, row);
        for_each_run(words, output.width, true, [&](int32_t begin, int32_t end) {
            int32_t column = begin / scale_w, left = scale_w - begin % scale_w;
            for (int32_t x = begin; x < end; x++) {
                std::memcpy(to.at(x), from.at(column), to.bytes);
                if (--left == 0) {
                    column++;
                    left = scale_w;
                }
            }
        });
        if (zero) {
            for_each_run(words, output.width, false, [&](int32_t begin, int32_t end) { zero_pixels(to, begin, end); });
        }
    });
}

}  // namespace distile
