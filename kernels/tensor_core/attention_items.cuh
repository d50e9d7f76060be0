/** \file
 * The work of attention: items of BlockRows query rows of an image and a head, each with all its keys.
 */
#ifndef DISTILE_CUDA_TENSOR_CORE_ATTENTION_ITEMS_CUH
#define DISTILE_CUDA_TENSOR_CORE_ATTENTION_ITEMS_CUH

#include "kernels/tensor_core/attention_arguments.h"
#include "kernels/tensor_core/shares.h"

namespace distile::tensor_core {

/** Tokens of an image, in the order of a list. */
class Tokens {
public:
    Tokens() = default;
    __device__ Tokens(const TokenList &list, uint32_t image)
        : tokens_(list.tokens), count_(list.length), all_(!list.tokens) {
        if (!all_) {
            const uint32_t start = list.starts[image];
            tokens_ += start;
            count_ = list.starts[image + 1] - start;
        }
    }
    __device__ uint32_t count() const {
        return count_;
    }
    /** Whether they are all tokens of the image, in place. */
    __device__ bool has_every() const {
        return all_;
    }
    /** The token at a place below count(). */
    __device__ uint32_t at(uint32_t place) const {
        return all_ ? place : __ldcg(tokens_ + place) & 0xffff;
    }
    /** How many of them are at most a token. */
    __device__ uint32_t count_until(int32_t token) const {
        uint32_t begin = 0, end = count_;
        if (all_) {
            return min(static_cast<uint32_t>(max(token + 1, 0)), end);
        }
        while (begin < end) {
            const uint32_t middle = (begin + end) / 2;
            if (static_cast<int32_t>(at(middle)) <= token) {
                begin = middle + 1;
            } else {
                end = middle;
            }
        }
        return begin;
    }

private:
    const uint32_t *tokens_;
    uint32_t count_;
    bool all_;  ///< Where the pointer itself was tested, code of nvcc 13.0 for 9.0 read a null list.
};

/** Whether a launch has nothing to do. */
__device__ inline bool is_idle(const AttentionArguments &arguments) {
    return blockIdx.x >= arguments.blocks || (arguments.count && *arguments.count == 0);
}

struct AttentionItem {
    uint32_t image, head, first_row;
    Tokens rows, keys;
    uint32_t num_keys;  ///< The keys that some row sees: the first ones.
};

/** Items of an image follow each other, and in it those of a head, which read the same keys. */
template<class Op, int BlockRows, int BlockKeys> class AttentionItems {
public:
    /** Called by whole warps. */
    __device__ explicit AttentionItems(const AttentionArguments &arguments) : a_(arguments) {
        for (uint32_t first = 0; first < a_.batch; first += 32) {
            const uint32_t image = first + threadIdx.x % 32;
            const bool is_in = image < a_.batch;
            const uint32_t rows = is_in ? Tokens(a_.rows, image).count() : 0;
            count_ += __reduce_add_sync(~0u, blocks_of(rows) * Op::heads);
            most_rows_ = max(most_rows_, __reduce_max_sync(~0u, rows));
            least_rows_ = min(least_rows_, __reduce_min_sync(~0u, is_in ? rows : ~0u));
            steps_ = max(steps_, __reduce_max_sync(~0u, is_in ? steps_of(Tokens(a_.keys, image).count()) : 0));
        }
    }
    __device__ uint32_t count() const {
        return count_;
    }
    /** What blocks share. Where all images have as many rows, the last items of their heads may have fewer groups of 64
     * rows, and take less time. */
    __device__ RaggedItems shared() const {
        constexpr uint32_t most_groups = BlockRows / 64;
        // One group alone waits for its own products and softmax: on an H200, one of three took about .65 of the time
        // of all three, and two took .8.
        const auto unit_of = [](uint32_t groups) { return most_groups + groups; };
        const uint32_t columns = least_rows_ == most_rows_ ? blocks_of(most_rows_) : 1;
        const uint32_t last_rows = most_rows_ - (columns - 1) * BlockRows;
        const uint32_t last_groups = least_rows_ == most_rows_ ? (last_rows + 63) / 64 : most_groups;
        return {count_, columns, steps(), unit_of(most_groups), unit_of(last_groups)};
    }
    /** The most steps of an item, each of BlockKeys. At least 1, so that an item without keys is one as well. */
    __device__ uint32_t steps() const {
        return max(steps_, 1);
    }
    __device__ static uint32_t steps_of(uint32_t num_keys) {
        return (num_keys + BlockKeys - 1) / BlockKeys;
    }
    /** How far a rows' keys go: row `token` sees the keys up to this one. */
    __device__ int32_t last_key(uint32_t token) const {
        return static_cast<int32_t>(token) + a_.keys.length - a_.rows.length;
    }
    /** Called by whole warps, for an item below count(). */
    __device__ AttentionItem find(uint32_t index) const {
        uint32_t image = 0;
        if (a_.batch > 1) {
            for (uint32_t first = 0;; first += 32) {
                const uint32_t lane = threadIdx.x % 32;
                const uint32_t items = first + lane < a_.batch ? items_of(first + lane) : 0;
                uint32_t end = items;
#pragma unroll
                for (uint32_t step = 1; step < 32; step *= 2) {
                    const uint32_t before = __shfl_up_sync(~0u, end, step);
                    end += lane >= step ? before : 0;
                }
                const uint32_t later = __ballot_sync(~0u, end > index);
                if (later != 0) {
                    const int found = __ffs(static_cast<int>(later)) - 1;
                    image = first + found;
                    index -= __shfl_sync(~0u, end - items, found);
                    break;
                }
                index -= __shfl_sync(~0u, end, 31);
            }
        }
        AttentionItem item{image, 0, 0, Tokens(a_.rows, image), Tokens(a_.keys, image), 0};
        const uint32_t blocks = blocks_of(item.rows.count());
        item.head = index / blocks;
        item.first_row = (index - item.head * blocks) * BlockRows;
        item.num_keys = item.keys.count();
        if constexpr (Op::causal) {
            const uint32_t last = min(item.first_row + BlockRows, item.rows.count()) - 1;
            item.num_keys = item.keys.count_until(last_key(item.rows.at(last)));
        }
        return item;
    }

private:
    __device__ static uint32_t blocks_of(uint32_t rows) {
        return (rows + BlockRows - 1) / BlockRows;
    }
    __device__ uint32_t items_of(uint32_t image) const {
        return blocks_of(Tokens(a_.rows, image).count()) * Op::heads;
    }

    const AttentionArguments &a_;
    uint32_t count_ = 0, steps_ = 0, most_rows_ = 0, least_rows_ = ~0u;
};

}  // namespace distile::tensor_core

#endif
