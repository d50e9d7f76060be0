/** \file
 * Adapts a distile_kernel_call with keys to a function that Halide generated for a GPU.
 */
#include "kernels/halide/code.h"
#include "kernels/halide/halide_buffers.h"

using distile::Buffer;

namespace {

/** What GPUs launch at most along the second and third dimension. */
constexpr int32_t most_blocks = 65535;

int32_t blocks_of(int32_t count, int32_t block) {
    return (count + block - 1) / block;
}

void set_list(Buffer &buffer, const uint32_t *words, int32_t count) {
    buffer.set_words(words, true, 1);
    buffer.dim[0] = halide_dimension_t(0, count, 1);
}

}  // namespace

extern "C" int distile_call_token_lists(distile_halide_function function, const distile_token_lists *lists,
                                        const distile_kernel_call *call) {
    if (call->batch > most_blocks) {
        call->hooks->report(call->hooks, "operators that read a key or a value take at most 65535 images on a GPU");
        return halide_error_code_generic_error;
    }
    constexpr int x = 1, most_operands = 4, other_arguments = 11;
    const int32_t tokens = call->operands[0].dim[x].extent, every_key = call->operands[1].dim[x].extent;
    const int32_t most_rows = call->num_tiles < tokens ? call->num_tiles : tokens;
    const bool listed = call->key_xy != nullptr;
    const uint32_t *const key_starts = listed ? call->key_starts : call->row_starts;
    Buffer operands[most_operands], rows, keys, row_starts, starts_of_keys, count;
    for (int i = 0; i < call->num_operands; i++) {
        operands[i].set_operand(call->operands[i], true);
    }
    set_list(rows, call->tile_xy, call->tile_capacity);
    // Code that finds no list reads its first word.
    set_list(keys, listed ? call->key_xy : call->tile_xy, listed ? call->key_capacity : 1);
    set_list(row_starts, call->row_starts, call->batch + 1);
    set_list(starts_of_keys, key_starts, call->batch + 1);
    set_list(count, call->tile_count, 1);

    void *user_context = call->hooks;
    int32_t num_rows = blocks_of(most_rows, lists->block_rows), num_keys = blocks_of(every_key, lists->block_keys);
    int32_t last_of_first = every_key - tokens, every = listed ? 0 : every_key;
    float scale = call->scale;
    void *arguments[most_operands + other_arguments] = {
        &user_context, &operands[0].buffer, &rows.buffer,           &keys.buffer,  &num_rows, &num_keys, &last_of_first,
        &scale,        &row_starts.buffer,  &starts_of_keys.buffer, &count.buffer, &every};
    for (int i = 1; i < call->num_operands; i++) {
        arguments[other_arguments + i] = &operands[i].buffer;
    }
    const int code = function(arguments);
    return code == halide_error_code_out_of_memory ? DISTILE_CALL_OUT_OF_MEMORY : code;
}
