// A stage: masked steps in one launch.
#include "runtime/cuda/kernels/stage_products.cuh"
#include "runtime/cuda/kernels/stage_roles.cuh"

using namespace distile;

namespace {

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
    init(block.weights_full, 1);
    init(block.weights_empty, multiply_warps);
    init(block.prepared, gather_warps);
    init(block.listed, gather_warps);
    init(block.may_start, 1);
    init(block.finished, multiply_warps);
    init(block.told, 1);
    tc::publish_barriers();
}

/** `tokens`: steps may be of tokens. Stages without them have kernels of their own, whose registers suffice. */
template<class Element, bool tokens>
__device__ __forceinline__ void run(const StageSettings &settings, StageMemory &stage) {
    const uint32_t num_steps = settings.num_steps;
    extern __shared__ __align__(1024) char memory[];
    char *const behind = memory + weight_slots * weight_slot + pixel_slots * pixel_slot;
    const Shared shared{tc::shared_address(memory),
                        tc::shared_address(memory) + weight_slots * weight_slot,
                        reinterpret_cast<float4 *>(behind),
                        *reinterpret_cast<StageBlock *>(behind + sums_bytes),
                        {settings.times + blockIdx.x * settings.timed_items, settings.timed_items}};
    StageBlock &block = shared.block;
    if (threadIdx.x == 0) {
        init_barriers(block);
    }
    __syncthreads();
    const uint32_t warp = threadIdx.x / 32;
    if (warp < multiply_warps) {
        tc::raise_registers<152>();
        Multiplier<Element, tokens> multiplier(shared);
        for_each_item<Walker::Warp>(num_steps, block, multiplier);
        return;
    }
    tc::lower_registers<104>();
    if (warp < multiply_warps + gather_warps) {
        Gatherer<tokens>(shared).run(num_steps);
        return;
    }
    switch (warp - multiply_warps - gather_warps) {
    case 0:
        Planner(settings, stage.steps, shared).run();
        break;
    case 1:
        open_items_of(num_steps, &stage.done, shared);
        break;
    case 2:
        if (lane() == 0) {
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

#define DISTILE_STAGE(name, Element, tokens)                                                                           \
    extern "C" __global__ void __launch_bounds__(stage_threads, 1)                                                     \
        distile_stage_##name(const __grid_constant__ StageSettings settings, StageMemory *stage) {                     \
        run<Element, tokens>(settings, *stage);                                                                        \
    }
DISTILE_STAGE(float16, tc::Float16, false)
DISTILE_STAGE(bfloat16, tc::Bfloat16, false)
DISTILE_STAGE(tokens_float16, tc::Float16, true)
DISTILE_STAGE(tokens_bfloat16, tc::Bfloat16, true)
