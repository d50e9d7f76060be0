/** \file
 * A masked convolution as a matrix product on the tensor cores of compute capability 9.0. Rows are the pixels of active
 * tiles, columns the output channels; the reduction goes over kernel positions and input channels.
 *
 * A block computes BlockPixels x BlockChannels at a time. Its last four warps copy rows of the input and the packed
 * weights to shared memory, `Stages` steps of 128 bytes ahead; the others multiply, 64 rows for each four warps. Blocks
 * stay and take further work. With Splits > 1, that many blocks form a cluster and share a reduction: each sums its
 * part, then adds a share of the rows from the others' shared memory, always in the same order.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SM90_CUH
#define DISTILE_CUDA_TENSOR_CORE_SM90_CUH

#include "epilogue.cuh"
#include "ptx.cuh"
#include <cute/tensor.hpp>

namespace distile::tensor_core {

template<class Op, int BlockPixels, int BlockChannels, int Stages, int Splits> class Sm90 {
    using Element = typename Op::Element;
    using Reduction = ReductionPlace<Op>;

    static constexpr int groups = BlockPixels / 64, multipliers = 128 * groups;
    static constexpr int input_bytes = BlockPixels * 128, weight_bytes = BlockChannels * 128;
    // Rows of partial sums are a few banks apart.
    static constexpr int part_stride = BlockChannels + 8;
    static constexpr int part_bytes = Splits > 1 ? BlockPixels *part_stride * 4 : 0;
    static constexpr int columns = (Op::out_channels + BlockChannels - 1) / BlockChannels;
    static constexpr int stored_channels = (Op::out_channels + 7) / 8 * 8;

    static_assert(BlockPixels == 64 || BlockPixels == 128);
    static_assert(BlockChannels % 32 == 0 && BlockChannels <= 256);
    static_assert(Splits >= 1 && Splits <= 8 && Splits <= Reduction::steps && BlockPixels % Splits == 0);

    /** What follows the stages in shared memory. */
    struct Shared {
        uint64_t filled[Stages], emptied[Stages];
        uint64_t parts_written, parts_read;
        Place places[Splits > 1 ? BlockPixels : 1];
        ListMemory list;
    };

public:
    static constexpr int threads = multipliers + 128;
    static constexpr int alignment = 1024;
    static constexpr int shared_bytes =
        alignment + Stages * (input_bytes + weight_bytes) + part_bytes + static_cast<int>(sizeof(Shared));
    /** Blocks on a multiprocessor, which has 228 KB and keeps one for each. */
    static constexpr int blocks = groups == 1 && 2 * (shared_bytes + 1024) <= 228 * 1024 ? 2 : 1;
    static_assert(shared_bytes <= 227 * 1024);

    __device__ static void run(const Arguments &arguments) {
        extern __shared__ char dynamic[];
        char *const stages = dynamic + (alignment - shared_address(dynamic) % alignment) % alignment;
        char *const parts = stages + Stages * (input_bytes + weight_bytes);
        Shared &shared = *reinterpret_cast<Shared *>(parts + part_bytes);
        if (threadIdx.x == 0) {
            for (int i = 0; i < Stages; i++) {
                init_barrier(shared_address(&shared.filled[i]), 128 + 1);
                init_barrier(shared_address(&shared.emptied[i]), groups);
            }
            init_barrier(shared_address(&shared.parts_written), Splits);
            init_barrier(shared_address(&shared.parts_read), Splits);
            publish_barriers();
        }
        if constexpr (Splits > 1) {
            sync_cluster();
        } else {
            __syncthreads();
        }
        wait_for_earlier_kernels();
        const Rows<Op> rows(arguments, shared.list);
        const uint32_t work = (rows.count() + BlockPixels - 1) / BlockPixels * columns;
        const Sm90 block{arguments, rows, work, stages, parts, shared};
        if (threadIdx.x >= multipliers) {
            block.copy();
        } else {
            block.multiply();
        }
    }

private:
    const Arguments &a;
    const Rows<Op> &rows;
    const uint32_t work;
    char *const stages, *const parts;
    Shared &shared;

    __device__ Sm90(const Arguments &arguments, const Rows<Op> &given_rows, uint32_t given_work, char *given_stages,
                    char *given_parts, Shared &given_shared)
        : a(arguments), rows(given_rows), work(given_work), stages(given_stages), parts(given_parts),
          shared(given_shared) {
    }

    __device__ static uint32_t rank() {
        return blockIdx.x % Splits;
    }
    /** The first and the last step of this block's part of the reduction. */
    __device__ static int32_t first_step() {
        return Splits == 1 ? 0 : Reduction::steps * static_cast<int32_t>(rank()) / Splits;
    }
    __device__ static int32_t end_step() {
        return Splits == 1 ? Reduction::steps : Reduction::steps * (static_cast<int32_t>(rank()) + 1) / Splits;
    }
    __device__ static uint32_t row_of(uint32_t item) {
        return item / columns * BlockPixels;
    }
    __device__ static int32_t channel_of(uint32_t item) {
        return static_cast<int32_t>(item % columns) * BlockChannels;
    }
    __device__ static uint32_t first_item() {
        return blockIdx.x / Splits;
    }
    __device__ static uint32_t items_apart() {
        return gridDim.x / Splits;
    }
    /** The first of the two rows of a block whose sums the tensor cores leave to this thread; the other is 8 below. */
    __device__ static uint32_t fragment_row() {
        return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    }
    __device__ char *weights_of(int stage) const {
        return stages + Stages * input_bytes + stage * weight_bytes;
    }

    /** A stage and how often it was used before. */
    struct Turn {
        int stage = 0;
        uint32_t parity = 0;

        __device__ void next() {
            if (++stage == Stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    };

    // ---- Copying ----

    __device__ void copy() const {
        if constexpr (groups > 1) {
            lower_registers<72>();
        } else if constexpr (blocks > 1) {
            lower_registers<56>();
        }
        // Eight threads copy a row's 128 bytes.
        constexpr int row_step = 128 / 8, own_rows = BlockPixels / row_step;
        const uint32_t thread = threadIdx.x - multipliers, piece = thread % 8, first_row = thread / 8;
        const uint32_t to = shared_address(stages) + first_row * 128 + (piece ^ first_row % 8) * 16;
        const uint32_t filled = shared_address(shared.filled), emptied = shared_address(shared.emptied);
        Turn turn;
        typename Rows<Op>::Entry entries[own_rows];
        const auto fetch = [&](uint32_t item) {
#pragma unroll
            for (int i = 0; i < own_rows; i++) {
                entries[i] = rows.fetch(row_of(item) + first_row + i * row_step);
            }
        };
        fetch(first_item());
        for (uint32_t item = first_item(); item < work; item += items_apart()) {
            Source<Op> sources[own_rows];
#pragma unroll
            for (int i = 0; i < own_rows; i++) {
                const uint32_t row = row_of(item) + first_row + i * row_step;
                sources[i] = row < rows.count() ? Source<Op>::of(a, rows.pixel(row, entries[i])) : Source<Op>{0, 0};
            }
            fetch(item + items_apart());
            const int32_t channel = channel_of(item);
            const uint32_t bytes = 128 * min(BlockChannels, stored_channels - channel);
            const char *weights = a.weights + (int64_t{first_step()} * stored_channels + channel) * 128;
            Reduction place(8 * first_step() + static_cast<int32_t>(piece));
#pragma unroll 1
            for (int32_t step = first_step(); step < end_step(); step++) {
                wait(emptied + turn.stage * 8, turn.parity ^ 1);
                if (thread == 0) {
                    arrive_and_expect(filled + turn.stage * 8, bytes);
                    copy_bulk(shared_address(weights_of(turn.stage)), weights, bytes, filled + turn.stage * 8);
                }
                const char *const from = a.input.data + int64_t{place.offset(a)} * 16;
#pragma unroll
                for (int i = 0; i < own_rows; i++) {
                    copy_or_zero(to + turn.stage * input_bytes + i * (row_step * 128),
                                 from + int64_t{sources[i].at} * 16, place.is_in(sources[i].readable));
                }
                arrive_after_copies(filled + turn.stage * 8);
                weights += stored_channels * 128;
                place.step();
                turn.next();
            }
        }
        wait_for_copies();
    }

    // ---- Multiplying ----

    __device__ void multiply() const {
        using namespace cute;
        if constexpr (groups > 1) {
            raise_registers<216>();
        } else if constexpr (blocks > 1) {
            raise_registers<200>();
        }
        using Atom = GMMA::Layout_K_SW128_Atom<Element>;
        constexpr int step_channels = Reduction::step_channels;
        const auto input =
            make_tensor(make_smem_ptr(reinterpret_cast<Element *>(stages)),
                        tile_to_shape(Atom{}, make_shape(Int<BlockPixels>{}, Int<step_channels>{}, Int<Stages>{})));
        const auto weights =
            make_tensor(make_smem_ptr(reinterpret_cast<Element *>(stages + Stages * input_bytes)),
                        tile_to_shape(Atom{}, make_shape(Int<BlockChannels>{}, Int<step_channels>{}, Int<Stages>{})));
        auto mma = make_tiled_mma(
            GMMA::ss_op_selector<Element, Element, float, Shape<_64, Int<BlockChannels>, Int<step_channels>>>(),
            Layout<Shape<Int<groups>, _1, _1>>{});
        const auto thread = mma.get_thread_slice(threadIdx.x);
        const auto tiles_a = thread.make_fragment_A(thread.partition_A(input));
        const auto tiles_b = thread.make_fragment_B(thread.partition_B(weights));
        auto sums = partition_fragment_C(mma, make_shape(Int<BlockPixels>{}, Int<BlockChannels>{}));

        const uint32_t filled = shared_address(shared.filled);
        Turn turn;
        uint32_t done = 0;
        for (uint32_t item = first_item(); item < work; item += items_apart(), done++) {
            // The rows whose results this thread stores, or with splits one that it looks up for all.
            constexpr int own_rows = Splits > 1 ? 1 : 2;
            const uint32_t row = row_of(item) + (Splits > 1 ? threadIdx.x : fragment_row());
            typename Rows<Op>::Entry entries[own_rows];
#pragma unroll
            for (int i = 0; i < own_rows; i++) {
                entries[i] = rows.fetch(row + 8 * i);
            }
            mma.accumulate_ = GMMA::ScaleOut::Zero;
            int last = -1;
#pragma unroll 1
            for (int32_t step = first_step(); step < end_step(); step++) {
                wait(filled + turn.stage * 8, turn.parity);
                warpgroup_fence_operand(sums);
                warpgroup_arrive();
#pragma unroll
                for (int k = 0; k < size<2>(tiles_a); k++) {
                    gemm(mma, tiles_a(_, _, k, turn.stage), tiles_b(_, _, k, turn.stage), sums);
                    mma.accumulate_ = GMMA::ScaleOut::One;
                }
                warpgroup_commit_batch();
                // The step before is done.
                warpgroup_wait<1>();
                warpgroup_fence_operand(sums);
                if (last >= 0 && threadIdx.x % 128 == 0) {
                    arrive(shared_address(&shared.emptied[last]));
                }
                last = turn.stage;
                turn.next();
            }
            Place places[own_rows];
#pragma unroll
            for (int i = 0; i < own_rows; i++) {
                places[i] = Place::of(rows, row + 8 * i, entries[i]);
            }
            warpgroup_wait<0>();
            warpgroup_fence_operand(sums);
            if (threadIdx.x % 128 == 0) {
                arrive(shared_address(&shared.emptied[last]));
            }
            if constexpr (Splits > 1) {
                exchange(sums, places[0], done, channel_of(item));
            } else {
                store_fragment<Op, BlockChannels>(a, places, sums, channel_of(item));
            }
        }
        if constexpr (Splits > 1) {
            // Others read this block's parts until then.
            if (done > 0) {
                wait_for_cluster(shared_address(&shared.parts_read), (done - 1) % 2);
            }
        }
    }

    /** Writes the block's part of the sums, and stores its share of the rows when all parts are written. */
    template<class Sums>
    __device__ void exchange(const Sums &sums, const Place &place, uint32_t done, int32_t channel) const {
        const uint32_t written = shared_address(&shared.parts_written), read = shared_address(&shared.parts_read);
        if (done > 0) {
            wait_for_cluster(read, (done - 1) % 2);
        }
        if (threadIdx.x < BlockPixels) {
            shared.places[threadIdx.x] = place;
        }
        float *const own = reinterpret_cast<float *>(parts) + fragment_row() * part_stride + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < BlockChannels / 8; j++) {
            *reinterpret_cast<float2 *>(own + 8 * j) = {sums[4 * j], sums[4 * j + 1]};
            *reinterpret_cast<float2 *>(own + 8 * j + 8 * part_stride) = {sums[4 * j + 2], sums[4 * j + 3]};
        }
        sync_threads<multipliers>(1);
        if (threadIdx.x < Splits) {
            arrive_remote(written, threadIdx.x);
        }
        wait_for_cluster(written, done % 2);
        constexpr int own_rows = BlockPixels / Splits, row_items = BlockChannels / 8;
        for (int i = threadIdx.x; i < own_rows * row_items; i += multipliers) {
            const int share = static_cast<int>(rank()) * own_rows + i / row_items, column = i % row_items * 8;
            const uint32_t at = shared_address(parts) + (share * part_stride + column) * 4;
            float total[8] = {};
#pragma unroll
            for (int split = 0; split < Splits; split++) {
                const uint32_t remote = remote_address(at, split);
                const float4 low = load_remote(remote), high = load_remote(remote + 16);
                total[0] += low.x;
                total[1] += low.y;
                total[2] += low.z;
                total[3] += low.w;
                total[4] += high.x;
                total[5] += high.y;
                total[6] += high.z;
                total[7] += high.w;
            }
            store_row<Op>(a, shared.places[share], total, channel + column);
        }
        sync_threads<multipliers>(1);
        if (threadIdx.x < Splits) {
            arrive_remote(read, threadIdx.x);
        }
    }
};

}  // namespace distile::tensor_core

#endif
