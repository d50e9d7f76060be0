#include "pixel_update.h"
#include <algorithm>

namespace distile {

int32_t lanes_of(const distile_tensor &tensor) {
    return tensor.channels % vector_lanes == 0 ? vector_lanes : 1;
}

PixelUpdate make_update(const distile_tensor &output, const void *from, bool zero) {
    const int32_t lanes = lanes_of(output);
    const auto height = static_cast<uint32_t>(output.height);
    const uint32_t runs = (static_cast<uint32_t>(output.width) + pixels_per_warp - 1) / pixels_per_warp;
    return {from,
            output.data,
            output.stride_n / lanes,
            output.stride_h / lanes,
            output.stride_w / lanes,
            make_divisor(runs),
            make_divisor(height),
            static_cast<uint32_t>(output.batch) * height * runs,
            output.width,
            output.channels / lanes,
            zero ? 1 : 0};
}

uint32_t blocks_for(const distile_cuda &cuda, const PixelUpdate &update) {
    // A warp for each run up to what the chip holds at once; more go round.
    constexpr uint32_t warps = mask_threads / 32;
    return std::min((update.num_runs + warps - 1) / warps, 8 * static_cast<uint32_t>(cuda.multiprocessors));
}

void update_pixels(const distile_cuda &cuda, CUstream stream, const DeviceBits &bits, const distile_tensor &output,
                   const void *from, bool zero) {
    const PixelUpdate update = make_update(output, from, zero);
    cuda.launch(lanes_of(output) == 1 ? cuda.update_pixels_1 : cuda.update_pixels_4, stream, {blocks_for(cuda, update)},
                bits, update);
}

}  // namespace distile
