#include "pixel_update.h"
#include "types.h"
#include <algorithm>

namespace distile {

namespace {

PixelView view_of(const distile_tensor &tensor, int64_t lanes) {
    return {tensor.data, tensor.stride_n / lanes, tensor.stride_h / lanes, tensor.stride_w / lanes};
}

}  // namespace

PixelUpdate make_update(const distile_tensor &output, const distile_tensor *from, const Scale &scale, bool zero) {
    constexpr int32_t vector_bytes = 16, most_lanes = 32;
    const int64_t element = element_bytes(output.dtype);
    const bool in_vectors = is_in_units(output, vector_bytes) && (!from || is_in_units(*from, vector_bytes));
    const int64_t lanes = in_vectors ? vector_bytes / element : 1;
    const auto height = static_cast<uint32_t>(output.height);
    const uint32_t runs = (static_cast<uint32_t>(output.width) + pixels_per_warp - 1) / pixels_per_warp;
    PixelUpdate update{};
    update.to = view_of(output, lanes);
    update.from = from ? view_of(*from, lanes) : PixelView{};
    update.scale_h = make_divisor(static_cast<uint32_t>(scale.h));
    update.scale_w = make_divisor(static_cast<uint32_t>(scale.w));
    update.runs = make_divisor(runs);
    update.height = make_divisor(height);
    update.num_runs = static_cast<uint32_t>(output.batch) * height * runs;
    update.width = output.width;
    update.units = static_cast<int32_t>(output.channels / lanes);
    update.team = 1;
    while (update.team < static_cast<uint32_t>(std::min(update.units, most_lanes))) {
        update.team *= 2;
    }
    update.unit = static_cast<int32_t>(element * lanes);
    update.zero = zero ? 1 : 0;
    return update;
}

uint32_t blocks_for(const PixelUpdate &update, uint32_t most_blocks) {
    // One warp per run, up to what the chip holds at once; then warps loop.
    constexpr uint32_t warps = block_threads / 32;
    return std::min((update.num_runs + warps - 1) / warps, most_blocks);
}

}  // namespace distile
