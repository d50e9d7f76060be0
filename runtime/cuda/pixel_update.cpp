#include "runtime/cuda/pixel_update.h"
#include "runtime/base/types.h"
#include <algorithm>

namespace distile {

PixelUnits::PixelUnits(const distile_tensor &tensor, const distile_tensor *other) : lanes(1), team(1) {
    constexpr int32_t vector_bytes = 16, most_lanes = 32;
    const int64_t element = element_bytes(tensor.dtype);
    if (is_in_units(tensor, vector_bytes) && (!other || is_in_units(*other, vector_bytes))) {
        lanes = vector_bytes / element;
    }
    unit = static_cast<int32_t>(element * lanes);
    per_pixel = static_cast<int32_t>(tensor.channels / lanes);
    while (team < static_cast<uint32_t>(std::min(per_pixel, most_lanes))) {
        team *= 2;
    }
}

PixelView PixelUnits::view_of(const distile_tensor &tensor) const {
    return {tensor.data, tensor.stride_n / lanes, tensor.stride_h / lanes, tensor.stride_w / lanes};
}

PixelUpdate make_update(const distile_tensor &output, const distile_tensor *from, const Scale &scale, bool zero,
                        uint8_t byte) {
    const PixelUnits units(output, from);
    const auto height = static_cast<uint32_t>(output.height);
    const uint32_t runs = (static_cast<uint32_t>(output.width) + pixels_per_warp - 1) / pixels_per_warp;
    PixelUpdate update{};
    update.to = units.view_of(output);
    update.from = from ? units.view_of(*from) : PixelView{};
    update.scale_h = make_divisor(static_cast<uint32_t>(scale.h));
    update.scale_w = make_divisor(static_cast<uint32_t>(scale.w));
    update.runs = make_divisor(runs);
    update.height = make_divisor(height);
    update.num_runs = static_cast<uint32_t>(output.batch) * height * runs;
    update.width = output.width;
    update.units = units.per_pixel;
    update.team = units.team;
    update.unit = units.unit;
    update.zero = zero ? 1 : 0;
    update.zeros = 0x01010101u * byte;
    return update;
}

uint32_t blocks_for(const PixelUpdate &update, uint32_t most_blocks) {
    // One warp per run, up to what the chip holds at once; then warps loop.
    constexpr uint32_t warps = block_threads / 32;
    return std::min((update.num_runs + warps - 1) / warps, most_blocks);
}

}  // namespace distile
