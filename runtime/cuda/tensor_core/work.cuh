/** \file
 * How blocks divide the work: items of BlockPixels x BlockChannels, each with all steps of the reduction.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_WORK_CUH
#define DISTILE_CUDA_TENSOR_CORE_WORK_CUH

#include "arguments.h"
#include "item_order.h"

namespace distile::tensor_core {

/** Some steps of an item's reduction. */
struct Segment {
    uint32_t item;
    int32_t begin, end;
};

/** Items that `Splits` neighbouring blocks take in turn. Each of them has a part of every reduction. `Steps` 0 means
 * that only the device knows how many steps an item has. */
template<int Steps, int Splits> struct WorkInTurn {
    uint32_t items, blocks;
    int32_t steps = Steps;

    /** Goes through the segments of this block. */
    class Walk {
    public:
        __device__ explicit Walk(const WorkInTurn &work) : work_(work), item_(blockIdx.x / Splits) {
        }
        __device__ bool has_segment() const {
            return item_ < work_.items;
        }
        __device__ Segment segment() const {
            const int32_t rank = Splits == 1 ? 0 : static_cast<int32_t>(blockIdx.x % Splits);
            const int32_t steps = Steps > 0 ? Steps : work_.steps;
            return {item_, steps * rank / Splits, steps * (rank + 1) / Splits};
        }
        __device__ void next() {
            item_ += work_.blocks / Splits;
        }

    private:
        const WorkInTurn &work_;
        uint32_t item_;
    };
};

/** Items that blocks take in turn, but those of the last two rounds in equal shares, if the last round would leave many
 * blocks idle. A share may begin and end within an item. The block that has an item's last steps adds the sums of the
 * others. It waits only for blocks that began before it. `Steps` is as above; sums cost about as much as `SumSteps`; a
 * share has at least about `ShareSteps`. */
template<int Steps, uint32_t SumSteps = sharing_steps, uint32_t ShareSteps = 4> class BalancedWork {
public:
    /** Called by all threads of a block. `worker` is shared memory. */
    __device__ BalancedWork(uint32_t items, uint32_t blocks, uint32_t *signals, uint32_t &worker,
                            uint32_t steps = Steps)
        : blocks_(blocks), items_(items), whole_(items), given_steps_(steps) {
        // As many as if the host had known the number of items, so that results are the same bit for bit.
        const uint32_t used = min(blocks, items * most_sharers);
        const uint32_t rounds = items == 0 ? 0 : items / used, rest = items - rounds * used;
        if (rest == 0 || (used - rest) * this->steps() <= SumSteps * used) {
            worker_ = blockIdx.x;
            return;
        }
        whole_ = rounds > 1 ? (rounds - 1) * used : 0;
        const uint32_t shared = items - whole_;
        shares_ = min(used, shared * min(uint32_t{most_sharers}, (this->steps() + ShareSteps - 1) / ShareSteps));
        share_ = shared * this->steps() / shares_;
        rest_ = shared * this->steps() % shares_;
        // CUDA promises no order in which blocks start, so they number themselves.
        if (threadIdx.x == 0) {
            worker = atomicAdd(signals + blocks, 1);
        }
        __syncthreads();
        worker_ = worker;
    }

    /** Called by one thread when the block is done. The last block sets the counters back. */
    __device__ void leave(uint32_t *signals) const {
        uint32_t *const counters = signals + blocks_;
        if (shares_ != 0 && atomicAdd(counters + 1, 1) == blocks_ - 1) {
            counters[0] = counters[1] = 0;
        }
    }
    __device__ uint32_t worker() const {
        return worker_;
    }
    /** Whether a worker's share begins at an item's first step, or before. */
    __device__ bool has_begin(uint32_t worker, uint32_t item) const {
        return first_step(worker) <= (item - whole_) * steps();
    }
    /** Those of every item. */
    __device__ uint32_t steps() const {
        return Steps > 0 ? Steps : given_steps_;
    }

    /** Goes through the segments of this block. In a share it goes backwards, so that others soon have its sums. */
    class Walk {
    public:
        __device__ explicit Walk(const BalancedWork &work) : work_(work), segment_{work.worker_, 0, all_steps()} {
            enter();
        }
        __device__ bool has_segment() const {
            return has_segment_;
        }
        __device__ Segment segment() const {
            return segment_;
        }
        __device__ void next() {
            if (!in_share_) {
                segment_.item += work_.blocks_;
                enter();
            } else {
                has_segment_ = segment_.item > first_item_;
                segment_ = {segment_.item - 1, segment_.item - 1 == first_item_ ? first_begin_ : 0, all_steps()};
            }
        }

    private:
        __device__ int32_t all_steps() const {
            return static_cast<int32_t>(work_.steps());
        }
        __device__ void enter() {
            has_segment_ = segment_.item < work_.whole_;
            if (has_segment_ || work_.worker_ >= work_.shares_) {
                return;
            }
            const uint32_t first = work_.first_step(work_.worker_), end = work_.first_step(work_.worker_ + 1);
            const uint32_t first_item = first / work_.steps(), item = (end - 1) / work_.steps();
            in_share_ = has_segment_ = true;
            first_item_ = work_.whole_ + first_item;
            first_begin_ = static_cast<int32_t>(first - first_item * work_.steps());
            segment_ = {work_.whole_ + item, item == first_item ? first_begin_ : 0,
                        static_cast<int32_t>(end - item * work_.steps())};
        }

        const BalancedWork &work_;
        Segment segment_;
        uint32_t first_item_ = 0;
        int32_t first_begin_ = 0;
        bool in_share_ = false, has_segment_ = false;
    };

private:
    /** Of a worker's share. Two rounds of items have few enough steps for 32 bits. */
    __device__ uint32_t first_step(uint32_t worker) const {
        return share_ * worker + rest_ * worker / shares_;
    }

    uint32_t blocks_, items_, whole_, given_steps_, shares_ = 0, share_ = 0, rest_ = 0, worker_ = 0;
};

}  // namespace distile::tensor_core

#endif
