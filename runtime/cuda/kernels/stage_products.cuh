/** \file
 * How the eight warps that multiply compute items of a stage.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_PRODUCTS_CUH
#define DISTILE_CUDA_KERNELS_STAGE_PRODUCTS_CUH

#include "kernels/tensor_core/mma.cuh"
#include "kernels/tensor_core/wgmma.cuh"
#include "runtime/cuda/kernels/stage_attention.cuh"
#include "runtime/cuda/kernels/stage_channels.cuh"
#include "runtime/cuda/kernels/stage_halting.cuh"
#include "runtime/cuda/kernels/stage_norms.cuh"
#include "runtime/cuda/kernels/stage_warp_tile.cuh"

namespace distile {

/** The products of a tile of 64 rows or more by warp groups. Thread t of a warp group has sums of rows
 * t / 32 * 16 + t % 32 / 4 and 8 below, in each group of 32 columns of 8 neighbours: weights are packed so. */
template<class Element, uint32_t Rows, uint32_t Columns> class LargeTile {
public:
    __device__ LargeTile(const StageStep &step, const Shared &shared, RingUses &uses)
        : step_(step), shared_(shared), rows_(shared.block.rows[uses.items % listed_items]), uses_(uses) {
    }

    __device__ void compute() {
        find_outputs();
        wait_for_use(shared_.block.may_start, uses_.items);
        if constexpr (loads_early) {
#pragma unroll
            for (uint32_t half = 0; half < halves; half++) {
                load_residual(half);
            }
            __syncwarp();
        }
        multiply();
        if constexpr (shares_reduction) {
            merge();
        }
        store();
    }

private:
    static_assert(Rows >= 64, "instructions of warp groups have 64 rows");
    using Sum = SumOfElements<Element>;
    using Four = typename tc::SumVector<Sum>::Four;
    static constexpr bool shares_reduction = Rows == 64;
    /** Steps of the reduction for each warp group in a slot of weights. */
    static constexpr uint32_t weight_steps = 128 / Columns / (shares_reduction ? 2 : 1);
    static constexpr uint32_t halves = shares_reduction ? 1 : 2;  ///< How many of a thread's rows it stores.
    static constexpr uint32_t groups = Columns / stage_columns;
    /** Whether there are registers for residuals beside the sums. */
    static constexpr bool loads_early = halves * groups * pieces_of_eight<Element> <= 8;

    __device__ static uint32_t warp_group() {
        return threadIdx.x / 128;
    }
    __device__ static uint32_t warp_of_group() {
        return threadIdx.x / 32 % 4;
    }

    __device__ void note(uint32_t StageItemTimes::*point) const {
        if (threadIdx.x == 0) {
            shared_.clock.note(uses_.items, point);
        }
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
            output_[half] = rows_.output[own_row(half)];
        }
    }

    __device__ void load_residual(uint32_t half) {
        const bool adds = step_.residual.data && output_[half] != ItemRows::none;
        const int64_t from = adds ? int64_t{rows_.residual[own_row(half)]} + first_column_ : 0;
#pragma unroll
        for (uint32_t group = 0; group < groups; group++) {
            const uint32_t more = group * stage_columns;
            residual_[half][group].load(step_, adds, from + more, first_column_ + more);
        }
    }

    /** Waits for a slot of pixels. Both warp groups take slots in turns. */
    __device__ void take_pixels() {
        const uint32_t use = uses_.pixels + warp_group();
        uses_.pixels += 2;
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
            tc::arrive(barrier_of(shared_.block.pixels_empty[slot]));  // The other warp group does not use the slot.
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
        constexpr bool new_weights = weight_steps == 1 || second == 0;
        take_pixels();
        if (new_weights) {
            take_weights();
        }
        const uint32_t weight_part =
            (weight_steps == 2 ? second * (shares_reduction ? 2 : 1) : 0) + (shares_reduction ? warp_group() : 0);
        const tc::SharedMatrix rows(tc::uniform(shared_.pixels + pixels_ * pixel_slot), row_bytes);
        const tc::SharedMatrix columns(
            tc::uniform(shared_.weights + weights_ * weight_slot + weight_part * Columns * row_bytes), row_bytes);
        if (first_of_item) {
            note(&StageItemTimes::begun);
        }
        tc::fence_shared();  // The rows were gathered by copies that products do not see otherwise.
        tc::begin_products();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            tc::multiply_add(Element{}, sums_, rows.at(2 * i), columns.at(2 * i), true);
        }
        tc::commit_products();
        if (!first_of_item) {
            tc::wait_for_products<1>();
            leave_pixels(old_pixels);
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
        note(&StageItemTimes::multiplied);
    }

    /** Each warp group adds the other's sums to its own, of the half of the rows that it stores. */
    __device__ void merge() {
        const uint32_t group = warp_group(), thread = threadIdx.x % 128;
        sync_multipliers();  // The sums of the item before have been read.
#pragma unroll
        for (uint32_t i = 0; i < Columns / 16; i++) {
            const Sum *const sums = sums_ + i * 8;
            shared_.template sums_of<Sum>()[(group * (Columns / 16) + i) * 128 + thread] =
                group == 0 ? Four{sums[2], sums[3], sums[6], sums[7]} : Four{sums[0], sums[1], sums[4], sums[5]};
        }
        sync_multipliers();
#pragma unroll
        for (uint32_t i = 0; i < Columns / 16; i++) {
            const Four more = shared_.template sums_of<Sum>()[((1 - group) * (Columns / 16) + i) * 128 + thread];
            Sum *const sums = sums_ + i * 8;
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
            if constexpr (!loads_early) {
                load_residual(half);
            }
#pragma unroll
            for (uint32_t group = 0; group < groups; group++) {
                if (first_column_ + group * stage_columns >= step_.channels) {
                    continue;  // Zeros that fill up the last group.
                }
                Sum values[8];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    values[2 * i] = sums_[group * 16 + i * 4 + 2 * half];
                    values[2 * i + 1] = sums_[group * 16 + i * 4 + 2 * half + 1];
                }
                store_eight<Element>(step_, output_[half], first_column_ + group * stage_columns,
                                     rows_.bias + group * stage_columns + lane() % 4 * 8, residual_[half][group],
                                     values);
            }
        }
    }

    const StageStep &step_;
    const Shared &shared_;
    const ItemRows &rows_;
    RingUses &uses_;
    uint32_t first_column_ = 0, pixels_ = 0, weights_ = 0;
    Sum sums_[Columns / 2] = {};
    int32_t output_[halves];
    ResidualOfEight<Element> residual_[halves][groups];
};

/** The products of a tile of 16 or 32 rows, in which instructions of warp groups would waste most of their rows. Each
 * warp has 32 columns and a part of the reduction: those with the same columns add up their sums at the end, in pairs
 * first if they are many. Thread t then stores 8 channels, t % 4 * 8 in a group of 32 columns, of row t / 4. */
template<class Element, uint32_t Rows, uint32_t Columns> class SmallTile {
public:
    __device__ SmallTile(const StageStep &step, const Shared &shared, RingUses &uses)
        : step_(step), shared_(shared), rows_(shared.block.rows[uses.items % listed_items]), uses_(uses),
          group_(threadIdx.x / 32 % groups), part_(threadIdx.x / 32 / groups) {
    }

    __device__ void compute() {
        const uint32_t own = threadIdx.x % (Rows * 4), group = threadIdx.x / (Rows * 4), row = own / 4;
        const uint32_t column = group * stage_columns + own % 4 * 8;
        const int32_t output = group < groups ? rows_.output[row] : ItemRows::none;
        const bool stores = output != ItemRows::none && rows_.slice * Columns + column < step_.channels;
        wait_for_use(shared_.block.may_start, uses_.items);
        const bool adds = stores && step_.residual.data;
        ResidualOfEight<Element> residual;
        residual.load(step_, adds, adds ? int64_t{rows_.residual[row]} + rows_.slice * Columns + column : 0,
                      rows_.slice * Columns + column);
        __syncwarp();
        multiply();
        if (threadIdx.x == 0) {
            shared_.clock.note(uses_.items, &StageItemTimes::multiplied);
        }
        Sum values[8];
        merge(own, group, values);
        if (stores) {
            store_eight<Element>(step_, output, rows_.slice * Columns + column, rows_.bias + column, residual, values);
        }
    }

private:
    static_assert(Rows == 16 || Rows == 32, "larger tiles take instructions of warp groups");
    using Sum = SumOfElements<Element>;
    using Four = typename tc::SumVector<Sum>::Four;
    static constexpr uint32_t groups = Columns / stage_columns, parts = multiply_warps / groups;
    static constexpr uint32_t sixteens = Rows / 16;  ///< Products of 16 rows.
    /** Steps of the reduction in a slot, and sixteenths of the reduction that a warp takes of each slot of pixels. */
    static constexpr uint32_t pixel_steps = 64 / Rows, weight_steps = 128 / Columns;
    static constexpr uint32_t own_products = pixel_steps * 4 / parts;
    static constexpr uint32_t slots_of_weights = weight_steps / pixel_steps;  ///< Slots of pixels for one of weights.
    static constexpr uint32_t partial_bytes = Rows * stage_columns * sizeof(float);
    static constexpr uint32_t kept_parts =
        sums_bytes / (partial_bytes * groups);  ///< There is room for the sums of as many.
    static_assert(pixel_steps * 4 % parts == 0 && slots_of_weights >= 1 && parts <= 2 * kept_parts);

    __device__ void multiply() {
        const uint32_t slots = padded_reduction(step_) / pixel_steps;
        StageBlock &block = shared_.block;
        const uint32_t a_row = lane() % 16, a_half = lane() / 16;
        const uint32_t b_line = group_ * stage_columns + lane() / 16 * 8 + lane() % 8, b_half = lane() / 8 % 2;
#pragma unroll 1
        for (uint32_t slot = 0; slot < slots; slot++) {
            const uint32_t pixels = uses_.pixels % pixel_slots, weights = uses_.weights % weight_slots;
            const uint32_t weight_part = slot % slots_of_weights;
            wait_for_use(block.pixels_full, uses_.pixels++);
            wait_for_use(block.weights_full, uses_.weights);
            __syncwarp();
            if (slot == 0 && threadIdx.x == 0) {
                shared_.clock.note(uses_.items, &StageItemTimes::begun);
            }
#pragma unroll
            for (uint32_t i = 0; i < own_products; i++) {
                const uint32_t product = part_ * own_products + i, step = product / 4, piece = product % 4 * 2;
                const uint32_t a = shared_.pixels + pixels * pixel_slot + (step * Rows + a_row) * row_bytes +
                                   ((piece + a_half) ^ a_row % 8) * 16;
                const uint32_t b = shared_.weights + weights * weight_slot +
                                   ((weight_part * pixel_steps + step) * Columns + b_line) * row_bytes +
                                   ((piece + b_half) ^ b_line % 8) * 16;
                uint32_t rows[sixteens][4], columns[2][4];
#pragma unroll
                for (uint32_t j = 0; j < sixteens; j++) {
                    tc::load_matrices(rows[j], a + j * 16 * row_bytes);
                }
#pragma unroll
                for (uint32_t j = 0; j < 2; j++) {
                    tc::load_matrices(columns[j], b + j * 16 * row_bytes);
                }
#pragma unroll
                for (uint32_t j = 0; j < sixteens; j++) {
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) {
                        const uint32_t *const pair = &columns[k / 2][k % 2 * 2];
                        tc::multiply_add(Element{}, sums_[j][k], rows[j], pair);
                    }
                }
            }
            const bool last_of_weights = weight_part == slots_of_weights - 1;
            if (last_of_weights) {
                uses_.weights++;
            }
            __syncwarp();
            if (lane() == 0) {
                tc::arrive(barrier_of(block.pixels_empty[pixels]));
                if (last_of_weights) {
                    tc::arrive(barrier_of(block.weights_empty[weights]));
                }
            }
        }
    }

    /** Where sums of a row's 8 channels are that part `number` of those kept has written: in two halves. */
    __device__ Four *partial(uint32_t number, uint32_t group, uint32_t unit) const {
        return shared_.template sums_of<Sum>() + (number * groups + group) * (Rows * 8) + unit;
    }

    /** Sums of 8 channels that a thread has after the products: the first or second row of a sixteen. */
    __device__ void write_sums(uint32_t number) const {
#pragma unroll
        for (uint32_t j = 0; j < sixteens; j++) {
#pragma unroll
            for (uint32_t below = 0; below < 2; below++) {
                const auto &sums = sums_[j];
                Four *const to = partial(number, group_, (j * 16 + below * 8) * 4 + lane());
                to[0] = Four{sums[0][2 * below], sums[0][2 * below + 1], sums[1][2 * below], sums[1][2 * below + 1]};
                to[Rows * 4] =
                    Four{sums[2][2 * below], sums[2][2 * below + 1], sums[3][2 * below], sums[3][2 * below + 1]};
            }
        }
    }

    __device__ void add_sums(uint32_t number) {
#pragma unroll
        for (uint32_t j = 0; j < sixteens; j++) {
#pragma unroll
            for (uint32_t below = 0; below < 2; below++) {
                const Four *const from = partial(number, group_, (j * 16 + below * 8) * 4 + lane());
                const Four low = from[0], high = from[Rows * 4];
                const Sum more[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    sums_[j][k][2 * below] += more[2 * k];
                    sums_[j][k][2 * below + 1] += more[2 * k + 1];
                }
            }
        }
    }

    /** The sums of 8 channels of a row, of all parts of the reduction, always in the same order. */
    __device__ void merge(uint32_t unit, uint32_t group, Sum (&values)[8]) {
        constexpr uint32_t left = parts > kept_parts ? parts / 2 : parts;
        sync_multipliers();  // The sums of the item before have been read.
        if (parts > left) {
            if (part_ >= left) {
                write_sums(part_ - left);
            }
            sync_multipliers();
            if (part_ < left) {
                add_sums(part_);
                __syncwarp();
                write_sums(part_);
            }
        } else {
            write_sums(part_);
        }
        sync_multipliers();
        Four low{}, high{};
        if (group < groups) {
#pragma unroll
            for (uint32_t number = 0; number < left; number++) {
                const Four *const from = partial(number, group, unit);
                const Four a = from[0], b = from[Rows * 4];
                low = Four{low.x + a.x, low.y + a.y, low.z + a.z, low.w + a.w};
                high = Four{high.x + b.x, high.y + b.y, high.z + b.z, high.w + b.w};
            }
        }
        const Sum all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            values[i] = all[i];
        }
    }

    const StageStep &step_;
    const Shared &shared_;
    const ItemRows &rows_;
    RingUses &uses_;
    const uint32_t group_, part_;
    Sum sums_[sixteens][4][4] = {};
};

/** Adds up values over the lanes, each lane of an eighth of a warp getting one of the eight sums: lane / 4. */
__device__ inline float sum_of_eight(const float (&values)[8]) {
    float four[4], two[2];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const bool high = (lane() & 16) != 0;
        four[i] = (high ? values[i + 4] : values[i]) + __shfl_xor_sync(all_lanes, high ? values[i] : values[i + 4], 16);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const bool high = (lane() & 8) != 0;
        two[i] = (high ? four[i + 2] : four[i]) + __shfl_xor_sync(all_lanes, high ? four[i] : four[i + 2], 8);
    }
    const bool high = (lane() & 4) != 0;
    float sum = (high ? two[1] : two[0]) + __shfl_xor_sync(all_lanes, high ? two[0] : two[1], 4);
    sum += __shfl_xor_sync(all_lanes, sum, 2);
    return sum + __shfl_xor_sync(all_lanes, sum, 1);
}

/** Where a byte of a mask lies in its rows. */
struct MaskByte {
    uint32_t image, y, column;  ///< The column counts bytes.
};
__device__ inline MaskByte mask_byte(const StageStep &step, uint32_t number) {
    const uint32_t row = divide(number, step.row_bytes), image = divide(row, step.height);
    return {image, row - image * step.height.value, number - row * step.row_bytes.value};
}

/** Channels that a warp scores at once. */
template<class Element> constexpr uint32_t scored_at_once = 32 * piece_channels<Element>;

/** What a lane reads of `own` neighbouring pixels for their scores: a piece of every 32. */
template<class Element, uint32_t own> class ScoredPixels {
public:
    __device__ ScoredPixels(const StageStep &step, const MaskByte &at, uint32_t first) {
#pragma unroll
        for (uint32_t i = 0; i < own; i++) {
            const uint32_t x = min(at.column * 8 + first + i, step.width.value - 1);
            from_[i] =
                step.input.data + element_bytes<Element> * (int64_t{step.input.stride_n} * at.image +
                                                            int64_t{step.input.stride_h} * (at.y * step.down.stride) +
                                                            int64_t{step.input.stride_w} * (x * step.across.stride));
        }
    }

    /** Loads the channels from one on, or zeros behind the last. */
    __device__ void load(const StageStep &step, uint32_t channel, uint4 (&values)[own]) const {
#pragma unroll
        for (uint32_t i = 0; i < own; i++) {
            values[i] = channel < step.channels ? __ldcg(piece_at<Element>(from_[i], channel)) : uint4{};
        }
    }

private:
    const char *from_[own];
};

/** Adds products of a piece and its factors to the sums of pixels. */
template<class Element, uint32_t own>
__device__ void add_scores(const StageStep &step, uint32_t channel, const uint4 (&values)[own], float (&sums)[own]) {
    constexpr uint32_t channels = piece_channels<Element>;
    const float4 *const factors = reinterpret_cast<const float4 *>(step.bias + (channel < step.channels ? channel : 0));
    float numbers[channels];
#pragma unroll
    for (uint32_t i = 0; i < channels / 4; i++) {
        const float4 four = __ldg(factors + i);
        numbers[4 * i] = four.x;
        numbers[4 * i + 1] = four.y;
        numbers[4 * i + 2] = four.z;
        numbers[4 * i + 3] = four.w;
    }
#pragma unroll
    for (uint32_t i = 0; i < own; i++) {
        float both[channels];
        unpack_channels<Element>(values[i], both);
#pragma unroll
        for (uint32_t pair = 0; pair < channels / 2; pair++) {
            sums[i] += both[2 * pair] * numbers[2 * pair] + both[2 * pair + 1] * numbers[2 * pair + 1];
        }
    }
}

/** Writes a byte of a mask, with zeros behind the last one of a row up to the end of its word. One thread writes it,
 * and eight lanes the bytes of the mirror. */
__device__ inline void write_mask_byte(const StageStep &step, const MaskByte &at, uint32_t bits) {
    const uint32_t inside = step.width.value - at.column * 8;
    bits &= inside < 8 ? (1u << inside) - 1 : 0xff;
    if (lane() == 0) {
        const uint32_t row = at.image * step.height.value + at.y;
        auto *const to = reinterpret_cast<unsigned char *>(step.made + row * step.words_per_row.value);
        __stcg(to + at.column, static_cast<unsigned char>(bits));
        for (uint32_t behind = at.column + 1; at.column + 1 == step.row_bytes.value && behind % 4 != 0; behind++) {
            __stcg(to + behind, static_cast<unsigned char>(0));
        }
    }
    if (step.mirror.bytes && lane() < min(inside, 8u)) {
        row_of(step.mirror, at.image, at.y)[at.column * 8 + lane()] = bits >> lane() & 1;
    }
    __syncwarp();
}

/** Scores the pixels of a byte of a mask, one in each warp. */
template<class Element, bool tokens>
__device__ void score_byte(const StageStep &step, uint32_t number, StageBlock &block, uint32_t turn) {
    const MaskByte at = mask_byte(step, number);
    const uint32_t warp = threadIdx.x / 32;
    const ScoredPixels<Element, 1> pixel(step, at, warp);
    constexpr uint32_t at_once = 4, channels = piece_channels<Element>, scored = scored_at_once<Element>;
    float sum[1] = {};
#pragma unroll 1
    for (uint32_t begin = lane() * channels; begin < step.channels; begin += at_once * scored) {
        uint4 values[at_once][1];
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            pixel.load(step, begin + i * scored, values[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            add_scores<Element>(step, begin + i * scored, values[i], sum);
        }
    }
    __syncwarp();
    for (int distance = 16; distance > 0; distance /= 2) {
        sum[0] += __shfl_xor_sync(all_lanes, sum[0], distance);
    }
    bool is_active = sum[0] + step.score_bias > step.threshold;
    if constexpr (tokens) {
        if (step.totals) {
            const uint32_t x = at.column * 8 + warp;
            const Halting halting =
                lane() == 0 ? add_score(step, at.image, at.y, x, sum[0] + step.score_bias) : Halting{};
            is_active = halting.goes_on;
            add_part<Element>(step, at.image, at.y, x, __shfl_sync(all_lanes, halting.part, 0));
            __syncwarp();
        }
    }
    uint32_t(&found)[multiply_warps] = block.bits[turn % 2];  // The item before may still be read.
    if (lane() == 0) {
        found[warp] = is_active ? 1u << warp : 0;
    }
    sync_multipliers();
    if (warp == 0) {
        write_mask_byte(step, at, warp_sum(lane() < multiply_warps ? found[lane()] : 0));
    }
}

/** Adds the scores of a byte's pixels to their sums, one in every fourth lane, and returns whether they go on. */
template<class Element> __device__ bool add_scores_of_byte(const StageStep &step, const MaskByte &at, float score) {
    const uint32_t x = at.column * 8 + lane() / 4;
    const Halting halting = lane() % 4 == 0 ? add_score(step, at.image, at.y, x, score) : Halting{};
#pragma unroll 1
    for (uint32_t i = 0; i < 8; i++) {
        add_part<Element>(step, at.image, at.y, at.column * 8 + i, __shfl_sync(all_lanes, halting.part, i * 4));
        __syncwarp();
    }
    return halting.goes_on;
}

/** Scores the pixels of some bytes of a mask in each warp, loading what comes next before it adds up what is there. */
template<class Element, bool tokens>
__device__ void score_bytes(const StageStep &step, uint32_t item, uint32_t of_warp) {
    const uint32_t all = step.batch * step.height.value * step.row_bytes.value;
    const uint32_t first = (item * multiply_warps + threadIdx.x / 32) * of_warp, end = min(first + of_warp, all);
    if (first >= end) {
        return;
    }
    MaskByte at = mask_byte(step, first);
    ScoredPixels<Element, 8> pixels(step, at, 0);
    constexpr uint32_t scored = scored_at_once<Element>;
    const uint32_t own = lane() * piece_channels<Element>;
    uint4 values[8];
    pixels.load(step, own, values);
#pragma unroll 1
    for (uint32_t number = first; number < end; number++) {
        const MaskByte written = at;
        float sums[8] = {};
#pragma unroll 1
        for (uint32_t begin = 0; begin < step.channels; begin += scored) {
            uint32_t next = begin + scored;
            if (next >= step.channels && number + 1 < end) {
                next = 0;
                at = mask_byte(step, number + 1);
                pixels = ScoredPixels<Element, 8>(step, at, 0);
            }
            uint4 now[8];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                now[i] = values[i];
            }
            pixels.load(step, next + own, values);
            add_scores<Element>(step, begin + own, now, sums);
        }
        __syncwarp();
        const float sum = sum_of_eight(sums);
        bool is_active = sum + step.score_bias > step.threshold;
        if constexpr (tokens) {
            if (step.totals) {
                is_active = add_scores_of_byte<Element>(step, written, sum + step.score_bias);
            }
        }
        uint32_t bits = __ballot_sync(all_lanes, is_active) & 0x11111111;
        bits = (bits | bits >> 3) & 0x03030303;
        bits = (bits | bits >> 6) & 0x000f000f;
        write_mask_byte(step, written, (bits | bits >> 12) & 0xff);
    }
}

template<class Element, uint32_t Rows, uint32_t Columns> using Tile = std::conditional_t<
    (Rows < 64), SmallTile<Element, Rows, Columns>,
    std::conditional_t<architecture::is_sm90, LargeTile<Element, Rows, Columns>, WarpTile<Element, Rows, Columns>>>;

template<class Element, uint32_t Rows, uint32_t Columns> struct TileWork {
    __device__ static void compute(const StagePlan &plan, uint32_t, const Shared &shared, RingUses &uses) {
        Tile<Element, Rows, Columns>(plan.step, shared, uses).compute();
    }
};

template<class Element, bool tokens> struct ScoreWork {
    __device__ static void compute(const StagePlan &plan, uint32_t item, const Shared &shared, RingUses &uses) {
        if (plan.tile_rows == 1) {
            score_byte<Element, tokens>(plan.step, item, shared.block, uses.items);
        } else {
            score_bytes<Element, tokens>(plan.step, item, plan.tile_rows / 8);
        }
    }
};

template<class Element> struct ChannelWork {
    __device__ static void compute(const StagePlan &plan, uint32_t, const Shared &shared, RingUses &uses) {
        compute_channels<Element>(plan, shared, uses.items);
    }
};

template<class Element> struct NormWork {
    __device__ static void compute(const StagePlan &plan, uint32_t, const Shared &shared, RingUses &uses) {
        normalize_pixels<Element>(plan, shared, uses.items);
    }
};

/** Computes items. `tokens`: steps may be of tokens. */
template<class Element, bool tokens> class Multiplier {
public:
    __device__ explicit Multiplier(const Shared &shared) : shared_(shared) {
    }

    __device__ __forceinline__ void operator()(const StageStep &step, const StagePlan &plan, uint32_t item) {
        StageBlock &block = shared_.block;
        // Warps that gather must not fall behind by a ring's length: barriers count in turns.
        wait_for_use(block.listed, uses_.items);
        __syncwarp();
        if (step.work == StageWork::Score) {
            wait_for_use(block.may_start, uses_.items);
            compute_item<ScoreWork<Element, tokens>>(plan, item, shared_, uses_);
        } else if (step.work == StageWork::Count) {
            wait_for_use(block.may_start, uses_.items);
            __syncwarp();
            const uint32_t chunk = item * multiply_warps + threadIdx.x / 32;
            if (chunk < CountedChunks(step).all()) {
                count_chunk(step, chunk);
            }
        } else if (step.work == StageWork::Prepare) {
            // Warps that gather do it.
        } else if (step.work == StageWork::Channels) {
            compute_item<ChannelWork<Element>>(plan, item, shared_, uses_);
        } else if (compute_tokens(step, plan, item)) {
            // Other kernels have no such steps.
        }
#define DISTILE_ROW(rows, columns)                                                                                     \
    else if (tc::uniform(plan.tile_rows << 16 | plan.tile_columns) == (rows << 16 | columns)) {                        \
        compute_item<TileWork<Element, rows, columns>>(plan, item, shared_, uses_);                                    \
    }
        DISTILE_STAGE_TILES(DISTILE_ROW)
#undef DISTILE_ROW
        if (uses_.items >= open_items) {
            wait_for_use(block.told, uses_.items - open_items);
        }
        __syncwarp();
        if (lane() == 0) {
            arrive_at_use(block.finished, uses_.items);
        }
        if (threadIdx.x == 0) {
            shared_.clock.note(uses_.items, &StageItemTimes::stored);
        }
        uses_.items++;
    }

private:
    /** Computes an item of a step of tokens alone; false: it is none. */
    __device__ __forceinline__ bool compute_tokens(const StageStep &step, const StagePlan &plan, uint32_t item) {
        if constexpr (tokens) {
            if (step.work == StageWork::Normalize) {
                compute_item<NormWork<Element>>(plan, item, shared_, uses_);
                return true;
            }
            if (step.work == StageWork::Attend) {
                compute_attention<Element>(plan, item, shared_, uses_);
                return true;
            }
        }
        return false;
    }

    const Shared &shared_;
    RingUses uses_;
};

}  // namespace distile

#endif
