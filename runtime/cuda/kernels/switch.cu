// The first and the last kernel of a graph that runs one of several captured graphs (graph_switch.cpp).
#include "runtime/cuda/kernels/device.cuh"
#include "runtime/cuda/kernels/switch.h"
#include <cuda_runtime.h>

using namespace distile;

namespace {

__device__ unsigned long long now_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/** How many of four bytes are not 0. */
__device__ uint32_t active_of(uint32_t bytes) {
    return __popc(__vsetgtu4(bytes, 0));
}

/** The active pixels that a thread counts of a mask. */
__device__ uint32_t count_active(const SwitchMask &mask) {
    const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
    const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const uint64_t skew = (16 - reinterpret_cast<uintptr_t>(mask.bytes) % 16) % 16;
    const uint64_t before = skew < mask.count ? skew : mask.count;
    const uint64_t vectors = (mask.count - before) / 16, behind = before + 16 * vectors;
    uint32_t active = 0;
    for (uint64_t vector = thread; vector < vectors; vector += threads) {
        const uint4 four = *reinterpret_cast<const uint4 *>(mask.bytes + before + 16 * vector);
        active += active_of(four.x) + active_of(four.y) + active_of(four.z) + active_of(four.w);
    }
    for (uint64_t byte = thread; byte < before + (mask.count - behind); byte += threads) {
        active += mask.bytes[byte < before ? byte : behind + (byte - before)] != 0 ? 1 : 0;
    }
    return active;
}

/** By all threads of a block. What other blocks wrote comes from beyond this one's cache. */
__device__ void copy_words(SwitchState &to, const SwitchState &from) {
    constexpr uint32_t words = sizeof(SwitchState) / sizeof(uint32_t);
    const auto *source = reinterpret_cast<const volatile uint32_t *>(&from);
    auto *target = reinterpret_cast<volatile uint32_t *>(&to);
    for (uint32_t word = threadIdx.x; word < words; word += blockDim.x) {
        target[word] = source[word];
    }
}

}  // namespace

/** Counts the active pixels of the masks. The last block chooses a way, and starts the clock. */
extern "C" __global__ void __launch_bounds__(block_threads)
    distile_switch_begin(SwitchState *state, const SwitchMasks masks, int32_t num_ways,
                         cudaGraphConditionalHandle handle) {
    uint32_t active = 0;
    for (uint32_t mask = 0; mask < masks.count; mask++) {
        active += count_active(masks.masks[mask]);
    }
    active = warp_sum(active);
    if (lane() == 0 && active > 0) {
        atomicAdd(&state->active, active);
    }
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(&state->blocks, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) {
        return;
    }
    __threadfence();
    // One thread chooses, so what it reads comes at once.
    __shared__ SwitchState own;
    copy_words(own, *state);
    __syncthreads();
    if (threadIdx.x == 0) {
        own.density = switch_density(own.active, masks.pixels);
        own.way = choose_way(own, own.density, num_ways);
        cudaGraphSetConditional(handle, static_cast<unsigned int>(own.way));
        own.active = 0;
        own.blocks = 0;
        own.began_ns = now_ns();
    }
    __syncthreads();
    copy_words(*state, own);
}

/** Takes in what the way took that ran. */
extern "C" __global__ void __launch_bounds__(1) distile_switch_end(SwitchState *state) {
    const float us = static_cast<float>(now_ns() - state->began_ns) * 1e-3f;
    add_time(state->times[state->density][state->way], us);
    state->runs[state->way]++;
}
