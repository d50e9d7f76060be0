/** \file
 * Layers with weights of the pattern 2:4 on NVIDIA GPUs. Linked into every PolyKernel that has such variants.
 */
#include "kernels/cuda_operands.h"
#include "kernels/cuda_two_four/arguments.h"
#include "kernels/two_four.h"
#include "two_four_sm80_bfloat16_ptx.h"
#include "two_four_sm80_float16_ptx.h"
#include "two_four_sm90_bfloat16_cubin.h"
#include "two_four_sm90_float16_cubin.h"
#include <algorithm>
#include <iterator>

namespace {

using namespace distile;
using namespace distile::cuda_two_four;

Arguments arguments_of(const distile_dot_product_code &code, const distile_kernel_call &call) {
    const distile_array &input = call.operands[Input];
    constexpr int32_t piece_bytes = 16;
    Arguments a{};
    set_operands(a, call, code.epilogue);
    // The runtime checks that strides are multiples of it.
    a.input_n = static_cast<int32_t>(a.input.stride_n / piece_bytes);
    a.input_h = a.input.stride_h / piece_bytes;
    a.input_w = a.input.stride_w / piece_bytes;
    a.weights = static_cast<const char *>(call.operands[PackedWeights].data);
    a.rows = axis_of<Axis>(input, Y, code.stride_h, *code.rows, code.tile_h, call.height);
    a.columns = axis_of<Axis>(input, X, code.stride_w, *code.columns, code.tile_w, output_of(call).dim[X].extent);
    a.channel_blocks = static_cast<uint32_t>(divide_up(a.out_channels, code.block_channels));
    a.row_units = divide_up(a.out_channels, DISTILE_TWO_FOUR_ROWS);
    a.channel_units = divide_up(a.in_channels, DISTILE_TWO_FOUR_COLUMNS);
    a.steps = a.rows.taps * a.columns.taps * a.channel_units;
    a.splits = std::clamp(code.reduction_splits, 1, a.steps);
    return a;
}

/** The kernels. Launches know them by these very names. */
struct Kernel {
    distile_dtype dtype;
    Block block;
    const char *name;
};
constexpr Kernel kernels[] = {
#define DISTILE_ROW(pixels, channels)                                                                                  \
    {DISTILE_FLOAT16, {Cores::Sm80, pixels, channels}, "distile_two_four_sm80_float16_" #pixels "_" #channels},        \
        {DISTILE_BFLOAT16, {Cores::Sm80, pixels, channels}, "distile_two_four_sm80_bfloat16_" #pixels "_" #channels},
    DISTILE_TWO_FOUR_SM80_BLOCKS(DISTILE_ROW)
#undef DISTILE_ROW
#define DISTILE_ROW(pixels, channels)                                                                                  \
    {DISTILE_FLOAT16, {Cores::Sm90, pixels, channels}, "distile_two_four_sm90_float16_" #pixels "_" #channels},        \
        {DISTILE_BFLOAT16, {Cores::Sm90, pixels, channels}, "distile_two_four_sm90_bfloat16_" #pixels "_" #channels},
        DISTILE_TWO_FOUR_SM90_BLOCKS(DISTILE_ROW)
#undef DISTILE_ROW
};

int use_module(distile_hooks *hooks, const Kernel &kernel) {
    const auto use = [&](const auto &code, size_t bytes) {
        return hooks->gpu->use_module(hooks, reinterpret_cast<const char *>(code), bytes);
    };
    if (kernel.block.cores == Cores::Sm90) {
        return kernel.dtype == DISTILE_FLOAT16
                   ? use(distile_two_four_sm90_float16_cubin, sizeof(distile_two_four_sm90_float16_cubin))
                   : use(distile_two_four_sm90_bfloat16_cubin, sizeof(distile_two_four_sm90_bfloat16_cubin));
    }
    return kernel.dtype == DISTILE_FLOAT16
               ? use(distile_two_four_sm80_float16_ptx, sizeof(distile_two_four_sm80_float16_ptx) - 1)
               : use(distile_two_four_sm80_bfloat16_ptx, sizeof(distile_two_four_sm80_bfloat16_ptx) - 1);
}

int run(Cores cores, const distile_dot_product_code &code, const distile_kernel_call &call) {
    distile_hooks *const hooks = call.hooks;
    const distile_dtype dtype = call.operands[Input].dtype;
    const auto *const kernel = std::find_if(std::begin(kernels), std::end(kernels), [&](const Kernel &row) {
        return row.dtype == dtype && row.block.cores == cores && row.block.pixels == code.block_pixels &&
               row.block.channels == code.block_channels;
    });
    if (kernel == std::end(kernels)) {
        hooks->report(hooks, "there is no kernel for weights of the pattern 2:4 with such blocks in this type");
        return -1;
    }
    Arguments a = arguments_of(code, call);
    constexpr int32_t piece_channels = 8;
    if (a.in_channels % piece_channels != 0 || a.out_channels % piece_channels != 0 || a.rows.taps > most_taps ||
        a.columns.taps > most_taps) {
        hooks->report(hooks, "code for weights of the pattern 2:4 needs channels that are multiples of 8, and a kernel "
                             "of at most 16 x 16");
        return -1;
    }
    const Block &block = kernel->block;
    const int64_t pixels = int64_t{call.num_tiles} * code.tile_h * code.tile_w;
    // Clusters are whole.
    const int64_t cluster_pixels = int64_t{block.pixels} * block.cluster();
    const int64_t outputs = (pixels + cluster_pixels - 1) / cluster_pixels * block.cluster() * a.channel_blocks;
    int result = use_module(hooks, *kernel);
    if (result == 0) {
        // On 9.0, each group of warps has sums of its own.
        const int64_t sharers = block.is_sm90() ? block.groups() : 1;
        result = allocate_splits(hooks, outputs * sharers, block.part_bytes() / sharers, a);
    }
    // On 9.0, blocks stay, and wait for earlier kernels themselves.
    const int64_t room = std::max(1, call.threads / block.cluster()) * int64_t{block.cluster()};
    const int64_t blocks = block.is_sm90() ? std::min(outputs * a.splits, room) : outputs;
    void *arguments[] = {&a};
    const distile_gpu_launch launch = {kernel->name,
                                       {static_cast<int32_t>(blocks), block.is_sm90() ? 1 : a.splits, 1},
                                       {block.threads(), 1, 1},
                                       block.shared_bytes(),
                                       arguments,
                                       block.cluster(),
                                       block.is_sm90() ? 1 : 0};
    return result != 0 ? result : hooks->gpu->launch(hooks, &launch);
}

}  // namespace

extern "C" int distile_call_cuda_two_four(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return run(Cores::Sm80, *code, *call);
}

extern "C" int distile_call_cuda_two_four_sm90(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return run(Cores::Sm90, *code, *call);
}
