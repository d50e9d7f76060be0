/** \file
 * How blocks divide the work: items of BlockPixels x BlockChannels, each with all steps of the reduction.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_WORK_CUH
#define DISTILE_CUDA_TENSOR_CORE_WORK_CUH

#include "kernels/tensor_core/item_order.h"
#include "kernels/tensor_core/shares.h"

namespace distile::tensor_core {

/** A part of an item's reduction, in steps or in what shares count in. */
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

/** Items that blocks take in turn, but the last ones in equal shares (shares.h). The block that has an item's last
 * steps adds the sums of the others. It waits only for blocks that began before it. */
template<class Items, uint32_t SumSteps = sharing_steps, uint32_t ShareSteps = 4> class BalancedWork {
public:
    /** Called by all threads of a block. Without signals, blocks share nothing. `worker` is shared memory. */
    __device__ BalancedWork(const Items &items, uint32_t blocks, uint32_t *signals, uint32_t &worker)
        : blocks_(blocks), worker_(blockIdx.x), shares_(items, blocks, signals != nullptr) {
        if (shares_.count() == 0) {
            return;
        }
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
        if (shares_.count() != 0 && atomicAdd(counters + 1, 1) == blocks_ - 1) {
            counters[0] = counters[1] = 0;
        }
    }
    __device__ uint32_t worker() const {
        return worker_;
    }
    /** Whether a worker's share begins at an item's beginning, or before. */
    __device__ bool has_begin(uint32_t worker, uint32_t item) const {
        return shares_.has_begin(worker, item);
    }
    /** Where an item's segments end. */
    __device__ uint32_t length(uint32_t item) const {
        return shares_.length(item);
    }

    /** Goes through the segments of this block. In a share it goes backwards, so that others soon have its sums. */
    class Walk {
    public:
        __device__ explicit Walk(const BalancedWork &work) : work_(work), segment_{work.worker_, 0, 0} {
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
                has_segment_ = segment_.item > first_.item;
                segment_.item--;
                segment_ = {segment_.item, segment_.item == first_.item ? static_cast<int32_t>(first_.at) : 0,
                            static_cast<int32_t>(work_.length(segment_.item))};
            }
        }

    private:
        __device__ void enter() {
            const auto &shares = work_.shares_;
            has_segment_ = segment_.item < shares.whole();
            if (has_segment_) {
                segment_.end = static_cast<int32_t>(shares.length(segment_.item));
            } else if (work_.worker_ < shares.count()) {
                in_share_ = has_segment_ = true;
                first_ = shares.begin(work_.worker_);
                const auto last = shares.end(work_.worker_);
                segment_ = {last.item, last.item == first_.item ? static_cast<int32_t>(first_.at) : 0,
                            static_cast<int32_t>(last.at)};
            }
        }

        const BalancedWork &work_;
        Segment segment_;
        typename Shares<Items, SumSteps, ShareSteps>::Place first_{};
        bool in_share_ = false, has_segment_ = false;
    };

private:
    uint32_t blocks_, worker_;
    Shares<Items, SumSteps, ShareSteps> shares_;
};

}  // namespace distile::tensor_core

#endif
