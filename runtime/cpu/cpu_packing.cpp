#include "runtime/cpu/cpu_device.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/mask_parts.h"

namespace distile {

namespace {

/** Pixels of a row, from x on. */
struct PixelSpan {
    const PixelRow &row;
    int64_t x;
};

void copy_span(const PixelSpan &from, const PixelSpan &to, int64_t count) {
    // Pixels without gaps are one array.
    const int64_t step = from.row.stride == from.row.bytes && to.row.stride == to.row.bytes ? count : 1;
    for (int64_t i = 0; i < count; i += step) {
        std::memcpy(to.row.at(to.x + i), from.row.at(from.x + i), from.row.bytes * step);
    }
}

/** Copies between the active pixels of a part and their places in the packed tensor. */
void move_part(const Bitmask &bits, const MaskPart &part, const distile_tensor &tensor, const distile_tensor &packed,
               bool to_packed) {
    int64_t at = part.active_before;
    for_each_run(bits, part, true, [&](int64_t row, int32_t begin, int32_t end) {
        const PixelRow pixels(tensor, row);
        for (int64_t x = begin; x < end;) {
            // As far as this row of the packed tensor goes.
            const PixelRow packed_row(packed, at / packed.width);
            const int64_t packed_x = at % packed.width, count = std::min(end - x, packed.width - packed_x);
            const PixelSpan span{pixels, x}, packed_span{packed_row, packed_x};
            copy_span(to_packed ? span : packed_span, to_packed ? packed_span : span, count);
            x += count;
            at += count;
        }
    });
}

}  // namespace

void CpuDevice::pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) {
    const Bitmask &bits = cpu_mask(mask).bitmask();
    const int64_t bytes = tensor.channels * element_bytes(tensor.dtype);
    MaskParts(context, bits, mask.active_pixels(), {2 * bytes, 0}).for_each([&](int64_t, const MaskPart &part) {
        move_part(bits, part, tensor, packed, true);
    });
}

void CpuDevice::unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) {
    const Bitmask &bits = cpu_mask(mask).bitmask();
    const int64_t bytes = tensor.channels * element_bytes(tensor.dtype);
    const MaskParts parts(context, bits, mask.active_pixels(), {2 * bytes, zero ? bytes : 0});
    parts.for_each([&](int64_t, const MaskPart &part) {
        move_part(bits, part, tensor, packed, false);
        if (zero) {
            zero_inactive(bits, part, tensor);
        }
    });
}

}  // namespace distile
