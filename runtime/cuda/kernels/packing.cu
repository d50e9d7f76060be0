// Packs and unpacks the active pixels of a tensor.
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/packing.h"

using namespace distile;

namespace {

template<typename Unit> __device__ Unit *find(const PixelView &view, uint32_t image, uint32_t y, uint32_t x) {
    return static_cast<Unit *>(view.data) + image * view.stride_n + y * view.stride_h + x * view.stride_w;
}

/** Copies listed pixels, one per team. */
template<typename Unit, bool to_packed> __device__ void move_pixels(const Packing &packing) {
    const uint32_t teams = block_threads / packing.team, rank = threadIdx.x & (packing.team - 1);
    const uint32_t count = to_packed ? min(*packing.list.count, packing.capacity) : *packing.list.count;
    for (uint32_t i = blockIdx.x * teams + threadIdx.x / packing.team; i < count; i += gridDim.x * teams) {
        const uint32_t xy = packing.list.xy[i];
        Unit *const pixel = find<Unit>(packing.pixels, packing.list.images[i], xy >> 16, xy & 0xffff);
        if (i < packing.capacity) {
            const uint32_t row = divide(i, packing.width), image = divide(row, packing.height);
            Unit *const packed =
                find<Unit>(packing.packed, image, row - image * packing.height.value, i - row * packing.width.value);
            for (uint32_t unit = rank; unit < packing.units; unit += packing.team) {
                (to_packed ? packed : pixel)[unit] = (to_packed ? pixel : packed)[unit];
            }
        } else if (packing.zero != 0) {
            for (uint32_t unit = rank; unit < packing.units; unit += packing.team) {
                pixel[unit] = Unit{};
            }
        }
    }
}

}  // namespace

#define DISTILE_PACKING(name, Unit, to_packed)                                                                         \
    extern "C" __global__ void __launch_bounds__(block_threads) name(Packing packing) {                                \
        move_pixels<Unit, to_packed>(packing);                                                                         \
    }

DISTILE_PACKING(distile_pack_1, uint8_t, true)
DISTILE_PACKING(distile_pack_2, uint16_t, true)
DISTILE_PACKING(distile_pack_4, uint32_t, true)
DISTILE_PACKING(distile_pack_16, uint4, true)
DISTILE_PACKING(distile_unpack_1, uint8_t, false)
DISTILE_PACKING(distile_unpack_2, uint16_t, false)
DISTILE_PACKING(distile_unpack_4, uint32_t, false)
DISTILE_PACKING(distile_unpack_16, uint4, false)
