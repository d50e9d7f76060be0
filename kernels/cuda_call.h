/** \file
 * What kernels for NVIDIA GPUs that are no code from Halide get of a call, whatever they compute. Shared by the host
 * and the device; addresses are of the device.
 */
#ifndef DISTILE_KERNELS_CUDA_CALL_H
#define DISTILE_KERNELS_CUDA_CALL_H

#include "kernels/call.h"
#include <cstdint>

namespace distile {

struct CudaCall {
    int32_t epilogue;
    float slope;  ///< The epilogue's, if it has one.
    /** Tile t is at x | y << 16 = xy[t], in image xy[capacity + t]. */
    const uint32_t *xy;
    const uint32_t *count;
    int32_t capacity;
    /** The mask: pixel (n, y, x) is bit x % 32 of bits[(n * height + y) * words_per_row + x / 32]. */
    const uint32_t *bits;
    int32_t words_per_row;
    int32_t store_tiles;  ///< 1: store every pixel of the tiles, not only the active ones.
};

inline CudaCall cuda_call_of(const distile_kernel_call &call, int32_t epilogue) {
    return {epilogue,           call.slope, call.tile_xy,       call.tile_count,
            call.tile_capacity, call.bits,  call.words_per_row, call.store_tiles};
}

/** Blocks of threads that share an output. */
struct CudaSplits {
    int32_t splits;     ///< Blocks that share an output: each has a part of the reduction.
    float *parts;       ///< Their sums.
    uint32_t *signals;  ///< For each output, how many have written theirs.
};

/** Allocates what blocks need that share outputs, with `part_bytes` for the sums of each. Returns 0 for success. */
inline int allocate_splits(distile_hooks *hooks, int64_t outputs, int64_t part_bytes, CudaSplits &splits) {
    if (splits.splits == 1) {
        return 0;
    }
    const distile_gpu_hooks &gpu = *hooks->gpu;
    uint64_t parts = 0, signals = 0;
    int result = gpu.allocate(hooks, static_cast<uint64_t>(outputs * splits.splits * part_bytes), &parts);
    if (result == 0) {
        result = gpu.signals(hooks, static_cast<uint64_t>(outputs) * sizeof(uint32_t), &signals);
    }
    splits.parts = reinterpret_cast<float *>(parts);
    splits.signals = reinterpret_cast<uint32_t *>(signals);
    return result;
}

#ifdef __CUDACC__
/** Whether this block is the last of those that share an output, all of which have then written their sums. Called by
 * all threads of a block behind their writes; `is_last` is shared memory. */
__device__ inline bool is_last_of(const CudaSplits &splits, int32_t output, int32_t &is_last) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(splits.signals + output, 1) == static_cast<uint32_t>(splits.splits) - 1 ? 1 : 0;
        if (is_last != 0) {
            splits.signals[output] = 0;
        }
    }
    __syncthreads();
    if (is_last == 0) {
        return false;
    }
    __threadfence();
    return true;
}
#endif

}  // namespace distile

#endif
