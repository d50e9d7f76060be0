/** \file
 * Linear layers with pruned weights of 16 bits on NVIDIA GPUs. Linked into every PolyKernel that has such variants.
 */
#include "bitmap_bfloat16_ptx.h"
#include "bitmap_float16_ptx.h"
#include "kernels/bitmap.h"
#include "kernels/cuda_bitmap/arguments.h"
#include "kernels/cuda_operands.h"
#include <algorithm>
#include <iterator>

namespace {

using namespace distile;
using namespace distile::cuda_bitmap;

/** Where the arrays of the weights are, as pack_bitmap() aligns them. */
Weights weights_of(const distile_array &array, int64_t units) {
    constexpr int64_t word = 4, alignment = 16, unit_bytes = 2 * word * lanes;
    const auto *const data = static_cast<const char *>(array.data);
    const int64_t bits = sizeof(distile_cuda_bitmap_weights), starts = bits + units * unit_bytes,
                  end = starts + (units + 1) * word;
    return {reinterpret_cast<const uint32_t *>(data + bits), reinterpret_cast<const uint32_t *>(data + starts),
            data + (end + alignment - 1) / alignment * alignment};
}

Arguments arguments_of(const distile_dot_product_code &code, const distile_kernel_call &call) {
    constexpr int64_t read_at_once = 8, written_at_once = 4, element_bytes = 2;
    Arguments a{};
    set_operands(a, call, code.epilogue);
    a.rows = {code.tile_h, call.height};
    a.columns = {code.tile_w, output_of(call).dim[X].extent};
    a.units = divide_up(a.in_channels, DISTILE_BITMAP_COLUMNS);
    a.weights =
        weights_of(call.operands[PackedWeights], int64_t{divide_up(a.out_channels, DISTILE_BITMAP_ROWS)} * a.units);
    a.channels = code.block_channels;
    a.reads_whole = a.in_channels % read_at_once == 0 && is_aligned(a.input, read_at_once * element_bytes) ? 1 : 0;
    a.writes_whole = a.out_channels % written_at_once == 0 && is_aligned(a.output, written_at_once * element_bytes) &&
                             is_aligned(a.residual, written_at_once * element_bytes)
                         ? 1
                         : 0;
    a.ahead = std::max(0, code.staged_blocks);
    a.splits = std::clamp(code.reduction_splits, 1, a.units);
    return a;
}

/** The kernels. Launches know them by these very names. */
constexpr struct {
    distile_dtype dtype;
    int32_t pixels;
    const char *name;
} kernels[] = {
#define DISTILE_ROW(pixels)                                                                                            \
    {DISTILE_FLOAT16, pixels, "distile_bitmap_float16_" #pixels},                                                      \
        {DISTILE_BFLOAT16, pixels, "distile_bitmap_bfloat16_" #pixels},
    DISTILE_CUDA_BITMAP_PIXELS(DISTILE_ROW)
#undef DISTILE_ROW
};

}  // namespace

extern "C" int distile_call_cuda_bitmap(const distile_dot_product_code *code, const distile_kernel_call *call) {
    distile_hooks *const hooks = call->hooks;
    const distile_gpu_hooks &gpu = *hooks->gpu;
    const distile_dtype dtype = call->operands[Input].dtype;
    const auto *const kernel = std::find_if(std::begin(kernels), std::end(kernels), [&](const auto &row) {
        return row.dtype == dtype && row.pixels == code->block_pixels;
    });
    if (kernel == std::end(kernels) || !has_blocks(code->block_pixels, code->block_channels)) {
        hooks->report(hooks, "there is no kernel for a bitmap of weights with such blocks in this type");
        return -1;
    }
    Arguments a = arguments_of(*code, *call);
    const int64_t pixels = int64_t{call->num_tiles} * code->tile_h * code->tile_w;
    const int64_t pixel_blocks = (pixels + kernel->pixels - 1) / kernel->pixels;
    const int32_t channel_blocks = divide_up(a.out_channels, a.channels);
    const int64_t outputs = pixel_blocks * channel_blocks;
    int result = dtype == DISTILE_FLOAT16
                     ? gpu.use_module(hooks, distile_bitmap_float16_ptx, sizeof(distile_bitmap_float16_ptx) - 1)
                     : gpu.use_module(hooks, distile_bitmap_bfloat16_ptx, sizeof(distile_bitmap_bfloat16_ptx) - 1);
    if (result == 0) {
        result = allocate_splits(hooks, outputs, part_bytes(kernel->pixels, a.channels), a);
    }
    void *arguments[] = {&a};
    const distile_gpu_launch launch = {kernel->name,
                                       {static_cast<int32_t>(pixel_blocks), channel_blocks, a.splits},
                                       {threads, 1, 1},
                                       shared_bytes,
                                       arguments,
                                       0,
                                       0};
    return result != 0 ? result : gpu.launch(hooks, &launch);
}
