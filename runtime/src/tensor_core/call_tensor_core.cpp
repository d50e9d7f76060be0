/** \file
 * Adapts a distile_kernel_call to a kernel for tensor cores. Linked into every PolyKernel that has such kernels.
 */
#include "tensor_core/arguments.h"
#include <algorithm>
#include <distile/polykernel.h>

namespace {

using distile::tensor_core::Arguments;
using distile::tensor_core::Tensor;

/** The bytes of the kernels' unit. Channels are multiples of it, and so are the strides, which the runtime checks. */
constexpr int64_t unit_bytes = 16;

/** The dimensions of an activation. */
enum Dimension { Channel, X, Y, Image };

/** The places of the operands. With a residual the output is one further. */
enum Operand { Input, Weights, Bias, Residual };
constexpr int32_t plain_operands = 4;

int64_t ceil_divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

Tensor tensor_of(const distile_array &array) {
    const int64_t bytes = array.dtype == DISTILE_FLOAT32 ? 4 : 2;
    const auto stride = [&](Dimension dimension) { return array.dim[dimension].stride * bytes; };
    const auto units = [&](Dimension dimension) { return static_cast<int32_t>(stride(dimension) / unit_bytes); };
    // The array begins in its border.
    return {static_cast<char *>(array.data) - array.dim[X].min * stride(X) - array.dim[Y].min * stride(Y), units(X),
            units(Y), units(Image)};
}

/** The blocks of a launch: those that the work fills, but no more than the GPU holds at once, in whole clusters. */
int32_t num_blocks(const distile_tensor_core_code &code, const distile_kernel_call &call, int32_t channels) {
    const int64_t pixels = int64_t{call.num_tiles} * code.tile_h * code.tile_w;
    const int64_t clusters = ceil_divide(pixels, code.block_pixels) * ceil_divide(channels, code.block_channels);
    const int64_t resident = int64_t{call.threads} * code.blocks_per_multiprocessor / code.splits;
    const int64_t most = code.balanced != 0 ? distile::tensor_core::most_sharers * clusters : clusters;
    return static_cast<int32_t>(std::min(most, std::max<int64_t>(resident, 1)) * code.splits);
}

}  // namespace

extern "C" int distile_call_tensor_core(const distile_tensor_core_code *code, const distile_kernel_call *call) {
    distile_hooks *hooks = call->hooks;
    const distile_array *operands = call->operands;
    const distile_array &input = operands[Input], &output = operands[call->num_operands - 1];
    Arguments arguments{};
    arguments.input = tensor_of(input);
    arguments.output = tensor_of(output);
    if (call->num_operands > plain_operands) {
        arguments.residual = tensor_of(operands[Residual]);
    }
    arguments.weights = static_cast<const char *>(operands[Weights].data);
    arguments.bias = static_cast<const float *>(operands[Bias].data);
    arguments.first_row = input.dim[Y].min;
    arguments.end_row = input.dim[Y].min + input.dim[Y].extent;
    arguments.first_column = input.dim[X].min;
    arguments.end_column = input.dim[X].min + input.dim[X].extent;
    arguments.tile_xy = call->tile_xy;
    arguments.tile_capacity = call->tile_capacity;
    arguments.tile_count = call->tile_count;
    arguments.bits = call->bits;
    arguments.words_per_row = call->words_per_row;
    arguments.height = call->height;
    arguments.width = output.dim[X].extent;
    arguments.batch = call->batch;
    arguments.store_tiles = call->store_tiles;

    if (code->box_step_w != 0) {
        const distile_gpu_boxes boxes = {&input, code->tile_w, code->tile_h, code->box_step_w, code->box_step_h};
        const int result = hooks->gpu->map_boxes(hooks, &boxes, &arguments.input_map);
        if (result != 0) {
            return result;
        }
    }
    const int32_t blocks = num_blocks(*code, *call, output.dim[Channel].extent);
    if (code->balanced != 0) {
        uint64_t parts = 0, signals = 0;
        const uint64_t part_bytes = uint64_t{sizeof(float)} * code->block_pixels * code->block_channels;
        const int result = hooks->gpu->allocate(hooks, blocks * part_bytes, &parts);
        const int other = result != 0 ? result : hooks->gpu->signals(hooks, (blocks + 2) * sizeof(uint32_t), &signals);
        if (other != 0) {
            return other;
        }
        arguments.parts = reinterpret_cast<float *>(parts);
        arguments.signals = reinterpret_cast<uint32_t *>(signals);
    }

    void *pointers[] = {&arguments};
    const distile_gpu_launch launch = {
        code->kernel, {blocks, 1, 1}, {code->threads, 1, 1}, code->shared_bytes, pointers, code->splits, code->early};
    const int result = hooks->gpu->use_module(hooks, code->code, code->bytes);
    return result != 0 ? result : hooks->gpu->launch(hooks, &launch);
}
