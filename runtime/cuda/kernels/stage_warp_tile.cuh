/** \file
 * The products of tiles of 64 rows and more on architectures without warp groups.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_WARP_TILE_CUH
#define DISTILE_CUDA_KERNELS_STAGE_WARP_TILE_CUH

#include "kernels/tensor_core/mma.cuh"
#include "runtime/cuda/kernels/stage_channels.cuh"

namespace distile {

/** Each warp has a fourth of the rows and a half of the columns, and all of the reduction. Lane t has sums of rows t /
 * 4 and 8 below of each 16, in each group of 32 columns of 8 neighbours: weights are packed so. */
template<class Element, uint32_t Rows, uint32_t Columns> class WarpTile {
public:
    __device__ WarpTile(const StageStep &step, const Shared &shared, RingUses &uses)
        : step_(step), shared_(shared), rows_(shared.block.rows[uses.items % listed_items]), uses_(uses),
          first_row_(threadIdx.x / 32 % row_warps * own_rows),
          first_column_(threadIdx.x / 32 / row_warps * (Columns / column_warps)) {
    }

    __device__ void compute() {
        wait_for_use(shared_.block.may_start, uses_.items);
        __syncwarp();
        ResidualOfEight<Element> residuals[stored_rows][groups];
        if constexpr (loads_early) {
            for_each([&](uint32_t row, uint32_t group) { load(row, group, residuals[row][group]); });
            __syncwarp();
        }
        multiply();
        if (threadIdx.x == 0) {
            shared_.clock.note(uses_.items, &StageItemTimes::multiplied);
        }
        for_each([&](uint32_t row, uint32_t group) {
            if constexpr (!loads_early) {
                load(row, group, residuals[row][group]);
            }
            store(row, group, residuals[row][group]);
        });
    }

private:
    static_assert(Rows % 64 == 0 && Columns % 64 == 0, "warps share rows and columns");
    static constexpr uint32_t row_warps = 4, column_warps = multiply_warps / row_warps;
    static constexpr uint32_t own_rows = Rows / row_warps, sixteens = own_rows / 16;
    static constexpr uint32_t groups = Columns / column_warps / stage_columns;  ///< A warp's.
    static constexpr uint32_t halves = Rows / 64;            ///< Slots of pixels in a step of the reduction.
    static constexpr uint32_t weight_steps = 128 / Columns;  ///< Steps of the reduction in a slot of weights.
    static constexpr uint32_t stored_rows = 2 * sixteens;    ///< A lane's.
    /** Whether there are registers for residuals beside the sums. */
    static constexpr bool loads_early = stored_rows * groups * pieces_of_eight<Element> <= 4;

    /** Calls visit(row, group) for the rows of a lane and the groups of columns. */
    template<class Visit> __device__ static void for_each(const Visit &visit) {
#pragma unroll
        for (uint32_t row = 0; row < stored_rows; row++) {
#pragma unroll
            for (uint32_t group = 0; group < groups; group++) {
                visit(row, group);
            }
        }
    }

    /** The row of the tile whose sums a lane has. */
    __device__ uint32_t row_of_tile(uint32_t row) const {
        return first_row_ + row * 8 + lane() / 4;
    }
    /** The first of the columns of the tile whose sums a lane has. */
    __device__ uint32_t column_of_tile(uint32_t group) const {
        return first_column_ + group * stage_columns + lane() % 4 * 8;
    }

    __device__ void load(uint32_t row, uint32_t group, ResidualOfEight<Element> &residual) const {
        const bool adds = step_.residual.data && rows_.output[row_of_tile(row)] != ItemRows::none;
        const uint32_t column = rows_.slice * Columns + column_of_tile(group);
        residual.load(step_, adds, adds ? int64_t{rows_.residual[row_of_tile(row)]} + column : 0, column);
    }

    __device__ void store(uint32_t row, uint32_t group, const ResidualOfEight<Element> &residual) const {
        const int32_t output = rows_.output[row_of_tile(row)];
        const uint32_t at = column_of_tile(group), column = rows_.slice * Columns + at;
        if (output == ItemRows::none || column >= step_.channels) {
            return;  // Zeros may fill up the last group.
        }
        SumOfElements<Element> values[8];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            values[2 * i] = sums_[row / 2][group][i][row % 2 * 2];
            values[2 * i + 1] = sums_[row / 2][group][i][row % 2 * 2 + 1];
        }
        store_eight<Element>(step_, output, column, rows_.bias + at, residual, values);
    }

    __device__ void multiply() {
        StageBlock &block = shared_.block;
        const uint32_t steps = padded_reduction(step_), half = first_row_ / 64;
        const uint32_t a_row = first_row_ % 64 + lane() % 16, a_half = lane() / 16;
        const uint32_t b_line = first_column_ + lane() / 16 * 8 + lane() % 8, b_half = lane() / 8 % 2;
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t use = uses_.pixels + half, weight_part = step % weight_steps;
            const uint32_t pixels = use % pixel_slots, weights = uses_.weights % weight_slots;
            uses_.pixels += halves;
            wait_for_use(block.pixels_full, use);
            if (weight_part == 0) {
                wait_for_use(block.weights_full, uses_.weights);
            }
            __syncwarp();
            if (step == 0 && threadIdx.x == 0) {
                shared_.clock.note(uses_.items, &StageItemTimes::begun);
            }
            const uint32_t a = shared_.pixels + pixels * pixel_slot + a_row * row_bytes;
            const uint32_t b = shared_.weights + weights * weight_slot + (weight_part * Columns + b_line) * row_bytes;
#pragma unroll
            for (uint32_t piece = 0; piece < 8; piece += 2) {
                multiply_pieces(a + ((piece + a_half) ^ a_row % 8) * 16, b + ((piece + b_half) ^ b_line % 8) * 16);
            }
            __syncwarp();
            const bool last_of_weights = weight_part == weight_steps - 1;
            if (lane() == 0) {
#pragma unroll
                for (uint32_t i = 0; i < halves; i++) {
                    tc::arrive(barrier_of(block.pixels_empty[pixels]));  // Warps of other rows do not use the slot.
                }
                if (last_of_weights) {
                    tc::arrive(barrier_of(block.weights_empty[weights]));
                }
            }
            uses_.weights += last_of_weights ? 1 : 0;
        }
    }

    /** Multiplies 32 bytes of each row and each column. */
    __device__ void multiply_pieces(uint32_t a, uint32_t b) {
        uint32_t rows[sixteens][4];
#pragma unroll
        for (uint32_t i = 0; i < sixteens; i++) {
            tc::load_matrices(rows[i], a + i * 16 * row_bytes);
        }
#pragma unroll
        for (uint32_t j = 0; j < 2 * groups; j++) {
            uint32_t columns[4];
            tc::load_matrices(columns, b + j * 16 * row_bytes);
#pragma unroll
            for (uint32_t i = 0; i < sixteens; i++) {
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    const uint32_t *const pair = columns + 2 * k;
                    tc::multiply_add(Element{}, sums_[i][j / 2][j % 2 * 2 + k], rows[i], pair);
                }
            }
        }
    }

    const StageStep &step_;
    const Shared &shared_;
    const ItemRows &rows_;
    RingUses &uses_;
    const uint32_t first_row_, first_column_;
    SumOfElements<Element> sums_[sixteens][groups][4][4] = {};
};

}  // namespace distile

#endif
