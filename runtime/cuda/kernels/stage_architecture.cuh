/** \file
 * What the kernels of a stage take of the architecture that they are compiled for: compute capability 9.0, or any from
 * 8.0 on, whose blocks have less shared memory. DISTILE_STAGE_DEEP: they have as much as on 8.0.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_ARCHITECTURE_CUH
#define DISTILE_CUDA_KERNELS_STAGE_ARCHITECTURE_CUH

#include "kernels/tensor_core/ptx.cuh"
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/stage.h"

namespace distile {

namespace tc = tensor_core;

namespace architecture {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/** Warp groups multiply and change their numbers of registers, and one thread copies weights. */
constexpr bool is_sm90 = true;
constexpr uint32_t block_bytes = stage_shared_bytes, weight_slots = 8, pixel_slots = 8;
#elif defined(DISTILE_STAGE_DEEP)
constexpr bool is_sm90 = false;
constexpr uint32_t block_bytes = stage_shared_bytes_deep, weight_slots = 4, pixel_slots = 8;
#else
constexpr bool is_sm90 = false;
constexpr uint32_t block_bytes = stage_shared_bytes_shallow, weight_slots = 2, pixel_slots = 4;
#endif

/** The threads that fetch weights, and arrive when a slot is full. */
constexpr uint32_t fetching_threads = is_sm90 ? 1 : 32;

/** Makes initialised barriers known to bulk copies. */
__device__ inline void publish_barriers() {
    if constexpr (is_sm90) {
        tc::publish_barriers();
    }
}

/** Waits until a barrier is in a phase of the other parity. */
__device__ inline void wait(uint32_t barrier, uint32_t parity) {
    if constexpr (is_sm90) {
        tc::wait(barrier, parity);
    } else {
        asm volatile("{\n\t.reg .pred done;\n"
                     "again_%=:\n\tmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n\t"
                     "@!done bra again_%=;\n\t}" ::"r"(barrier),
                     "r"(parity)
                     : "memory");
    }
}

/** Begins the copies of a slot of weights, which the barrier counts. Called by the threads that fetch. */
__device__ inline void begin_weights(uint32_t barrier, uint32_t bytes) {
    if constexpr (is_sm90) {
        tc::arrive_and_expect(barrier, bytes);
    } else {
        __syncwarp();
    }
}
/** Copies some of them, a multiple of 512 bytes. */
__device__ inline void copy_weights(uint32_t to, const char *from, uint32_t bytes, uint32_t barrier) {
    if constexpr (is_sm90) {
        tc::copy_bulk(to, from, bytes, barrier);
    } else {
        constexpr uint32_t piece = 16;
#pragma unroll 8
        for (uint32_t at = lane() * piece; at < bytes; at += fetching_threads * piece) {
            tc::copy_or_zero(to + at, from + at, true);
        }
    }
}
__device__ inline void end_weights(uint32_t barrier) {
    if constexpr (!is_sm90) {
        tc::arrive_after_copies(barrier);
    }
}

/** Gives back registers, or takes them, in all warps of a warp group. */
template<int registers> __device__ inline void lower_registers() {
    if constexpr (is_sm90) {
        tc::lower_registers<registers>();
    }
}
template<int registers> __device__ inline void raise_registers() {
    if constexpr (is_sm90) {
        tc::raise_registers<registers>();
    }
}

}  // namespace architecture

using architecture::pixel_slots;
using architecture::weight_slots;

}  // namespace distile

#endif
