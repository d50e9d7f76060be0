// A stage: masked steps in one launch, of tensors of the type DISTILE_STAGE_TYPE. DISTILE_STAGE_QUANTIZED: it is
// quantized, so there are no steps of tokens alone.
#include "runtime/cuda/kernels/stage_products.cuh"
#include "runtime/cuda/kernels/stage_roles.cuh"

using namespace distile;

namespace {

/** The types that the build names. */
namespace types {
using tc::Bfloat16;
using tc::Float16;
using tc::Tf32;
using Int8 = int8_t;
using Uint8 = uint8_t;
}  // namespace types

__device__ void init_barriers(StageBlock &block) {
    const auto init = [](auto &ring, uint32_t arrivals) {
        for (uint64_t &barrier : ring) {
            tc::init_barrier(barrier_of(barrier), arrivals);
        }
    };
    init(block.planned, 1);
    init(block.plan_left, plan_readers);
    init(block.pixels_full, gather_warps * 32);
    init(block.pixels_empty, multiply_warps);
    init(block.weights_full, architecture::fetching_threads);
    init(block.weights_empty, multiply_warps);
    init(block.prepared, gather_warps);
    init(block.listed, gather_warps);
    init(block.may_start, 1);
    init(block.finished, multiply_warps);
    init(block.told, 1);
    architecture::publish_barriers();
}

/** `tokens`: steps may be of tokens. On 9.0, stages without them have a kernel of their own, whose registers suffice.
 */
template<class Element, bool tokens>
__device__ __forceinline__ void run(const StageSettings &settings, StageMemory &stage) {
    const uint32_t num_steps = settings.num_steps;
    const Shared shared = shared_by({settings.times + blockIdx.x * settings.timed_items, settings.timed_items});
    StageBlock &block = shared.block;
    if (threadIdx.x == 0) {
        init_barriers(block);
    }
    __syncthreads();
    const uint32_t warp = threadIdx.x / 32;
    if (warp < multiply_warps) {
        architecture::raise_registers<152>();
        Multiplier<Element, tokens> multiplier(shared);
        for_each_item<Walker::Warp>(num_steps, block, multiplier);
        return;
    }
    architecture::lower_registers<104>();
    if (warp < multiply_warps + gather_warps) {
        Gatherer<Element, tokens>(shared).run(num_steps);
        return;
    }
    switch (warp - multiply_warps - gather_warps) {
    case 0:
        Planner<Element>(settings, stage.steps, shared).run();
        break;
    case 1:
        open_items_of(num_steps, &stage.done, shared);
        break;
    case 2:
        if (lane() < architecture::fetching_threads) {
            fetch_weights(num_steps, shared);
        }
        break;
    default:
        if (lane() == 0) {
            tell_items(num_steps, &stage.done, shared);
        }
    }
}

}  // namespace

/** Writes the steps to memory, a word in each thread. */
extern "C" __global__ void distile_stage_begin(const __grid_constant__ StageProgram program, StageMemory *to) {
    const uint32_t word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word < program.num_steps * (sizeof(StageStep) / sizeof(uint32_t))) {
        reinterpret_cast<uint32_t *>(to->steps + program.first)[word] =
            reinterpret_cast<const uint32_t *>(program.steps)[word];
    }
    if (word == 0 && program.first == 0) {
        to->done = 0;
        to->began = nanoseconds();
    }
}

#define DISTILE_STAGE(name, tokens)                                                                                    \
    extern "C" __global__ void __launch_bounds__(stage_threads, 1)                                                     \
        name(const __grid_constant__ StageSettings settings, StageMemory *stage) {                                     \
        run<types::DISTILE_STAGE_TYPE, tokens>(settings, *stage);                                                      \
    }
#ifndef DISTILE_STAGE_QUANTIZED
DISTILE_STAGE(distile_stage_tokens, true)
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DISTILE_STAGE_QUANTIZED)
DISTILE_STAGE(distile_stage, false)
#endif
