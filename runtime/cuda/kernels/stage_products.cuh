/** \file
 * How the eight warps that multiply compute items of a stage.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_PRODUCTS_CUH
#define DISTILE_CUDA_KERNELS_STAGE_PRODUCTS_CUH

#include "kernels/tensor_core/types.cuh"
#include "kernels/tensor_core/wgmma.cuh"
#include "runtime/cuda/kernels/activations.cuh"
#include "runtime/cuda/kernels/stage_block.cuh"

namespace distile {

constexpr int multiply_threads = multiply_warps * 32;

/** The threads that multiply wait for each other. */
__device__ inline void sync_multipliers() {
    tc::sync_threads<multiply_threads>(1);
}

/** What those who multiply have used of the rings. */
struct RingUses {
    uint32_t pixels = 0, weights = 0, items = 0;
};

/** The products of a tile with this many rows and columns. Thread t of a warp group has sums of rows
 * t / 32 * 16 + t % 32 / 4 and 8 below, in each group of 32 columns of 8 neighbours: weights are packed so. */
template<class Element, uint32_t Rows, uint32_t Columns> class TileProducts {
public:
    __device__ TileProducts(const StageStep &step, const Shared &shared, RingUses &uses)
        : step_(step), shared_(shared), rows_(shared.block.rows[uses.items % listed_items]), uses_(uses) {
    }

    __device__ void compute() {
        wait_for_use(shared_.block.listed, uses_.items);
        find_outputs();
        wait_for_use(shared_.block.may_start, uses_.items);
        load_residual();
        multiply();
        if constexpr (shares_reduction) {
            merge();
        }
        store();
    }

private:
    static constexpr bool shares_reduction = Rows <= 64;
    /** Steps of the reduction in a slot of pixels, and for each warp group in a slot of weights. */
    static constexpr uint32_t pixel_steps = Rows >= 64 ? 1 : 64 / Rows;
    static constexpr uint32_t weight_steps = 128 / Columns / (shares_reduction ? 2 : 1);
    static constexpr uint32_t halves = shares_reduction ? 1 : 2;  ///< How many of a thread's rows it stores.
    static constexpr uint32_t groups = Columns / stage_columns;
    using Storage = tc::Storage<Element>;

    __device__ static uint32_t warp_group() {
        return threadIdx.x / 128;
    }
    __device__ static uint32_t warp_of_group() {
        return threadIdx.x / 32 % 4;
    }

    /** The row of the tile whose sums a thread stores. */
    __device__ uint32_t own_row(uint32_t half) const {
        const uint32_t below = shares_reduction ? warp_group() : half;
        return (shares_reduction ? 0 : warp_group() * 64) + warp_of_group() * 16 + lane() / 4 + 8 * below;
    }

    __device__ void find_outputs() {
        first_column_ = rows_.slice * Columns + lane() % 4 * 8;
#pragma unroll
        for (uint32_t half = 0; half < halves; half++) {
            const uint32_t row = own_row(half);
            output_[half] = row < Rows ? rows_.output[row] : ItemRows::none;
        }
    }

    __device__ void load_residual() {
#pragma unroll
        for (uint32_t half = 0; half < halves; half++) {
            const bool adds = step_.residual.data && output_[half] != ItemRows::none;
            const int64_t from = adds ? int64_t{rows_.residual[own_row(half)]} + first_column_ : 0;
#pragma unroll
            for (uint32_t group = 0; group < groups; group++) {
                residual_[half][group] = uint4{};
                if (adds) {
                    residual_[half][group] = __ldcg(
                        reinterpret_cast<const uint4 *>(step_.residual.data + (from + group * stage_columns) * 2));
                }
            }
        }
        __syncwarp();
    }

    /** Waits for a slot of pixels. Two warp groups that share the reduction take slots in turns, or parts of one. */
    __device__ void take_pixels() {
        const uint32_t use = uses_.pixels + (pixel_steps == 1 ? warp_group() : 0);
        uses_.pixels += pixel_steps == 1 ? 2 : 1;
        pixels_ = use % pixel_slots;
        wait_for_use(shared_.block.pixels_full, use);
        __syncwarp();
    }

    __device__ void take_weights() {
        weights_ = uses_.weights % weight_slots;
        wait_for_use(shared_.block.weights_full, uses_.weights++);
        __syncwarp();
    }

    __device__ void leave_pixels(uint32_t slot) {
        if (lane() == 0) {
            tc::arrive(barrier_of(shared_.block.pixels_empty[slot]));
            if (pixel_steps == 1) {  // The other warp group does not use the slot.
                tc::arrive(barrier_of(shared_.block.pixels_empty[slot]));
            }
        }
    }

    __device__ void leave_weights(uint32_t slot) {
        if (lane() == 0) {
            tc::arrive(barrier_of(shared_.block.weights_empty[slot]));
        }
    }

    /** Multiplies the first or the second of two steps of the reduction. */
    template<uint32_t second> __device__ void multiply_step(bool first_of_item) {
        const uint32_t old_pixels = pixels_, old_weights = weights_;
        constexpr bool new_pixels = pixel_steps < 4 || second == 0, new_weights = weight_steps == 1 || second == 0;
        if (new_pixels) {
            take_pixels();
        }
        if (new_weights) {
            take_weights();
        }
        // Each step of the reduction has its rows in the slot. Products have 64: those behind a tile's own are some
        // others, whose sums nobody reads.
        const uint32_t part = pixel_steps == 1 ? 0 : pixel_steps == 2 ? warp_group() : 2 * second + warp_group();
        const uint32_t weight_part =
            (weight_steps == 2 ? second * (shares_reduction ? 2 : 1) : 0) + (shares_reduction ? warp_group() : 0);
        const tc::SharedMatrix rows(tc::uniform(shared_.pixels + pixels_ * pixel_slot + part * Rows % 64 * row_bytes),
                                    row_bytes);
        const tc::SharedMatrix columns(
            tc::uniform(shared_.weights + weights_ * weight_slot + weight_part * Columns * row_bytes), row_bytes);
        tc::fence_shared();  // The rows were gathered by copies that products do not see otherwise.
        tc::begin_products();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            tc::multiply_add(Element{}, sums_, rows.at(2 * i), columns.at(2 * i), true);
        }
        tc::commit_products();
        if (!first_of_item) {
            tc::wait_for_products<1>();
            if (new_pixels) {
                leave_pixels(old_pixels);
            }
            if (new_weights) {
                leave_weights(old_weights);
            }
        }
    }

    __device__ void multiply() {
        const uint32_t steps = padded_reduction(step_) / (shares_reduction ? 2 : 1);
        tc::fence_registers(sums_);
#pragma unroll 1
        for (uint32_t begin = 0; begin < steps; begin += 2) {
            multiply_step<0>(begin == 0);
            multiply_step<1>(false);
        }
        tc::wait_for_products<0>();
        tc::fence_registers(sums_);
        leave_pixels(pixels_);
        leave_weights(weights_);
    }

    /** Each warp group adds the other's sums to its own, of the half of the rows that it stores. */
    __device__ void merge() {
        const uint32_t group = warp_group(), thread = threadIdx.x % 128;
        sync_multipliers();  // The sums of the item before have been read.
#pragma unroll
        for (uint32_t i = 0; i < Columns / 16; i++) {
            const float *const sums = sums_ + i * 8;
            shared_.sums[(group * (Columns / 16) + i) * 128 + thread] =
                group == 0 ? make_float4(sums[2], sums[3], sums[6], sums[7])
                           : make_float4(sums[0], sums[1], sums[4], sums[5]);
        }
        sync_multipliers();
#pragma unroll
        for (uint32_t i = 0; i < Columns / 16; i++) {
            const float4 more = shared_.sums[((1 - group) * (Columns / 16) + i) * 128 + thread];
            float *const sums = sums_ + i * 8;
            sums[0] = (group == 0 ? sums[0] : sums[2]) + more.x;
            sums[1] = (group == 0 ? sums[1] : sums[3]) + more.y;
            sums[4] = (group == 0 ? sums[4] : sums[6]) + more.z;
            sums[5] = (group == 0 ? sums[5] : sums[7]) + more.w;
        }
    }

    __device__ void store() {
#pragma unroll
        for (uint32_t half = 0; half < halves; half++) {
            if (output_[half] == ItemRows::none) {
                continue;
            }
            const bool keeps = (output_[half] & keeps_sums) != 0;
            const int64_t to = int64_t{output_[half] & ~keeps_sums} + first_column_;
#pragma unroll
            for (uint32_t group = 0; group < groups; group++) {
                const float *const bias = rows_.bias + group * stage_columns + lane() % 4 * 8;
                float values[8];
                const uint4 &added = residual_[half][group];
                const uint32_t words[4] = {added.x, added.y, added.z, added.w};
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const float2 pair = Storage::unpack(words[i]);
                    values[2 * i] = sums_[group * 16 + i * 4 + 2 * half] + bias[2 * i] + pair.x;
                    values[2 * i + 1] = sums_[group * 16 + i * 4 + 2 * half + 1] + bias[2 * i + 1] + pair.y;
                }
                if (!keeps) {
                    activate(values);
                }
                const uint4 packed{Storage::pack(values[0], values[1]), Storage::pack(values[2], values[3]),
                                   Storage::pack(values[4], values[5]), Storage::pack(values[6], values[7])};
                __stcg(reinterpret_cast<uint4 *>(step_.output.data + (to + group * stage_columns) * 2), packed);
            }
        }
    }

    /** Turns the values through the first place, so that the activation's code is there once. */
    __device__ void activate(float (&values)[8]) const {
        const Activation activation = step_.activation;
        if (activation.function == DISTILE_ACTIVATION_RELU) {
#pragma unroll
            for (float &value : values) {
                value = at_least(value, 0);
            }
        } else if (activation.function != DISTILE_ACTIVATION_NONE) {
#pragma unroll 1
            for (int i = 0; i < 8; i++) {
                const float first = activated(activation.function, values[0], activation.slope);
#pragma unroll
                for (int j = 0; j < 7; j++) {
                    values[j] = values[j + 1];
                }
                values[7] = first;
            }
        }
    }

    const StageStep &step_;
    const Shared &shared_;
    const ItemRows &rows_;
    RingUses &uses_;
    uint32_t first_column_ = 0, pixels_ = 0, weights_ = 0;
    float sums_[Columns / 2] = {};
    int32_t output_[halves];
    uint4 residual_[halves][groups];
};

/** Scores the pixels of a word of a mask, 4 in each warp. */
template<class Element>
__device__ void score_word(const StageStep &step, uint32_t word, StageBlock &block, uint32_t turn) {
    constexpr uint32_t own = 32 / multiply_warps;
    const uint32_t row = divide(word, step.words_per_row), image = divide(row, step.height);
    const uint32_t y = row - image * step.height.value, x = (word - row * step.words_per_row.value) * 32;
    const uint32_t warp = threadIdx.x / 32, pixels = min(32u, step.width.value - x);
    const char *from[own];
    float sums[own] = {};
#pragma unroll
    for (uint32_t i = 0; i < own; i++) {
        const uint32_t at = x + min(warp * own + i, pixels - 1);
        from[i] = step.input.data +
                  2 * (int64_t{step.input.stride_n} * image + int64_t{step.input.stride_h} * (y * step.down.stride) +
                       int64_t{step.input.stride_w} * (at * step.across.stride));
    }
#pragma unroll 4
    for (uint32_t channel = lane() * 8; channel < step.channels; channel += 256) {
        uint4 values[own];
#pragma unroll
        for (uint32_t i = 0; i < own; i++) {
            values[i] = __ldcg(reinterpret_cast<const uint4 *>(from[i] + channel * 2));
        }
        const float4 low = __ldg(reinterpret_cast<const float4 *>(step.bias + channel));
        const float4 high = __ldg(reinterpret_cast<const float4 *>(step.bias + channel + 4));
        const float factors[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (uint32_t i = 0; i < own; i++) {
            const uint32_t words[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
            for (uint32_t pair = 0; pair < 4; pair++) {
                const float2 both = tc::Storage<Element>::unpack(words[pair]);
                sums[i] += both.x * factors[2 * pair] + both.y * factors[2 * pair + 1];
            }
        }
    }
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < own; i++) {
        for (int distance = 16; distance > 0; distance /= 2) {
            sums[i] += __shfl_xor_sync(all_lanes, sums[i], distance);
        }
        const bool active = warp * own + i < pixels && sums[i] + step.score_bias > step.threshold;
        bits |= (active ? 1u : 0u) << (warp * own + i);
    }
    uint32_t(&found)[multiply_warps] = block.bits[turn % 2];  // The item before may still be read.
    if (lane() == 0) {
        found[warp] = bits;
    }
    sync_multipliers();
    if (warp == 0) {
        const uint32_t all = warp_sum(lane() < multiply_warps ? found[lane()] : 0);
        if (lane() == 0) {
            __stcg(step.made + word, all);
        }
        if (step.mirror.bytes && lane() < pixels) {
            row_of(step.mirror, image, y)[x + lane()] = all >> lane() & 1;
        }
        __syncwarp();
    }
}

/** Computes items. */
template<class Element> __device__ void compute_items(uint32_t num_steps, const Shared &shared) {
    RingUses uses;
    StageBlock &block = shared.block;
    uint32_t masks = 0;
    for_each_item<Walker::Warp>(num_steps, block, [&](const StageStep &step, const StagePlan &plan, uint32_t item) {
        if (step.work == StageWork::Score) {
            wait_for_use(block.may_start, uses.items);
            score_word<Element>(step, item, block, uses.items);
        } else if (step.work == StageWork::Prepare) {
            wait_for_use(block.may_start, uses.items);
            prepare_rows<multiply_threads>(step, block.kept, [] { sync_multipliers(); });
            if (threadIdx.x == 0) {
                arrive_at_use(block.prepared, masks);
            }
            masks++;
        }
#define DISTILE_ROW(rows, columns)                                                                                     \
    else if (plan.tile_rows == rows && plan.tile_columns == columns) {                                                 \
        TileProducts<Element, rows, columns>(step, shared, uses).compute();                                            \
    }
        DISTILE_STAGE_TILES(DISTILE_ROW)
#undef DISTILE_ROW
        if (uses.items >= open_items) {
            wait_for_use(block.told, uses.items - open_items);
        }
        __syncwarp();
        if (lane() == 0) {
            arrive_at_use(block.finished, uses.items);
        }
        uses.items++;
    });
}

}  // namespace distile

#endif
