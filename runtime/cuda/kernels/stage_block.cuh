/** \file
 * What the warps of a block of a stage share: rings, barriers, and the plan of each step.
 *
 * All warps walk through the same items, each with its own work: one plans, one waits for what items read, one fetches
 * weights, four list rows and gather their pixels, eight multiply, and one tells the other blocks. Every block computes
 * which items of a step are its own, neighbours that share rows, so nothing is handed out, and all blocks must be
 * resident.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_BLOCK_CUH
#define DISTILE_CUDA_KERNELS_STAGE_BLOCK_CUH

#include "kernels/tensor_core/types.cuh"
#include "runtime/cuda/kernels/stage_architecture.cuh"
#include "runtime/cuda/kernels/stage_rows.cuh"

namespace distile {

constexpr uint32_t weight_slot = 16384;  ///< Bytes of a slot of the weights' ring.
constexpr uint32_t pixel_slot = 8192;    ///< 64 rows of a step of the reduction.
constexpr uint32_t sums_bytes = 16384;   ///< What warps hand to each other.
constexpr uint32_t row_bytes = stage_row_bytes;
constexpr uint32_t listed_items = 3, open_items = 8, awaited_items = 16, planned_steps = 4, prepared_masks = 2;

constexpr uint32_t listed_places = 56;  ///< The steps of a reduction whose places a plan lists.
constexpr int32_t no_place = INT32_MIN;
/** Places count eighths of pieces. The bits that are not those of pieces say how many pieces of a step are no channels
 * of the input. */
constexpr int32_t missing_pieces = 7;

/** Items that take each channel by itself have as many columns as a step of a reduction, and this many rows for each
 * row of a thread. */
constexpr uint32_t channel_rows = 32, most_channel_rows = 4;
constexpr uint32_t most_scored_bytes = 8;  ///< The most bytes of a mask that a warp scores in an item.
constexpr uint32_t least_plain_rows = 2;   ///< Without weights, a thread has at least as many rows.

/** A step and its items. */
struct StagePlan {
    StageStep step;
    int32_t places[listed_places];     ///< Where the first steps of the reduction read.
    uint32_t number;                   ///< The step's.
    uint32_t first, end;               ///< The block's items.
    uint32_t rows;                     ///< All blocks' rows.
    uint32_t tile_rows, tile_columns;  ///< For scores, the first is a warp's pixels.
    uint32_t slices;                   ///< Items of the same rows.
    StageItems before;                 ///< How many items must be done before, of both kinds.
};

/** What an item's rows read and write, in elements from the first pixel of the tensors. */
struct ItemRows {
    static constexpr int32_t none = -1;  ///< No such row. Offsets are multiples of a piece's channels.
    int32_t input[128], output[128], residual[128];
    float bias[128];
    uint32_t slice;  ///< Which columns the item computes, or which head.
    uint32_t keys;   ///< How many the rows attend to.
};
/** A flag of an output's offset: the sums stay without activation. */
constexpr int32_t keeps_sums = 1;

struct StageBlock {
    ItemRows rows[listed_items];
    KeptRows kept;
    StagePlan plans[planned_steps];
    uint32_t bits[2][8];  ///< What each warp found out about a pixel of a mask.
    uint64_t planned[planned_steps], plan_left[planned_steps];
    uint64_t pixels_full[pixel_slots], pixels_empty[pixel_slots];
    uint64_t weights_full[weight_slots], weights_empty[weight_slots];
    uint64_t prepared[prepared_masks];
    uint64_t listed[listed_items], may_start[awaited_items], finished[open_items], told[open_items];
};

static_assert(weight_slots * weight_slot + pixel_slots * pixel_slot + sums_bytes + sizeof(StageBlock) <=
                  architecture::block_bytes,
              "a block asks for less shared memory");

/** Warps of each role. Planning, waiting, fetching and telling are a warp each. */
constexpr uint32_t multiply_warps = 8, gather_warps = 4, single_warps = 4;
constexpr int multiply_threads = multiply_warps * 32;
constexpr uint32_t plan_readers = multiply_warps + gather_warps + single_warps - 1;

/** The threads that multiply wait for each other. */
__device__ inline void sync_multipliers() {
    __syncwarp();
    tc::sync_threads<multiply_threads>(1);
}

/** What those who multiply have used of the rings. */
struct RingUses {
    uint32_t pixels = 0, weights = 0, items = 0;
};

__device__ inline uint32_t nanoseconds() {
    uint32_t now;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now)::"memory");
    return now;
}

/** Writes down when the block's items come to a point, if somebody wants to know. Called by one thread. */
struct StageClock {
    StageItemTimes *times;
    uint32_t items;

    __device__ void note(uint32_t item, uint32_t StageItemTimes::*point) const {
        if (item < items) {
            times[item].*point = nanoseconds();
        }
    }
    __device__ void note_step(uint32_t item, uint32_t step) const {
        if (item < items) {
            times[item].step = step;
            times[item].is_set = 1;
        }
    }
};

struct Shared {
    uint32_t weights, pixels;  ///< Shared addresses.
    float4 *sums;
    StageBlock &block;
    StageClock clock;

    /** The place for sums of a type, in fours. */
    template<class Sum> __device__ typename tc::SumVector<Sum>::Four *sums_of() const {
        return reinterpret_cast<typename tc::SumVector<Sum>::Four *>(sums);
    }
};

/** What a block shares, in its dynamic shared memory. */
__device__ inline Shared shared_by(const StageClock &clock) {
    extern __shared__ __align__(1024) char memory[];
    char *const behind = memory + weight_slots * weight_slot + pixel_slots * pixel_slot;
    return {tc::shared_address(memory), tc::shared_address(memory) + weight_slots * weight_slot,
            reinterpret_cast<float4 *>(behind), *reinterpret_cast<StageBlock *>(behind + sums_bytes), clock};
}

/** Work::compute() as a function of its own. */
template<class Work>
__noinline__ __device__ RingUses call_work(uint32_t plan, uint32_t item, StageClock clock, RingUses uses) {
    const Shared shared = shared_by(clock);
    Work::compute(shared.block.plans[plan], item, shared, uses);
    return uses;
}
/** Calls Work::compute(plan, item, shared, uses), by which warps that multiply compute an item. On 9.0 it is inlined,
 * so that the compiler knows of no call between products; elsewhere it is called, so that it has all registers. */
template<class Work> __device__ __forceinline__ void compute_item(const StagePlan &plan, uint32_t item,
                                                                  const Shared &shared, RingUses &uses) {
    if constexpr (architecture::is_sm90) {
        Work::compute(plan, item, shared, uses);
    } else {
        uses = call_work<Work>(plan.number % planned_steps, item, shared.clock, uses);
    }
}

__device__ inline uint32_t barrier_of(uint64_t &barrier) {
    return tc::shared_address(&barrier);
}

/** Waits until a barrier of a ring has seen its uses up to this one, from 0. */
template<uint32_t slots> __device__ void wait_for_use(uint64_t (&ring)[slots], uint32_t use) {
    architecture::wait(barrier_of(ring[use % slots]), use / slots & 1);
}
template<uint32_t slots> __device__ void arrive_at_use(uint64_t (&ring)[slots], uint32_t use) {
    tc::arrive(barrier_of(ring[use % slots]));
}

/** Who walks through the items. */
enum class Walker { Warp, Thread };

/** Calls visit(step, plan, item) for each item of the block. */
template<Walker walker, class Visit>
__device__ __forceinline__ void for_each_item(uint32_t num_steps, StageBlock &block, Visit &&visit) {
    for (uint32_t number = 0; number < num_steps; number++) {
        wait_for_use(block.planned, number);
        const StagePlan &plan = block.plans[number % planned_steps];
        const uint32_t end = plan.end;
        for (uint32_t item = plan.first; item < end; item++) {
            visit(plan.step, plan, item);
        }
        if constexpr (walker == Walker::Warp) {
            __syncwarp();  // All lanes have done with it.
        }
        if (walker == Walker::Thread || lane() == 0) {
            arrive_at_use(block.plan_left, number);
        }
    }
}

/** The steps of a reduction, with those that are 0. */
__device__ inline uint32_t padded_reduction(const StageStep &step) {
    return (step.reduction + stage_reduction - 1) / stage_reduction * stage_reduction;
}

}  // namespace distile

#endif
