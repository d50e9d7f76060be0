// Packed pixels on a GPU.
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/packing.h"
#include "runtime/cuda/pixel_update.h"
#include <algorithm>

namespace distile {

void CudaDevice::move_packed(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed,
                             bool to_packed, bool zero) const {
    check_pointer(tensor.data, element_bytes(tensor.dtype), "tensor");
    check_pointer(packed.data, element_bytes(packed.dtype), "packed tensor");
    const TileList list = mask.list({1, 1}, {});
    const PixelUnits units(tensor, &packed);
    Packing packing{};
    packing.pixels = units.view_of(tensor);
    packing.packed = units.view_of(packed);
    packing.list = {list.xy, list.image, list.device_count};
    packing.width = make_divisor(static_cast<uint32_t>(packed.width));
    packing.height = make_divisor(static_cast<uint32_t>(packed.height));
    packing.capacity = static_cast<uint32_t>(int64_t{packed.batch} * packed.height * packed.width);
    packing.units = static_cast<uint32_t>(units.per_pixel);
    packing.team = units.team;
    packing.zero = zero ? 1 : 0;
    LaunchGrid grid = grid_of(static_cast<uint64_t>(list.capacity) * units.team);
    grid.x = std::min(grid.x, most_blocks());
    launch(kernels->pack(units.unit, to_packed), caller_stream, grid, packing);
}

void CudaDevice::pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) {
    move_packed(tensor, mask, packed, true, false);
}

void CudaDevice::unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) {
    move_packed(tensor, mask, packed, false, zero);
    if (zero) {
        update_pixels(&mask, tensor, nullptr, true);
    }
}

}  // namespace distile
