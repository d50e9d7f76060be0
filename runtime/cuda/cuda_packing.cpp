// Packed pixels on a GPU, and their numbers by image.
#include "cuda_mask.h"
#include "kernels/packing.h"
#include "pixel_update.h"
#include "types.h"
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

const int32_t *CudaMask::cumulative_lengths() {
    const auto images = static_cast<uint32_t>(shape.batch);
    Lengths of{};
    of.words = bits_.words;
    of.words_per_image = num_words() / images;
    of.parts = make_divisor((of.words_per_image + words_of_part - 1) / words_of_part);
    const uint32_t blocks = images * of.parts.value;
    lengths_.reserve((uint64_t{images} + 1) * sizeof(*of.lengths));
    part_counts_.reserve_zeros((uint64_t{blocks} + 1) * sizeof(*of.counts));
    if (!has_lengths_) {
        const bool capturing = refuse_stale_capture();
        of.counts = part_counts_.as<uint32_t>();
        of.lengths = lengths_.as<int32_t>();
        device_.launch(device_.kernels->count_lengths, device_.caller_stream, {blocks}, of);
        has_lengths_ = !captured_ || capturing;
    }
    return lengths_.as<const int32_t>();
}

}  // namespace distile
