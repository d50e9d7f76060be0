/** \file
 * How the thread blocks of a team hand numbers to each other, in phases. In a phase every block sends to every block,
 * and waits until all have arrived. A block sends in a phase only when it has read all of the phase before, so two
 * buffers, used in turns, suffice: who sends in a phase knows that all have read the one before the last.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_TEAM_EXCHANGE_CUH
#define DISTILE_CUDA_KERNELS_STAGE_TEAM_EXCHANGE_CUH

#include "runtime/cuda/kernels/stage_team_block.cuh"

namespace distile {

/** A team that is a cluster: blocks store to each other's shared memory, and barriers count the bytes. */
template<uint32_t Blocks> class ClusterExchange {
public:
    using Part = TeamPart<Blocks, true>;

    __device__ ClusterExchange(const TeamShared<Part> &shared, const TeamProgram &)
        : buffers_(shared.received), barriers_(tc::shared_address(shared.control.received)),
          rank_(tc::number_in_cluster()) {
    }
    __device__ uint32_t rank() const {
        return rank_;
    }

    /** Begins a phase in which this block will receive `bytes` bytes. Called by all threads that multiply. */
    __device__ void begin(uint32_t bytes) const {
        if (threadIdx.x == 0) {
            tc::arrive_and_expect(barrier(), bytes);
        }
    }
    /** Sends 16 bytes to a place in the buffer of one block. */
    __device__ void send(uint32_t block, uint32_t to, const uint4 &value) const {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                         tc::remote_address(buffer() + to, block)),
                     "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(tc::remote_address(barrier(), block))
                     : "memory");
    }
    __device__ void send(uint32_t block, uint32_t to, const uint2 &value) const {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                         tc::remote_address(buffer() + to, block)),
                     "r"(value.x), "r"(value.y), "r"(tc::remote_address(barrier(), block))
                     : "memory");
    }
    /** Sends to all blocks, as one of `turns` threads that have the same value. */
    template<class Value>
    __device__ void send_to_all(uint32_t to, const Value &value, uint32_t turn = 0, uint32_t turns = 1) const {
        for (uint32_t i = turn; i < Blocks; i += turns) {
            send((rank_ + i) % Blocks, to, value);
        }
    }
    /** The threads of a warp group have sent to the blocks of their half. */
    __device__ void end_sending() const {
    }
    /** All threads have sent to all blocks. */
    __device__ void end_sending_to_all() const {
    }

    __device__ void wait() {
        tc::wait_for_cluster(barrier(), phase_ / 2 & 1);
        __syncwarp();
        phase_++;
    }
    /** What others have sent to this block alone, or to all, in the phase that was waited for last. */
    __device__ uint4 received(uint32_t from) const {
        return load_shared(arrived(from));
    }
    __device__ float received_by_all(uint32_t from) const {
        float value;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(arrived(from)) : "memory");
        return value;
    }
    /** The shared address of what others have sent to all: `bytes` bytes. */
    __device__ uint32_t bring(uint32_t) const {
        return arrived(0);
    }
    __device__ void end() const {
    }

private:
    __device__ uint32_t barrier() const {
        return barriers_ + phase_ % 2 * static_cast<uint32_t>(sizeof(uint64_t));
    }
    __device__ uint32_t buffer() const {
        return buffers_ + phase_ % 2 * Part::buffer_bytes;
    }
    __device__ uint32_t arrived(uint32_t from) const {
        return buffers_ + (phase_ + 1) % 2 * Part::buffer_bytes + from;
    }

    const uint32_t buffers_, barriers_, rank_;
    uint32_t phase_ = 0;
};

/** A team of any blocks that are resident together: they store to memory, where a counter for each block counts the
 * blocks that have sent to it. */
template<uint32_t Blocks> class MemoryExchange {
public:
    using Part = TeamPart<Blocks, false>;

    __device__ MemoryExchange(const TeamShared<Part> &shared, const TeamProgram &program)
        : brought_(shared.received), rank_(blockIdx.x % Blocks),
          memory_(program.exchange + size_t{blockIdx.x / Blocks} * memory_team_bytes),
          counters_(program.counters + blockIdx.x / Blocks * Blocks) {
        static_assert(2 * Blocks * Part::buffer_bytes == memory_team_bytes, "the host gives as much");
    }
    __device__ uint32_t rank() const {
        return rank_;
    }

    __device__ void begin(uint32_t) const {
    }
    __device__ void send(uint32_t block, uint32_t to, const uint4 &value) const {
        __stcg(reinterpret_cast<uint4 *>(buffer(phase_, block) + to), value);
    }
    template<class Value>
    __device__ void send_to_all(uint32_t to, const Value &value, uint32_t turn = 0, uint32_t = 1) const {
        if (turn == 0) {
            __stcg(reinterpret_cast<Value *>(buffer(phase_, 0) + to), value);  // One copy for all.
        }
    }
    __device__ void end_sending() const {
        const uint32_t group = threadIdx.x / 128;
        __syncwarp();
        tc::sync_threads<128>(2 + static_cast<int>(group));
        if (threadIdx.x % 128 < Blocks / 2) {
            count(group * (Blocks / 2) + threadIdx.x % 128);
        }
    }
    __device__ void end_sending_to_all() const {
        sync_multipliers();
        if (threadIdx.x < Blocks) {
            count(threadIdx.x);
        }
    }

    __device__ void wait() {
        phase_++;
        if (lane() == 0) {
            uint32_t found;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counters_ + rank_) : "memory");
            } while (found < phase_ * Blocks);
        }
        __syncwarp();
    }
    __device__ uint4 received(uint32_t from) const {
        return __ldcg(reinterpret_cast<const uint4 *>(buffer(phase_ - 1, rank_) + from));
    }
    __device__ float received_by_all(uint32_t from) const {
        return __ldcg(reinterpret_cast<const float *>(buffer(phase_ - 1, 0) + from));
    }
    __device__ uint32_t bring(uint32_t bytes) const {
        const char *const from = buffer(phase_ - 1, 0);
        for (uint32_t at = threadIdx.x * 16; at < bytes; at += multiply_threads * 16) {
            tc::copy_or_zero(brought_ + at, from + at, true);
        }
        tc::wait_for_copies();
        sync_multipliers();
        return brought_;
    }
    /** Leaves zeros for the next launch. All have arrived that count here. */
    __device__ void end() const {
        if (threadIdx.x == 0) {
            __stcg(counters_ + rank_, 0u);
        }
    }

private:
    __device__ char *buffer(uint32_t phase, uint32_t block) const {
        return memory_ + (phase % 2 * Blocks + block) * Part::buffer_bytes;
    }
    __device__ void count(uint32_t block) const {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counters_ + block) : "memory");
    }

    const uint32_t brought_, rank_;
    char *const memory_;
    uint32_t *const counters_;
    uint32_t phase_ = 0;
};

}  // namespace distile

#endif
