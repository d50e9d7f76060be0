/** \file
 * Adapts a distile_kernel_call to a function that Halide generated. Linked with Halide's runtime into every PolyKernel
 * that has such functions.
 */
#include "kernels/halide/code.h"
#include "kernels/halide/halide_buffers.h"

using distile::Buffer;

namespace {

/** The maximum number of operands of any kind of operator, and the number of other arguments of a generated
 * function. */
constexpr int most_operands = 8, other_arguments = 9;

bool is_packed(const distile_array &array, const distile_kernel_call &call) {
    // Activations have four dimensions, packed weights five, and a bias one.
    return &array != call.operands && array.dimensions != 4;
}

/** Makes the groups of channels the last dimension. */
void set_apart(Buffer &image, int32_t groups) {
    halide_dimension_t &channels = image.dim[0];
    channels.extent /= groups;
    image.dim[image.buffer.dimensions++] = halide_dimension_t(0, groups, channels.extent);
}

/** With more than one group, the output and the residual have them apart. */
int call_once(distile_halide_function function, int32_t groups, const distile_kernel_call *call) {
    const bool on_gpu = call->tile_count != nullptr;
    if (call->num_operands > most_operands) {
        call->hooks->report(call->hooks, "the operator has too many operands for Halide's code");
        return halide_error_code_generic_error;
    }
    Buffer operands[most_operands], tiles, bits, count;
    for (int i = 0; i < call->num_operands; i++) {
        operands[i].set_operand(call->operands[i], on_gpu);
        if (groups > 1 && i > 0 && !is_packed(call->operands[i], *call)) {
            set_apart(operands[i], groups);
        }
    }
    tiles.set_words(call->tile_xy, on_gpu, 2);
    // On a GPU only the device knows the list's length, so the buffer has room for every tile.
    tiles.dim[0] = halide_dimension_t(0, on_gpu ? call->tile_capacity : call->num_tiles, 1);
    tiles.dim[1] = halide_dimension_t(0, 2, call->tile_capacity);
    bits.set_words(call->bits, on_gpu, 3);
    bits.dim[0] = halide_dimension_t(0, call->words_per_row, 1);
    bits.dim[1] = halide_dimension_t(0, call->height, call->words_per_row);
    bits.dim[2] = halide_dimension_t(0, call->batch, call->words_per_row * call->height);
    count.set_words(call->tile_count, on_gpu, 1);
    count.dim[0] = halide_dimension_t(0, 1, 1);

    void *user_context = call->hooks;
    int32_t num_interior = call->num_interior, num_tiles = call->num_tiles, threads = call->threads;
    bool store_tiles = call->store_tiles != 0;
    float slope = call->slope;
    void *arguments[most_operands + other_arguments] = {&user_context, &operands[0].buffer, &tiles.buffer,
                                                        &bits.buffer,  &num_interior,       &num_tiles,
                                                        &threads,      &store_tiles,        &slope};
    int used = 9;
    for (int i = 1; i < call->num_operands; i++) {
        if (is_packed(call->operands[i], *call)) {
            arguments[used++] = &operands[i].buffer;
        }
    }
    if (on_gpu) {
        arguments[used++] = &count.buffer;
    }
    for (int i = 1; i < call->num_operands; i++) {
        if (!is_packed(call->operands[i], *call)) {
            arguments[used++] = &operands[i].buffer;
        }
    }
    const int code = function(arguments);
    return code == halide_error_code_out_of_memory ? DISTILE_CALL_OUT_OF_MEMORY : code;
}

/** Few tiles read beyond the input. Computed after the others, they would leave most threads idle. */
struct InteriorAndEdges {
    distile_halide_function function;
    int32_t groups;
    distile_kernel_call calls[2];
    int codes[2];

    static void run(void *both, int32_t index) {
        auto *self = static_cast<InteriorAndEdges *>(both);
        self->codes[index] = call_once(self->function, self->groups, &self->calls[index]);
    }
};

}  // namespace

extern "C" int distile_call_halide(distile_halide_function function, const distile_kernel_call *call) {
    return distile_call_halide_groups(function, 1, call);
}

extern "C" int distile_call_halide_groups(distile_halide_function function, int32_t groups,
                                          const distile_kernel_call *call) {
    constexpr int32_t few_threads = 2;
    if (call->tile_count || call->threads <= few_threads || call->num_interior <= 0 ||
        call->num_interior >= call->num_tiles) {
        return call_once(function, groups, call);
    }
    InteriorAndEdges both = {function, groups, {*call, *call}, {}};
    distile_kernel_call &interior = both.calls[0], &edges = both.calls[1];
    interior.num_tiles = call->num_interior;
    edges.num_interior = 0;
    edges.num_tiles = call->num_tiles - call->num_interior;
    edges.tile_xy = call->tile_xy + call->num_interior;
    call->hooks->parallel_for(call->hooks, &InteriorAndEdges::run, &both, 2);
    return both.codes[0] != 0 ? both.codes[0] : both.codes[1];
}
