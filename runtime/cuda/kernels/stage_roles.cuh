/** \file
 * What the warps of a block of a stage do beside multiplying.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_ROLES_CUH
#define DISTILE_CUDA_KERNELS_STAGE_ROLES_CUH

#include "runtime/cuda/kernels/stage_block.cuh"

namespace distile {

__device__ inline uint32_t load_acquired(const uint32_t *from) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

/** One thread waits until all blocks together have done this many items. */
__device__ inline void wait_for_items(const uint32_t *done, uint32_t items) {
    while (load_acquired(done) < items) {}
}

struct TileShape {
    uint32_t rows, columns;
};

/** The tile that should take least time for some rows of a step, each lane having timed one. */
__device__ inline TileShape choose_tile(const StageSettings &settings, const StageStep &step, uint32_t all_rows) {
    constexpr TileShape tiles[] = {
#define DISTILE_ROW(rows, columns) {rows, columns},
        DISTILE_STAGE_TILES(DISTILE_ROW)
#undef DISTILE_ROW
    };
    constexpr uint32_t count = sizeof(tiles) / sizeof(tiles[0]);
    TileShape tile = tiles[0];
#pragma unroll
    for (uint32_t i = 1; i < count; i++) {
        if (lane() == i) {
            tile = tiles[i];
        }
    }
    float clocks = 3e38f;
    if (lane() < count && (settings.tiles >> lane() & 1) != 0 && (step.channels & (tile.columns - 1)) == 0) {
        // Rows and columns are powers of 2.
        const uint32_t items =
            ((all_rows + tile.rows - 1) >> (__ffs(tile.rows) - 1)) * (step.channels >> (__ffs(tile.columns) - 1));
        const StageCosts &costs = settings.costs;
        const uint32_t waves = divide(items + settings.blocks.value - 1, settings.blocks);
        clocks = waves * (costs.start + padded_reduction(step) * (costs.row * tile.rows + costs.column * tile.columns));
    }
    float least = clocks;
    for (int distance = 16; distance > 0; distance /= 2) {
        least = fminf(least, __shfl_xor_sync(all_lanes, least, distance));
    }
    const uint32_t best = __ffs(__ballot_sync(all_lanes, clocks == least)) - 1;
    return {__shfl_sync(all_lanes, tile.rows, best), __shfl_sync(all_lanes, tile.columns, best)};
}

/** Plans the steps and lists the rows of items. */
class Planner {
public:
    __device__ Planner(const StageSettings &settings, const StageStep *steps, StageBlock &block)
        : settings_(settings), steps_(steps), block_(block) {
        fetch(0, even_);
        fetch(1, odd_);
    }

    __device__ void run() {
        for (uint32_t number = 0; number < settings_.num_steps; number++) {
            if (number >= planned_steps) {
                wait_for_use(block_.plan_left, number - planned_steps);
                __syncwarp();
            }
            StagePlan &plan = block_.plans[number % planned_steps];
            if (number % 2 == 0) {
                store(even_, plan.step);
                fetch(number + 2, even_);
            } else {
                store(odd_, plan.step);
                fetch(number + 2, odd_);
            }
            plan_step(plan);
            if (lane() == 0) {
                arrive_at_use(block_.planned, number);
            }
            list_items(plan);
        }
    }

private:
    static constexpr uint32_t step_words = sizeof(StageStep) / sizeof(uint32_t), fetched_words = (step_words + 31) / 32;

    /** A few words of a step in each lane. */
    using Fetched = uint32_t[fetched_words];

    /** Loads a step before it is needed. */
    __device__ void fetch(uint32_t number, Fetched &to) const {
        const uint32_t *const from = reinterpret_cast<const uint32_t *>(steps_ + number);
#pragma unroll
        for (uint32_t i = 0; i < fetched_words; i++) {
            const uint32_t word = i * 32 + lane();
            to[i] = number < settings_.num_steps && word < step_words ? __ldcg(from + word) : 0;
        }
    }
    __device__ static void store(const Fetched &from, StageStep &to) {
#pragma unroll
        for (uint32_t i = 0; i < fetched_words; i++) {
            const uint32_t word = i * 32 + lane();
            if (word < step_words) {
                reinterpret_cast<uint32_t *>(&to)[word] = from[i];
            }
        }
        __syncwarp();
    }

    __device__ uint32_t count(const StageStep &step) {
        if (!step.rows.words) {
            return step.batch * step.height.value * step.width.value;
        }
        wait_for_use(block_.prepared, masks_ - 1);
        __syncwarp();
        return MaskedRows(step, block_.kept).count();
    }

    __device__ void plan_step(StagePlan &plan) {
        const StageStep &step = plan.step;
        if (step.starts_level != 0) {
            before_ = items_;
        }
        uint32_t items = 0;
        if (step.work == StageWork::Score) {
            items = step.batch * step.height.value * step.words_per_row.value;
        } else if (step.work == StageWork::Prepare) {
            items = settings_.blocks.value;
            masks_++;
        } else {
            const uint32_t rows = count(step);
            const TileShape tile = choose_tile(settings_, step, rows);
            const uint32_t slices = step.channels >> (__ffs(tile.columns) - 1);
            items = ((rows + tile.rows - 1) >> (__ffs(tile.rows) - 1)) * slices;
            if (lane() == 0) {
                plan.rows = rows;
                plan.tile_rows = tile.rows;
                plan.tile_columns = tile.columns;
                plan.slices = slices;
            }
        }
        // The first blocks behind those that had one more item of the steps before have one more now.
        const uint32_t blocks = settings_.blocks.value;
        const uint32_t share = divide(items, settings_.blocks), rest = items - share * blocks;
        const uint32_t rank = blockIdx.x >= turn_ ? blockIdx.x - turn_ : blockIdx.x + blocks - turn_;
        if (lane() == 0) {
            plan.before = before_;
            plan.first = rank * share + min(rank, rest);
            plan.end = plan.first + share + (rank < rest ? 1 : 0);
        }
        __syncwarp();
        turn_ += rest;
        turn_ -= turn_ >= blocks ? blocks : 0;
        items_ += items;
    }

    __device__ void list_items(const StagePlan &plan) {
        const bool convolves = plan.step.work == StageWork::Convolve;
        uint32_t part = convolves && plan.first < plan.end ? plan.first / plan.slices : 0;
        uint32_t slice = convolves ? plan.first - part * plan.slices : 0;
        bool again = false;  // The item before had the same rows.
        for (uint32_t item = plan.first; item < plan.end; item++) {
            list_item(plan, part, slice, again);
            again = ++slice != plan.slices;
            part += again ? 0 : 1;
            slice = again ? slice : 0;
        }
    }

    __device__ void list_item(const StagePlan &plan, uint32_t part, uint32_t slice, bool again) {
        if (own_items_ >= listed_items) {
            wait_for_use(block_.finished, own_items_ - listed_items);
            __syncwarp();
        }
        if (plan.step.work == StageWork::Convolve) {
            fill(plan, part, slice, again);
        }
        __syncwarp();
        if (lane() == 0) {
            arrive_at_use(block_.listed, own_items_);
        }
        own_items_++;
    }

    __device__ void fill(const StagePlan &plan, uint32_t part, uint32_t slice, bool again) {
        const StageStep &step = plan.step;
        ItemRows &rows = block_.rows[own_items_ % listed_items];
        const uint32_t first = part * plan.tile_rows, count = min(plan.tile_rows, plan.rows - first);
        const float *const from = step.bias ? step.bias + slice * plan.tile_columns : nullptr;
        float bias[4];  // Loaded before they are needed.
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            bias[i] = from && i * 32 < plan.tile_columns ? __ldg(from + i * 32 + lane()) : 0;
        }
        if (again) {
            copy_rows(block_.rows[(own_items_ - 1) % listed_items], rows);
        } else {
            list_rows(step, first, count, rows);
        }
        rows.slice = slice;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            rows.bias[i * 32 + lane()] = bias[i];
        }
    }

    __device__ static void copy_rows(const ItemRows &from, ItemRows &to) {
#pragma unroll
        for (uint32_t i = lane(); i < 128; i += 32) {
            to.input[i] = from.input[i];
            to.output[i] = from.output[i];
            to.residual[i] = from.residual[i];
        }
    }

    __device__ void list_rows(const StageStep &step, uint32_t first, uint32_t count, ItemRows &rows) const {
        for (uint32_t i = count + lane(); i < 128; i += 32) {
            rows.input[i] = rows.output[i] = ItemRows::none;
        }
        const int32_t input_n = step.input.stride_n, input_h = step.input.stride_h, input_w = step.input.stride_w;
        const int32_t begin = -step.down.pad * input_h - step.across.pad * input_w;
        const int32_t down = step.down.stride * input_h, across = step.across.stride * input_w;
        const int32_t output_n = step.output.stride_n, output_h = step.output.stride_h, output_w = step.output.stride_w;
        const int32_t residual_n = step.residual.stride_n, residual_h = step.residual.stride_h,
                      residual_w = step.residual.stride_w;
        const auto visit = [&](uint32_t row, int32_t image, int32_t y, int32_t x) {
            rows.input[row] = begin + image * input_n + y * down + x * across;
            const int32_t output = image * output_n + y * output_h + x * output_w;
            rows.output[row] = output | (is_later(step, image, y, x) ? keeps_sums : 0);
            rows.residual[row] = image * residual_n + y * residual_h + x * residual_w;
        };
        if (step.rows.words) {
            visit_masked_rows(step, MaskedRows(step, block_.kept), first, count, visit);
        } else {
            visit_all_rows(step, first, count, visit);
        }
    }

    __device__ static bool is_later(const StageStep &step, int32_t image, int32_t y, int32_t x) {
        if (!step.later) {
            return false;
        }
        const uint32_t row = image * step.height.value + y;
        return (__ldcg(step.later + row * step.words_per_row.value + x / 32) >> x % 32 & 1) != 0;
    }

    const StageSettings &settings_;
    const StageStep *const steps_;
    StageBlock &block_;
    Fetched even_, odd_;
    uint32_t items_ = 0, before_ = 0, own_items_ = 0, masks_ = 0, turn_ = 0;
};

/** Opens items whose inputs are there. */
__device__ inline void open_items_of(uint32_t num_steps, const uint32_t *done, StageBlock &block) {
    uint32_t own = 0, awaited = 0;
    for_each_item<Walker::Warp>(num_steps, block, [&](const StageStep &, const StagePlan &plan, uint32_t) {
        if (own >= open_items) {
            wait_for_use(block.finished, own - open_items);
        }
        if (plan.before > awaited) {
            if (lane() == 0) {
                wait_for_items(done, plan.before);
            }
            awaited = plan.before;
        }
        __syncwarp();
        if (lane() == 0) {
            arrive_at_use(block.may_start, own);
        }
        own++;
    });
}

/** Tells the other blocks about finished items, so that those who multiply need not wait for a fence. One thread. */
__device__ inline void tell_items(uint32_t num_steps, uint32_t *done, StageBlock &block) {
    uint32_t own = 0;
    for_each_item<Walker::Thread>(num_steps, block, [&](const StageStep &, const StagePlan &, uint32_t) {
        wait_for_use(block.finished, own);
        asm volatile("fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(done) : "memory");
        arrive_at_use(block.told, own);
        own++;
    });
}

/** Fetches weights ahead of all waits. One thread. Weights are packed in groups of columns, step by step of the
 * reduction, and a slot has the groups of a tile side by side. */
__device__ inline void fetch_weights(uint32_t num_steps, const Shared &shared) {
    constexpr uint32_t piece = stage_columns * row_bytes;
    StageBlock &block = shared.block;
    uint32_t use = 0;
    for_each_item<Walker::Thread>(num_steps, block, [&](const StageStep &step, const StagePlan &plan, uint32_t item) {
        if (step.work != StageWork::Convolve) {
            return;
        }
        const uint32_t reduction = padded_reduction(step), groups = plan.tile_columns / stage_columns;
        const uint32_t steps = weight_slot / (groups * piece);  // Steps of the reduction in a slot.
        const char *const from = step.weights + uint64_t{item % plan.slices} * groups * reduction * piece;
        for (uint32_t begin = 0; begin < reduction; begin += steps, use++) {
            const uint32_t slot = use % weight_slots, barrier = barrier_of(block.weights_full[slot]);
            if (use >= weight_slots) {
                wait_for_use(block.weights_empty, use - weight_slots);
            }
            tc::arrive_and_expect(barrier, weight_slot);
            const uint32_t to = shared.weights + slot * weight_slot;
            if (groups == 1) {
                tc::copy_bulk(to, from + begin * piece, weight_slot, barrier);
                continue;
            }
            for (uint32_t i = 0; i < steps; i++) {
                for (uint32_t group = 0; group < groups; group++) {
                    tc::copy_bulk(to + (i * groups + group) * piece, from + (group * reduction + begin + i) * piece,
                                  piece, barrier);
                }
            }
        }
    });
}

/** Gathers pixels. A slot has a step of the reduction for 64 rows, or several for fewer. Each warp fills every fourth
 * slot, so that one's waits are beside the others' copies. */
class Gatherer {
public:
    __device__ explicit Gatherer(const Shared &shared)
        : shared_(shared), warp_(threadIdx.x / 32 % gather_warps), piece_(lane() % pieces), row_(lane() / pieces) {
    }

    __device__ void run(uint32_t num_steps) {
        for_each_item<Walker::Warp>(num_steps, shared_.block,
                                    [&](const StageStep &step, const StagePlan &plan, uint32_t) {
                                        if (step.work == StageWork::Convolve) {
                                            gather(step, plan);
                                        }
                                        own_items_++;
                                    });
    }

private:
    static constexpr uint32_t pieces = row_bytes / 16, rows_at_once = 32 / pieces, copies = 64 / rows_at_once;

    __device__ void gather(const StageStep &step, const StagePlan &plan) {
        if (plan.tile_rows >= 64) {
            gather_in_steps<1>(step, plan.tile_rows == 128);
        } else if (plan.tile_rows == 32) {
            gather_in_steps<2>(step, false);
        } else {
            gather_in_steps<4>(step, false);
        }
    }

    /** Gathers an item, with some steps of the reduction in a slot. */
    template<uint32_t steps> __device__ void gather_in_steps(const StageStep &step, bool two_halves) {
        const uint32_t slots = padded_reduction(step) / steps * (two_halves ? 2 : 1);
        uint32_t slot = (warp_ - use_) % gather_warps;
        wait_for_use(shared_.block.listed, own_items_);
        const ItemRows &rows = shared_.block.rows[own_items_ % listed_items];
        int32_t from[copies];
#pragma unroll
        for (uint32_t i = 0; i < copies; i++) {
            const uint32_t row = i % (copies / steps) * rows_at_once + row_;
            from[i] = rows.input[two_halves && slot % 2 == 1 ? 64 + row : row];
        }
        const char *const data = step.input.data + piece_ * 16;
        wait_for_use(shared_.block.may_start, own_items_);
        for (; slot < slots; slot += gather_warps) {
            fill_slot<steps>(step, data, from, two_halves ? slot / 2 : slot * steps, use_ + slot);
        }
        use_ += slots;
    }

    /** Where a step of the reduction reads, in elements from where a window begins. */
    __device__ static int32_t place_of(const StageStep &step, uint32_t at) {
        const uint32_t tap = divide(at, step.channel_steps), ky = divide(tap, step.kernel_w);
        const uint32_t kx = tap - ky * step.kernel_w.value;
        return ky * step.down.dilation * step.input.stride_h + kx * step.across.dilation * step.input.stride_w +
               (at - tap * step.channel_steps.value) * stage_channels;
    }

    template<uint32_t steps> __device__ void fill_slot(const StageStep &step, const char *data,
                                                       const int32_t (&rows)[copies], uint32_t begin,
                                                       uint32_t use) const {
        StageBlock &block = shared_.block;
        const char *from[steps];
        bool exists[steps];
#pragma unroll
        for (uint32_t i = 0; i < steps; i++) {
            exists[i] = begin + i < step.reduction;
            from[i] = data + int64_t{exists[i] ? place_of(step, begin + i) : 0} * 2;
        }
        const uint32_t slot = use % pixel_slots;
        if (use >= pixel_slots) {
            wait_for_use(block.pixels_empty, use - pixel_slots);
        }
        const uint32_t to = shared_.pixels + slot * pixel_slot + row_ * row_bytes;
#pragma unroll
        for (uint32_t i = 0; i < copies; i++) {
            const uint32_t row = i * rows_at_once, part = i / (copies / steps);
            if (rows[i] != ItemRows::none) {
                tc::copy_or_zero(to + row * row_bytes + (piece_ ^ (row + row_) % 8) * 16,
                                 from[part] + int64_t{rows[i]} * 2, exists[part]);
            }
        }
        tc::arrive_after_copies(barrier_of(block.pixels_full[slot]));
    }

    const Shared &shared_;
    const uint32_t warp_, piece_, row_;
    uint32_t use_ = 0, own_items_ = 0;
};

}  // namespace distile

#endif
