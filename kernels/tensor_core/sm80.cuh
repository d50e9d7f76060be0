/** \file
 * A masked convolution as a matrix product on the tensor cores of compute capability 8.0 and later. Rows are the pixels
 * of active tiles, columns the output channels; the reduction goes over kernel positions and input channels.
 *
 * A block computes BlockPixels x BlockChannels at a time. All threads copy rows of the input and the packed weights to
 * shared memory, Stages - 1 steps of 128 bytes ahead, and all multiply. Blocks stay and take further work.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SM80_CUH
#define DISTILE_CUDA_TENSOR_CORE_SM80_CUH

#include "kernels/tensor_core/columns.h"
#include "kernels/tensor_core/mma.cuh"
#include "kernels/tensor_core/ptx.cuh"
#include "kernels/tensor_core/store.cuh"

namespace distile::tensor_core {

template<class Op, int BlockPixels, int BlockChannels, int Stages, int Splits, bool Balanced> class Sm80 {
    using Element = typename Op::Element;
    using Sum = SumOf<Op>;
    using Reduction = ReductionPlace<Op>;

    static constexpr int warps = BlockPixels == 128 ? 8 : 4;
    // A warp multiplies 32 rows.
    static constexpr int row_warps = BlockPixels / 32, column_warps = warps / row_warps;
    static constexpr int warp_channels = BlockChannels / column_warps;
    static constexpr int input_bytes = BlockPixels * 128, stage_bytes = input_bytes + BlockChannels * 128;
    using BlockColumn = ColumnOf<Op, BlockChannels>;
    static constexpr int columns = BlockColumn::count;

    static_assert(BlockPixels == 32 || BlockPixels == 64 || BlockPixels == 128);
    static_assert(Splits == 1, "clusters came with compute capability 9.0");
    static_assert(!Balanced);
    static_assert(warp_channels % 16 == 0);

public:
    static constexpr bool has_boxes = false;
    static constexpr int threads = 32 * warps;
    static constexpr int shared_bytes = Stages * stage_bytes + static_cast<int>(sizeof(ListMemory));
    static constexpr int blocks = 1;

    __device__ __forceinline__ static void run(const Arguments &arguments, const Tiles &tiles) {
        if (blockIdx.x >= tiles.blocks) {
            return;
        }
        extern __shared__ __align__(128) char stages[];
        auto &memory = *reinterpret_cast<ListMemory *>(stages + Stages * stage_bytes);
        const Rows<Op> rows(arguments, tiles, memory);
        const uint32_t work = (rows.count() + BlockPixels - 1) / BlockPixels * columns;
        const Sm80 block{arguments, rows, shared_address(stages)};
        for (uint32_t item = blockIdx.x; item < work; item += tiles.blocks) {
            block.compute(item / columns * BlockPixels, BlockColumn(item % columns));
        }
    }

private:
    static constexpr int row_step = threads / 8;
    static constexpr int input_rows = BlockPixels / row_step, weight_rows = (BlockChannels + row_step - 1) / row_step;

    const Arguments &a;
    const Rows<Op> &rows;
    const uint32_t stages;

    __device__ Sm80(const Arguments &arguments, const Rows<Op> &given_rows, uint32_t given_stages)
        : a(arguments), rows(given_rows), stages(given_stages) {
    }

    /** The state of a thread's copies; eight threads copy a row of 128 bytes. */
    struct Copies {
        Source<Op> sources[input_rows];
        Reduction place;
        const char *weights;
        InputCopies<Op> input;
        int32_t step = 0;
    };

    __device__ void copy_step(Copies &copies, int32_t stored_rows) const {
        if (copies.step < Reduction::steps) {
            const uint32_t piece = threadIdx.x % 8, first_row = threadIdx.x / 8;
            const uint32_t stage = stages + static_cast<uint32_t>(copies.step) % Stages * stage_bytes;
            const char *const from = a.input.data + int64_t{copies.place.offset(a)} * 16;
#pragma unroll
            for (int i = 0; i < input_rows; i++) {
                const uint32_t row = first_row + i * row_step;
                copies.input.copy(stage + row * 128 + (piece ^ row % 8) * 16, from + int64_t{copies.sources[i].at} * 16,
                                  copies.place.is_in(copies.sources[i].readable));
            }
#pragma unroll
            for (int i = 0; i < weight_rows; i++) {
                // Packed in the order of shared memory.
                const int32_t row = static_cast<int32_t>(first_row) + i * row_step;
                if (row < BlockChannels) {
                    copy_or_zero(stage + input_bytes + row * 128 + piece * 16, copies.weights + row * 128 + piece * 16,
                                 row < stored_rows);
                }
            }
            copies.weights += BlockColumn::step_rows * 128;
            copies.place.step();
            copies.step++;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    __device__ void multiply_step(int32_t step, Sum (&sums)[2][warp_channels / 8][4]) const {
        const uint32_t stage = stages + static_cast<uint32_t>(step) % Stages * stage_bytes;
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        // Lanes name rows of four matrices: for inputs two of rows below each other, then two of the next 16 bytes; for
        // weights two of 16 bytes beside each other, then two of the next rows.
        const uint32_t input_row = warp / column_warps * 32 + lane % 16, input_piece = lane / 16;
        const uint32_t weight_row = warp % column_warps * warp_channels + lane / 16 * 8 + lane % 8;
        const uint32_t weight_piece = lane / 8 % 2;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t inputs[2][4];
#pragma unroll
            for (uint32_t m = 0; m < 2; m++) {
                load_matrices(inputs[m],
                              stage + (input_row + 16 * m) * 128 + ((2 * k + input_piece) ^ input_row % 8) * 16);
            }
#pragma unroll
            for (uint32_t n = 0; n < warp_channels / 16; n++) {
                uint32_t weights[4];
                load_matrices(weights, stage + input_bytes + (weight_row + 16 * n) * 128 +
                                           ((2 * k + weight_piece) ^ weight_row % 8) * 16);
#pragma unroll
                for (uint32_t m = 0; m < 2; m++) {
                    multiply_add(Element{}, sums[m][2 * n], inputs[m], weights);
                    multiply_add(Element{}, sums[m][2 * n + 1], inputs[m], weights + 2);
                }
            }
        }
    }

    __device__ void compute(uint32_t first_row, const BlockColumn &column) const {
        Copies copies{{},
                      Reduction(static_cast<int32_t>(threadIdx.x % 8)),
                      a.weights + column.weight_row(Reduction::steps, 0) * 128,
                      InputCopies<Op>(a)};
#pragma unroll
        for (int i = 0; i < input_rows; i++) {
            const uint32_t row = first_row + threadIdx.x / 8 + i * row_step;
            copies.sources[i] =
                row < rows.count() ? Source<Op>::of(a, rows.pixel(row, rows.fetch(row))) : Source<Op>{0, 0};
            copies.sources[i].at += column.input_channel() / Reduction::lanes;
        }
        const int32_t stored_rows = column.weight_rows();
        // The stages are still read for the item before.
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Stages - 1; i++) {
            copy_step(copies, stored_rows);
        }
        Sum sums[2][warp_channels / 8][4] = {};
#pragma unroll 1
        for (int32_t step = 0; step < Reduction::steps; step++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 2) : "memory");
            __syncthreads();
            copy_step(copies, stored_rows);
            multiply_step(step, sums);
        }
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const Epilogue<Op> epilogue(a);
#pragma unroll
        for (uint32_t m = 0; m < 2; m++) {
            const uint32_t row = first_row + warp / column_warps * 32 + 16 * m + lane / 4;
            const Place places[2] = {Place::of(rows, row, rows.fetch(row)),
                                     Place::of(rows, row + 8, rows.fetch(row + 8))};
            const int32_t thread_channel = column.channel() + static_cast<int32_t>(warp % column_warps) * warp_channels;
            store_fragment<Op, warp_channels>(a, epilogue, places, &sums[m][0][0],
                                              ChannelParams<Op>::of(a).from(thread_channel), thread_channel,
                                              column.end());
        }
    }
};

}  // namespace distile::tensor_core

#endif
