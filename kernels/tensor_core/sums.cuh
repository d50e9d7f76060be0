/** \file
 * How blocks that share an item's reduction add their sums, always in the same order.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_SUMS_CUH
#define DISTILE_CUDA_TENSOR_CORE_SUMS_CUH

#include "kernels/tensor_core/ptx.cuh"
#include "kernels/tensor_core/store.cuh"

namespace distile::tensor_core {

/** The sums that the tensor cores leave to a thread. Groups of four warps have 64 rows each, or the same rows and
 * `Channels` of their channels each. */
template<int RowGroups, int Channels> struct Fragment {
    /** The first of two rows of 64; the other is 8 below. */
    __device__ static uint32_t row() {
        return threadIdx.x % (128 * RowGroups) / 32 * 16 + threadIdx.x % 32 / 4;
    }
    /** The first channel of this thread's group. */
    __device__ static int32_t channel() {
        return RowGroups == 1 ? static_cast<int32_t>(threadIdx.x) / 128 * Channels : 0;
    }
    static constexpr int channels = Channels;
};

/** Through the shared memory of neighbouring blocks of a cluster: each sums some rows, which the others send it. Called
 * by the first `Threads` threads of each block. */
template<class Op, class Fragment, int BlockPixels, int BlockChannels, int Splits, int Threads> class ClusterSums {
    // Rows are a few banks apart.
    static constexpr int stride = BlockChannels + 8;
    static constexpr int block_rows = BlockPixels / Splits, block_bytes = block_rows * stride * 4;
    using Sum = SumOf<Op>;
    using Two = typename SumVector<Sum>::Two;
    using Four = typename SumVector<Sum>::Four;
    static_assert(BlockPixels % Splits == 0);

public:
    static constexpr int sent_bytes = Splits * block_bytes;

    struct Shared {
        char sums[Splits - 1][block_bytes];  ///< Sums of this block's rows, from each other block.
        uint64_t received, read;
        Place places[BlockPixels];
    };

    __device__ static void init(Shared &shared) {
        init_barrier(shared_address(&shared.received), 1);
        init_barrier(shared_address(&shared.read), Splits);
    }

    /** Stores the rows of this block, from `channel` on and before `end`. `params` are in shared memory, those of all
     * its channels, and may have just been written. Nothing else may use `sent`, memory for sent_bytes, during the
     * call. `place` is that of row threadIdx.x. `done` counts the calls before. */
    template<class Sums> __device__ static void store(const Arguments &a, const Epilogue<Op> &epilogue, Shared &shared,
                                                      char *sent, const Sums &sums, const Place &place, uint32_t done,
                                                      const ChannelParams<Op> &params, int32_t channel, int32_t end) {
        const uint32_t rank = blockIdx.x % Splits, first = number_in_cluster() - rank;
        // The others have read what they were sent before, so it left this block.
        wait_until_read(shared, done);
        if (threadIdx.x < BlockPixels) {
            shared.places[threadIdx.x] = place;
        }
        Sum *const to =
            reinterpret_cast<Sum *>(sent) + Fragment::row() * stride + Fragment::channel() + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < Fragment::channels / 8; j++) {
            *reinterpret_cast<Two *>(to + 8 * j) = {sums[4 * j], sums[4 * j + 1]};
            *reinterpret_cast<Two *>(to + 8 * j + 8 * stride) = {sums[4 * j + 2], sums[4 * j + 3]};
        }
        fence_shared();
        sync_threads<Threads>(1);
        const uint32_t barrier = shared_address(&shared.received);
        if (threadIdx.x < Splits) {
            if (threadIdx.x == rank) {
                arrive_and_expect(barrier, sizeof(shared.sums));
            } else {
                // A receiver has no place for its own.
                const uint32_t place_of_sender = rank - (rank > threadIdx.x ? 1 : 0);
                const uint32_t other = first + threadIdx.x;
                copy_bulk_remote(remote_address(shared_address(shared.sums[place_of_sender]), other),
                                 shared_address(sent) + threadIdx.x * block_bytes, block_bytes,
                                 remote_address(barrier, other));
            }
        }
        wait(barrier, done % 2);
        constexpr int row_items = BlockChannels / 8;
        for (int i = threadIdx.x; i < block_rows * row_items; i += Threads) {
            const int row = i / row_items, column = i % row_items * 8;
            const int at = (row * stride + column) * 4;
            Sum total[8] = {};
#pragma unroll
            for (uint32_t split = 0; split < Splits; split++) {
                const char *const from =
                    split == rank ? sent + rank * block_bytes : shared.sums[split - (split > rank ? 1 : 0)];
                const Four low = *reinterpret_cast<const Four *>(from + at);
                const Four high = *reinterpret_cast<const Four *>(from + at + 16);
                add(total[0], low.x);
                add(total[1], low.y);
                add(total[2], low.z);
                add(total[3], low.w);
                add(total[4], high.x);
                add(total[5], high.y);
                add(total[6], high.z);
                add(total[7], high.w);
            }
            store_row<Op>(a, epilogue, shared.places[rank * block_rows + row], total, params.from(column),
                          channel + column, end);
        }
        fence_shared();
        sync_threads<Threads>(1);
        if (threadIdx.x < Splits) {
            arrive_remote(shared_address(&shared.read), first + threadIdx.x);
        }
    }

    /** Waits until other blocks need nothing of this one, after `done` calls. */
    __device__ static void wait_until_read(Shared &shared, uint32_t done) {
        if (done > 0) {
            wait_for_cluster(shared_address(&shared.read), (done - 1) % 2);
        }
    }
};

/** Through global memory: a block publishes the sums of its last item, and another adds them. */
template<class Sum, int Threads, class Work> class BalancedSums {
    using Four = typename SumVector<Sum>::Four;

public:
    __device__ BalancedSums(const Arguments &arguments, const Work &work) : a_(arguments), work_(work) {
    }

    /** Called with the sums of an item whose last steps another block has. */
    template<int Parts, int Count> __device__ void publish(const Sum (&sums)[Parts][Count]) const {
        constexpr int vectors = Parts * Count / 4;
        Four *const to = part<vectors>(work_.worker());
#pragma unroll
        for (int j = 0; j < vectors; j++) {
            const Sum *const four = sums[4 * j / Count] + 4 * j % Count;
            __stcg(to + j * Threads, Four{four[0], four[1], four[2], four[3]});
        }
        __threadfence();
        sync_threads<Threads>(1);
        if (threadIdx.x == 0) {
            set_signal(a_.signals + work_.worker());
        }
    }

    /** Adds what other blocks have of an item. */
    template<int Parts, int Count> __device__ void collect(Sum (&sums)[Parts][Count], uint32_t item) const {
        constexpr int vectors = Parts * Count / 4;
        for (uint32_t other = work_.worker(); other-- > 0;) {
            if (threadIdx.x == 0) {
                wait_for_signal(a_.signals + other);
            }
            sync_threads<Threads>(1);
            const Four *const from = part<vectors>(other);
#pragma unroll
            for (int j = 0; j < vectors; j++) {
                const Four added = __ldcg(from + j * Threads);
                Sum *const four = sums[4 * j / Count] + 4 * j % Count;
                add(four[0], added.x);
                add(four[1], added.y);
                add(four[2], added.z);
                add(four[3], added.w);
            }
            sync_threads<Threads>(1);
            if (threadIdx.x == 0) {
                a_.signals[other] = 0;
            }
            if (work_.has_begin(other, item)) {
                break;
            }
        }
    }

private:
    template<int Vectors> __device__ Four *part(uint32_t worker) const {
        return reinterpret_cast<Four *>(a_.parts) + uint64_t{worker} * (Vectors * Threads) + threadIdx.x;
    }

    const Arguments &a_;
    const Work &work_;
};

}  // namespace distile::tensor_core

#endif
