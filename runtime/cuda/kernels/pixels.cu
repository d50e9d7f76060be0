// Zeros and copies pixels of a tensor, and clears the buffers of planners.
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/pixels.h"

using namespace distile;

namespace {

constexpr uint32_t warps = block_threads / 32;

template<typename Unit> __device__ Unit zeros_of(const PixelUpdate &update) {
    return static_cast<Unit>(update.zeros);
}
template<> __device__ uint4 zeros_of<uint4>(const PixelUpdate &update) {
    return {update.zeros, update.zeros, update.zeros, update.zeros};
}

/** Updates pixels, one warp per run. Without words all pixels are active, or none where there is nothing to copy. A
 * `flip` of ~0 swaps active and inactive pixels. */
template<typename Unit>
__device__ void update_pixels(const DeviceBits &mask, const PixelUpdate &update, uint32_t flip) {
    const PixelView &to = update.to, &from = update.from;
    const uint32_t rank = lane() & (update.team - 1), first = lane() / update.team, step = 32 / update.team;
    for (uint32_t run = blockIdx.x * warps + threadIdx.x / 32; run < update.num_runs; run += gridDim.x * warps) {
        const uint32_t row = divide(run, update.runs), image = divide(row, update.height);
        const uint32_t x = (run - row * update.runs.value) * pixels_per_warp, y = row - image * update.height.value;
        const uint32_t pixels = min(pixels_per_warp, update.width - x);
        const uint32_t every = from.data ? ~0u : 0;
        const uint32_t word = mask.words ? mask.words[row * mask.words_per_row + x / 32] ^ flip : every;
        const uint32_t active = word >> (x % 32);
        Unit *const to_row = static_cast<Unit *>(to.data) + image * to.stride_n + y * to.stride_h;
        const Unit *const from_row =
            static_cast<const Unit *>(from.data) + image * from.stride_n + divide(y, update.scale_h) * from.stride_h;
        for (uint32_t i = first; i < pixels; i += step) {
            const bool copy = (active >> i & 1) != 0;
            if (copy ? from.data != nullptr : update.zero != 0) {
                Unit *const to_pixel = to_row + (x + i) * to.stride_w;
                const Unit *const from_pixel = from_row + divide(x + i, update.scale_w) * from.stride_w;
                for (int32_t c = static_cast<int32_t>(rank); c < update.units; c += static_cast<int32_t>(update.team)) {
                    to_pixel[c] = copy ? from_pixel[c] : zeros_of<Unit>(update);
                }
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(block_threads)
    distile_update_pixels_1(DeviceBits mask, PixelUpdate update) {
    update_pixels<uint8_t>(mask, update, 0);
}

extern "C" __global__ void __launch_bounds__(block_threads)
    distile_update_pixels_2(DeviceBits mask, PixelUpdate update) {
    update_pixels<uint16_t>(mask, update, 0);
}

extern "C" __global__ void __launch_bounds__(block_threads)
    distile_update_pixels_4(DeviceBits mask, PixelUpdate update) {
    update_pixels<uint32_t>(mask, update, 0);
}

extern "C" __global__ void __launch_bounds__(block_threads)
    distile_update_pixels_16(DeviceBits mask, PixelUpdate update) {
    update_pixels<uint4>(mask, update, 0);
}

/** Zeros the pixels that a buffer's last use wrote, and records which pixels the next use will write. */
extern "C" __global__ void __launch_bounds__(block_threads) distile_hand_out(HandOut out) {
    __shared__ BufferRecord record;
    // Load the whole record at once: finding the slot first would double the latency.
    static_assert(sizeof(record) % sizeof(uint32_t) == 0 && sizeof(record) / sizeof(uint32_t) <= block_threads);
    if (threadIdx.x < sizeof(record) / sizeof(uint32_t)) {
        reinterpret_cast<uint32_t *>(&record)[threadIdx.x] =
            reinterpret_cast<const volatile uint32_t *>(out.record)[threadIdx.x];
    }
    __syncthreads();
    const uint32_t slot = record.current;
    if (out.clear != 0) {
        const WrittenPixels &last = record.slots[slot];
        if (last.update.unit == 16) {
            update_pixels<uint4>(last.bits, last.update, ~0u);
        } else if (last.update.unit == 4) {
            update_pixels<uint32_t>(last.bits, last.update, ~0u);
        } else if (last.update.unit == 2) {
            update_pixels<uint16_t>(last.bits, last.update, ~0u);
        } else if (last.update.unit == 1) {
            update_pixels<uint8_t>(last.bits, last.update, ~0u);
        }
    }
    if (out.keep != 0) {
        uint32_t *const kept = out.kept[1 - slot];
        for (uint32_t i = blockIdx.x * block_threads + threadIdx.x; i < out.num_words; i += gridDim.x * block_threads) {
            kept[i] = out.written.bits.words[i];
        }
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            WrittenPixels &next = out.record->slots[1 - slot];
            next = out.written;
            next.bits.words = out.num_words > 0 ? kept : nullptr;
        }
        if (threadIdx.x == 0) {
            __threadfence();
            // Swap the slots for the next launch once every block has read which is which.
            if (atomicInc(&out.record->blocks_done, gridDim.x - 1) == gridDim.x - 1) {
                out.record->current = 1 - slot;
            }
        }
    }
}
