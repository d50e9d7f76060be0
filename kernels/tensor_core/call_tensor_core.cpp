/** \file
 * Adapts calls to the kernels for tensor cores. Linked into every PolyKernel that has such kernels.
 */
#include "facts/type_functions.h"
#include "kernels/dot_products.h"
#include "kernels/tensor_core/attention_arguments.h"
#include "kernels/tensor_core/code.h"
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <distile/polykernel.h>

namespace {

using distile::tensor_core::Arguments;
using distile::tensor_core::AttentionArguments;
using distile::tensor_core::Launch;
using distile::tensor_core::Requantization;
using distile::tensor_core::ScoreTensor;
using distile::tensor_core::Tensor;
using distile::tensor_core::Tiles;

/** The bytes of the kernels' unit. Channels are multiples of it, and so are the strides, which the runtime checks. */
constexpr int64_t unit_bytes = 16;

/** The dimensions of an activation, behind its channels. */
enum Dimension { X = 1, Y, Image };

/** The places of attention's operands. Its products alone have their result behind two others. */
enum AttentionOperand { Query, Key, Value, Result };
enum ScoresOperand { OfQuery, OfKey };
enum ValuesOperand { Probabilities, OfValue };

// Kernels know no C headers.
static_assert(sizeof(Requantization) == sizeof(distile_requantization) &&
              offsetof(Requantization, output_factor) == offsetof(distile_requantization, output_factor) &&
              Requantization::zero_point_bytes == DISTILE_ZERO_POINT_BYTES);

/** The places of the operands. In quantized operators their numbers follow; then the residual, if any, and the output.
 */
enum Operand { Input, Weights, Bias, Requantized };

int64_t ceil_divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

bool is_byte(const distile_array &array) {
    return distile::is_quantized(array.dtype);
}

Tensor tensor_of(const distile_array &array) {
    const int64_t bytes = distile::element_bytes(array.dtype);
    const auto stride = [&](Dimension dimension) { return array.dim[dimension].stride * bytes; };
    const auto units = [&](Dimension dimension) { return static_cast<int32_t>(stride(dimension) / unit_bytes); };
    // The array begins in its border.
    return {static_cast<char *>(array.data) - array.dim[X].min * stride(X) - array.dim[Y].min * stride(Y), units(X),
            units(Y), units(Image)};
}

/** The blocks for which a variant has work, but no more than the GPU holds at once, in whole clusters. */
int32_t num_blocks(const distile_tensor_core_code &code, const distile_kernel_call &call) {
    const int64_t pixels = int64_t{call.num_tiles} * code.tile_h * code.tile_w;
    const int64_t clusters = ceil_divide(pixels, code.block_pixels) * code.channel_blocks;
    const int64_t resident = int64_t{call.threads} * code.blocks_per_multiprocessor / code.splits;
    const int64_t most = code.balanced != 0 ? distile::tensor_core::most_sharers * clusters : clusters;
    return static_cast<int32_t>(std::min(most, std::max<int64_t>(resident, 1)) * code.splits);
}

/** What all variants share. */
Arguments arguments_of(const distile_kernel_call &call) {
    const distile_array *operands = call.operands;
    const distile_array &input = operands[Input], &output = operands[call.num_operands - 1];
    Arguments arguments{};
    arguments.input = tensor_of(input);
    arguments.output = tensor_of(output);
    const int32_t residual = is_byte(input) ? Requantized + 1 : Requantized;
    if (is_byte(input)) {
        arguments.requantization = static_cast<const char *>(operands[Requantized].data);
    }
    if (residual + 1 < call.num_operands) {
        arguments.residual = tensor_of(operands[residual]);
    }
    arguments.weights = static_cast<const char *>(operands[Weights].data);
    arguments.bias = static_cast<const float *>(operands[Bias].data);
    arguments.first_row = input.dim[Y].min;
    arguments.end_row = input.dim[Y].min + input.dim[Y].extent;
    arguments.first_column = input.dim[X].min;
    arguments.end_column = input.dim[X].min + input.dim[X].extent;
    arguments.bits = call.bits;
    arguments.words_per_row = call.words_per_row;
    arguments.height = call.height;
    arguments.width = output.dim[X].extent;
    arguments.batch = call.batch;
    arguments.store_tiles = call.store_tiles;
    arguments.slope = call.slope;
    return arguments;
}

/** Scores have heads where other tensors have rows of pixels. */
ScoreTensor scores_of(const distile_array &array) {
    return {static_cast<char *>(array.data), array.dim[X].stride, array.dim[Y].stride, array.dim[Image].stride};
}

const distile_array &result_of(const distile_kernel_call &call) {
    return call.operands[call.num_operands - 1];
}

AttentionArguments attention_arguments_of(const distile_attention_code &code, const distile_kernel_call &call) {
    const distile_array *operands = call.operands;
    AttentionArguments arguments{};
    switch (code.product) {
    case DISTILE_SCORES:
        arguments.query = tensor_of(operands[OfQuery]);
        arguments.key = tensor_of(operands[OfKey]);
        arguments.scores = scores_of(result_of(call));
        break;
    case DISTILE_VALUES:
        arguments.scores = scores_of(operands[Probabilities]);
        arguments.value = tensor_of(operands[OfValue]);
        arguments.output = tensor_of(result_of(call));
        break;
    default:
        arguments.query = tensor_of(operands[Query]);
        arguments.key = tensor_of(operands[Key]);
        arguments.value = tensor_of(operands[Value]);
        arguments.output = tensor_of(operands[Result]);
        break;
    }
    // Every operator has its keys, or their values, second.
    arguments.rows = {call.tile_xy, call.row_starts, result_of(call).dim[X].extent};
    arguments.keys = {call.key_xy, call.key_starts, operands[Key].dim[X].extent};
    arguments.count = call.tile_count;
    arguments.batch = call.batch;
    arguments.scale = call.scale;
    return arguments;
}

/** The blocks for which attention may have work, but no more than the GPU holds at once. */
int32_t num_blocks(const distile_attention_code &code, const distile_kernel_call &call) {
    // The last rows of each image may fill a block in part only.
    const int64_t rows = result_of(call).dim[X].extent;
    const int64_t full = std::min(ceil_divide(call.num_tiles, code.block_rows) + call.batch,
                                  call.batch * ceil_divide(rows, code.block_rows));
    const int64_t items = full * code.heads;
    const int64_t most = code.part_bytes != 0 ? distile::tensor_core::most_sharers * items : items;
    return static_cast<int32_t>(
        std::min(most, std::max<int64_t>(int64_t{call.threads} * code.blocks_per_multiprocessor, 1)));
}

/** The call that is made for the most numbers of tiles. */
int32_t likeliest(const distile_gpu_choice &choice, const int32_t *variants, int32_t num_calls) {
    int32_t best = 0;
    uint32_t widest = 0;
    for (int32_t i = 0; i < choice.num_ranges; i++) {
        const uint32_t width = choice.ranges[i].most - (i == 0 ? 0 : choice.ranges[i - 1].most);
        const int32_t *const found = std::find(variants, variants + num_calls, choice.ranges[i].variant);
        if (width > widest && found != variants + num_calls) {
            best = static_cast<int32_t>(found - variants);
            widest = width;
        }
    }
    return best;
}

/** Collects the work of a kernel's variants and launches the kernel. Functions return 0 for success. */
class KernelLaunch {
public:
    KernelLaunch(const distile_tensor_core_code &first, const distile_kernel_call &call)
        : kernel_(first), hooks_(*call.hooks) {
        launch_.arguments = arguments_of(call);
    }

    int add(const distile_tensor_core_code &code, const distile_kernel_call &call) {
        Tiles &tiles = launch_.tiles[code.place];
        const int32_t blocks = num_blocks(code, call);
        tiles.xy = call.tile_xy;
        tiles.count = call.tile_count;
        tiles.capacity = call.tile_capacity;
        tiles.blocks = static_cast<uint32_t>(blocks);
        blocks_ = std::max(blocks_, blocks);
        cluster_ = std::max(cluster_, code.splits);
        if (code.balanced != 0 && call.fixed_order == 0) {
            sharers_ = std::max(sharers_, blocks);
            part_bytes_ = std::max(part_bytes_, blocks * sizeof(float) * code.block_pixels * code.block_channels);
        }
        if (code.box_step_w == 0) {
            return 0;
        }
        const distile_gpu_boxes boxes = {&call.operands[Input], code.tile_w, code.tile_h, code.box_step_w,
                                         code.box_step_h};
        return hooks_.gpu->map_boxes(&hooks_, &boxes, &tiles.input_map);
    }
    void choose_by(const distile_gpu_choice &choice) {
        launch_.choice = choice;
    }
    int run() {
        void *pointers[] = {&launch_};
        distile_gpu_launch launch = {
            kernel_.kernel, {}, {kernel_.threads, 1, 1}, kernel_.shared_bytes, pointers, cluster_, kernel_.early};
        int result = hooks_.gpu->use_module(&hooks_, kernel_.code, static_cast<size_t>(kernel_.end - kernel_.code));
        int32_t blocks = blocks_;
        if (result == 0 && cluster_ > 1) {
            // Blocks that begin when others have ended would have as much work as they had.
            int32_t resident = 0;
            result = hooks_.gpu->count_resident(&hooks_, &launch, &resident);
            blocks = std::min(blocks, std::max(resident, cluster_));
            for (Tiles &tiles : launch_.tiles) {
                tiles.blocks = std::min(tiles.blocks, static_cast<uint32_t>(blocks));
            }
        }
        if (result == 0 && sharers_ > 0) {
            uint64_t parts = 0, signals = 0;
            result = hooks_.gpu->allocate(&hooks_, part_bytes_, &parts);
            if (result == 0) {
                result = hooks_.gpu->signals(&hooks_, (sharers_ + 2) * sizeof(uint32_t), &signals);
            }
            launch_.arguments.parts = reinterpret_cast<float *>(parts);
            launch_.arguments.signals = reinterpret_cast<uint32_t *>(signals);
        }
        launch.blocks[0] = static_cast<int32_t>(ceil_divide(blocks, cluster_) * cluster_);
        launch.blocks[1] = launch.blocks[2] = 1;
        return result != 0 ? result : hooks_.gpu->launch(&hooks_, &launch);
    }

private:
    const distile_tensor_core_code &kernel_;
    distile_hooks &hooks_;
    // The kernel takes the tiles of as many variants as it has.
    Launch<distile::tensor_core::most_variants> launch_{};
    int32_t blocks_ = 0, cluster_ = 1, sharers_ = 0;
    uint64_t part_bytes_ = 0;
};

}  // namespace

extern "C" int distile_call_tensor_core(const distile_tensor_core_code *code, const distile_kernel_call *call) {
    KernelLaunch launch(*code, *call);
    const int result = launch.add(*code, *call);
    return result != 0 ? result : launch.run();
}

extern "C" int distile_call_attention(const distile_attention_code *code, const distile_kernel_call *call) {
    distile_hooks *const hooks = call->hooks;
    const distile_gpu_hooks &gpu = *hooks->gpu;
    AttentionArguments arguments = attention_arguments_of(*code, *call);
    const int32_t blocks = num_blocks(*code, *call);
    arguments.blocks = static_cast<uint32_t>(blocks);
    int result = gpu.use_module(hooks, code->code, static_cast<size_t>(code->end - code->code));
    if (result == 0 && code->part_bytes != 0 && call->fixed_order == 0) {
        uint64_t parts = 0, signals = 0;
        result = gpu.allocate(hooks, static_cast<uint64_t>(blocks) * code->part_bytes, &parts);
        if (result == 0) {
            result = gpu.signals(hooks, (blocks + 2) * sizeof(uint32_t), &signals);
        }
        arguments.parts = reinterpret_cast<float *>(parts);
        arguments.signals = reinterpret_cast<uint32_t *>(signals);
    }
    void *pointers[] = {&arguments};
    const distile_gpu_launch launch = {
        code->kernel, {blocks, 1, 1}, {code->threads, 1, 1}, code->shared_bytes, pointers, 1, code->early};
    return result != 0 ? result : gpu.launch(hooks, &launch);
}

extern "C" int distile_choose_tensor_core(const distile_tensor_core_code *codes, const distile_kernel_call *calls,
                                          const int32_t *variants, int32_t num_calls,
                                          const distile_gpu_choice *choice) {
    const auto same_kernel = [&](int32_t one, int32_t other) {
        return std::strcmp(codes[variants[one]].kernel, codes[variants[other]].kernel) == 0;
    };
    // A kernel that has nothing to do takes less time behind another than before it.
    const int32_t likely = likeliest(*choice, variants, num_calls);
    const auto in_turn = [&](int32_t turn) { return (likely + turn) % num_calls; };
    for (int32_t turn = 0; turn < num_calls; turn++) {
        const int32_t first = in_turn(turn);
        bool launched = false;
        for (int32_t before = 0; before < turn; before++) {
            launched = launched || same_kernel(in_turn(before), first);
        }
        if (launched) {
            continue;
        }
        KernelLaunch launch(codes[variants[first]], calls[first]);
        launch.choose_by(*choice);
        int result = 0;
        for (int32_t i = 0; i < num_calls && result == 0; i++) {
            if (same_kernel(i, first)) {
                result = launch.add(codes[variants[i]], calls[i]);
            }
        }
        result = result != 0 ? result : launch.run();
        if (result != 0) {
            return result;
        }
    }
    return 0;
}
