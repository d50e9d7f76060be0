/** \file
 * Products with the nonzero weights alone on NVIDIA GPUs. Linked into every PolyKernel that has such variants.
 */
#include "cuda_nonzeros_ptx.h"
#include "kernels/cuda_nonzeros/arguments.h"
#include "kernels/cuda_operands.h"
#include "kernels/dot_products.h"
#include <algorithm>
#include <iterator>
#include <limits>

namespace {

using namespace distile;
using namespace distile::cuda_nonzeros;

constexpr int32_t quad = 4, block_rows = DISTILE_CUDA_NONZERO_BLOCK;

/** What divides by multiplying (divide() in nonzeros.cu). */
uint32_t factor_of(int32_t divisor) {
    return divisor == 1 ? 0 : static_cast<uint32_t>(((int64_t{1} << 32) + divisor - 1) / divisor);
}

/** Where the arrays of the weights are, as pack_paired_nonzeros() aligns them. */
Weights weights_of(const distile_array &array, int32_t rows, int32_t chunks) {
    constexpr int64_t word = 4, alignment = 16;
    const auto *const data = static_cast<const char *>(array.data);
    const int64_t order = sizeof(distile_cuda_nonzero_weights), starts = order + rows * word,
                  end = starts + (int64_t{rows} * chunks + 1) * word;
    return {reinterpret_cast<const int32_t *>(data + order), reinterpret_cast<const uint32_t *>(data + starts),
            data + (end + alignment - 1) / alignment * alignment};
}

Arguments arguments_of(const distile_dot_product_code &code, const distile_kernel_call &call) {
    const distile_array &input = call.operands[Input];
    Arguments a{};
    set_operands(a, call, code.epilogue);
    a.rows = axis_of<Axis>(input, Y, code.stride_h, *code.rows, code.tile_h, call.height);
    a.columns = axis_of<Axis>(input, X, code.stride_w, *code.columns, code.tile_w, output_of(call).dim[X].extent);
    // A depthwise convolution is one section.
    a.read_channels = code.read_channels == 0 ? a.in_channels : code.read_channels;
    a.section_channels = code.section_channels;
    a.section_blocks = divide_up(code.section_channels, block_rows);
    a.tap_quads = divide_up(a.read_channels, quad);
    a.quads = a.rows.taps * a.columns.taps * a.tap_quads;
    a.chunks = divide_up(a.quads * quad, DISTILE_CUDA_CHUNK_COLUMNS);
    a.quad_factor = factor_of(a.tap_quads);
    a.column_factor = factor_of(a.columns.taps);
    a.section_parts = divide_up(a.section_blocks, code.block_channels / block_rows);
    a.part_factor = factor_of(a.section_parts);
    a.splits = std::clamp(code.reduction_splits, 1, a.chunks);
    a.split_factor = factor_of(a.splits);
    const int32_t sections = divide_up(a.out_channels, a.section_channels);
    a.weights = weights_of(call.operands[PackedWeights], sections * a.section_blocks * block_rows, a.chunks);
    a.dtype = input.dtype;
    const bool whole = a.read_channels % quad == 0 && a.in_channels % quad == 0;
    a.reads_quads = whole && is_aligned(a.input, quad * bytes_of_element(input)) ? 1 : 0;
    return a;
}

/** Whether the kernels can count the elements between the first and the last tap. */
bool spans_are_small(const Arguments &a) {
    const int64_t bytes = int64_t{a.rows.taps} * a.rows.step * a.input.stride_h +
                          int64_t{a.columns.taps} * a.columns.step * a.input.stride_w;
    constexpr int64_t least_element = 2;
    return bytes / least_element < std::numeric_limits<int32_t>::max() / 2;
}

/** The kernels. Launches know them by these very names. */
constexpr struct {
    int32_t pixels, channels;
    const char *name;
    int32_t warps, shared_bytes;
} kernels[] = {
#define DISTILE_ROW(pixels, channels)                                                                                  \
    {pixels, channels, "distile_nonzeros_" #pixels "_" #channels, warps_of(pixels, channels),                          \
     shared_bytes(pixels, channels)},
    DISTILE_CUDA_NONZERO_KERNELS(DISTILE_ROW)
#undef DISTILE_ROW
};

}  // namespace

extern "C" int distile_call_cuda_nonzeros(const distile_dot_product_code *code, const distile_kernel_call *call) {
    distile_hooks *const hooks = call->hooks;
    const distile_gpu_hooks &gpu = *hooks->gpu;
    const auto *const kernel = std::find_if(std::begin(kernels), std::end(kernels), [&](const auto &row) {
        return row.pixels == code->block_pixels && row.channels == code->block_channels;
    });
    if (kernel == std::end(kernels)) {
        hooks->report(hooks, "there is no kernel for nonzero weights with such blocks");
        return -1;
    }
    Arguments a = arguments_of(*code, *call);
    if (!spans_are_small(a)) {
        hooks->report(hooks,
                      "the filter reads beyond 2^30 elements of an input, which code for nonzero weights cannot");
        return -1;
    }
    const int64_t pixels = int64_t{call->num_tiles} * code->tile_h * code->tile_w;
    const int64_t pixel_blocks = (pixels + kernel->pixels - 1) / kernel->pixels;
    const int32_t parts = divide_up(a.out_channels, a.section_channels) * a.section_parts;
    const int64_t outputs = pixel_blocks * parts;
    int result = gpu.use_module(hooks, distile_cuda_nonzeros_ptx, sizeof(distile_cuda_nonzeros_ptx) - 1);
    if (result == 0) {
        result = allocate_splits(hooks, outputs, part_bytes(kernel->pixels, kernel->channels), a);
    }
    void *arguments[] = {&a};
    const distile_gpu_launch launch = {kernel->name,
                                       {static_cast<int32_t>(pixel_blocks), parts, a.splits},
                                       {kernel->warps * lanes, 1, 1},
                                       kernel->shared_bytes,
                                       arguments,
                                       0,
                                       0};
    return result != 0 ? result : gpu.launch(hooks, &launch);
}
