/** \file
 * Adapts a distile_kernel_call with keys to a function that Halide generated for one head and one block of rows.
 */
#include "facts/type_functions.h"
#include "kernels/halide/code.h"
#include "kernels/halide/halide_buffers.h"
#include <initializer_list>

namespace {

using distile::Buffer;

/** The scores of a block that stay in a core's cache, if it may have fewer rows. */
constexpr int64_t most_scores = 1 << 16;

/** The dimensions of operands. */
enum Dimension { Channel, X, Y, Image };

int32_t ceil_divide(int64_t a, int64_t b) {
    return static_cast<int32_t>((a + b - 1) / b);
}

/** How many of the first places, whose values ascend, hold at most `most`. */
int32_t count_up_to(const uint32_t *values, int32_t count, int32_t most) {
    int32_t first = 0;
    while (first < count) {
        const int32_t middle = first + (count - first) / 2;
        if (static_cast<int32_t>(values[middle]) <= most) {
            first = middle + 1;
        } else {
            count = middle;
        }
    }
    return first;
}

class RowBlocks {
public:
    RowBlocks(distile_halide_function function, const distile_row_blocks &blocks, const distile_kernel_call &call)
        : function_(function), blocks_(blocks), call_(call), batch_(call.batch), keys_(call.operands[1].dim[X].extent),
          rows_(best_rows()), num_blocks_(count_blocks(rows_)) {
    }
    ~RowBlocks() {
        for (void *memory : {static_cast<void *>(table_), static_cast<void *>(every_key_)}) {
            if (memory) {
                call_.hooks->deallocate(call_.hooks, memory);
            }
        }
    }
    RowBlocks(const RowBlocks &) = delete;
    RowBlocks &operator=(const RowBlocks &) = delete;

    int run() {
        if (num_blocks_ == 0) {
            return 0;
        }
        if (!list_blocks() || !list_keys()) {
            return DISTILE_CALL_OUT_OF_MEMORY;
        }
        call_.hooks->parallel_for(call_.hooks, task, this, static_cast<int32_t>(num_blocks_ * blocks_.heads));
        const int code = __atomic_load_n(&code_, __ATOMIC_RELAXED);
        return code == halide_error_code_out_of_memory ? DISTILE_CALL_OUT_OF_MEMORY : code;
    }

private:
    static constexpr int most_operands = 4, other_arguments = 7;

    /** Listed rows of an image, from `first` among all listed rows. */
    struct Block {
        uint32_t image, first;
    };

    uint32_t rows_of(int32_t image) const {
        return call_.row_starts[image + 1] - call_.row_starts[image];
    }
    int64_t count_blocks(int32_t rows) const {
        int64_t count = 0;
        for (int32_t n = 0; n < batch_; n++) {
            count += ceil_divide(rows_of(n), rows);
        }
        return count;
    }

    /** The rows of a block with which the threads end soonest. Among equals the most, which read keys least often. */
    int32_t best_rows() const {
        const int32_t step = blocks_.row_step, threads = call_.threads > 1 ? call_.threads : 1;
        const int32_t near_keys = blocks_.keys > 0 && blocks_.keys < keys_ ? blocks_.keys : keys_;
        int32_t best = step;
        int64_t best_cost = 0;
        for (int32_t rows = step; rows <= blocks_.rows; rows += step) {
            if (rows > step && int64_t{rows} * near_keys > most_scores) {
                break;
            }
            const int64_t cost =
                ceil_divide(count_blocks(rows) * blocks_.heads, threads) * (int64_t{rows} + blocks_.more_rows);
            if (rows == step || cost <= best_cost) {
                best = rows;
                best_cost = cost;
            }
        }
        return best;
    }

    bool list_blocks() {
        table_ =
            static_cast<Block *>(call_.hooks->allocate(call_.hooks, static_cast<size_t>(num_blocks_) * sizeof(Block)));
        Block *block = table_;
        for (int32_t n = 0; table_ && n < batch_; n++) {
            for (uint32_t first = call_.row_starts[n]; first < call_.row_starts[n + 1];
                 first += static_cast<uint32_t>(rows_)) {
                *block++ = {static_cast<uint32_t>(n), first};
            }
        }
        return table_ != nullptr;
    }

    /** The list of all keys, where the call has none. */
    bool list_keys() {
        if (call_.key_xy) {
            return true;
        }
        every_key_ =
            static_cast<uint32_t *>(call_.hooks->allocate(call_.hooks, static_cast<size_t>(keys_) * sizeof(uint32_t)));
        for (int32_t key = 0; every_key_ && key < keys_; key++) {
            every_key_[key] = static_cast<uint32_t>(key);
        }
        return every_key_ != nullptr;
    }

    /** A head of an operand: its channels of tokens, or its rows of scores. */
    void set_head(Buffer &buffer, const distile_array &array, int32_t head, uint32_t image) const {
        const bool has_rows = array.dim[Y].extent == blocks_.heads;
        const int32_t channels = has_rows ? array.dim[Channel].extent : array.dim[Channel].extent / blocks_.heads;
        const int64_t first =
            int64_t{head} * (has_rows ? array.dim[Y].stride : channels) + int64_t{image} * array.dim[Image].stride;
        distile_array part = array;
        part.dimensions = 2;
        part.dim[Channel].extent = channels;
        part.data = static_cast<char *>(array.data) + first * distile::element_bytes(array.dtype);
        buffer.set_operand(part, false);
    }

    static void task(void *self, int32_t index) {
        static_cast<RowBlocks *>(self)->run_block(index);
    }

    void run_block(int32_t index) {
        const auto head = static_cast<int32_t>(index / num_blocks_);
        const Block &block = table_[index % num_blocks_];
        const uint32_t rest = call_.row_starts[block.image + 1] - block.first;
        int32_t num_rows = static_cast<int32_t>(rest < static_cast<uint32_t>(rows_) ? rest : rows_);
        int32_t num_keys = keys_;
        const uint32_t *listed = every_key_;
        if (call_.key_xy) {
            num_keys = static_cast<int32_t>(call_.key_starts[block.image + 1] - call_.key_starts[block.image]);
            listed = call_.key_xy + call_.key_starts[block.image];
        }
        int32_t last_of_first = keys_ - call_.operands[0].dim[X].extent;
        if (blocks_.causal != 0) {
            const auto last_row =
                static_cast<int32_t>(call_.tile_xy[block.first + static_cast<uint32_t>(num_rows) - 1]);
            num_keys = count_up_to(listed, num_keys, last_row + last_of_first);
        }
        float scale = call_.scale;
        Buffer operands[most_operands], rows, keys;
        rows.set_words(call_.tile_xy + block.first, false, 1);
        rows.dim[0] = halide_dimension_t(0, num_rows, 1);
        keys.set_words(listed, false, 1);
        // Code for no keys reads none, but Halide wants the first place of a list.
        keys.dim[0] = halide_dimension_t(0, num_keys > 0 ? num_keys : 1, 1);
        void *user_context = call_.hooks;
        void *arguments[most_operands + other_arguments] = {
            &user_context, &operands[0].buffer, &rows.buffer,   &keys.buffer,
            &num_rows,     &num_keys,           &last_of_first, &scale};
        for (int i = 0; i < call_.num_operands; i++) {
            set_head(operands[i], call_.operands[i], head, block.image);
            if (i > 0) {
                arguments[other_arguments + i] = &operands[i].buffer;
            }
        }
        const int code = function_(arguments);
        if (code != 0) {
            __atomic_store_n(&code_, code, __ATOMIC_RELAXED);
        }
    }

    distile_halide_function function_;
    const distile_row_blocks &blocks_;
    const distile_kernel_call &call_;
    int32_t batch_, keys_, rows_;
    int64_t num_blocks_;
    Block *table_ = nullptr;
    uint32_t *every_key_ = nullptr;
    int code_ = 0;
};

}  // namespace

extern "C" int distile_call_row_blocks(distile_halide_function function, const distile_row_blocks *blocks,
                                       const distile_kernel_call *call) {
    return RowBlocks(function, *blocks, *call).run();
}
