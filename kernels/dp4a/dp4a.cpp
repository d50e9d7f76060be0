/** \file
 * Dot products of four quantized numbers on NVIDIA GPUs, without tensor cores. Linked into every PolyKernel that has
 * such variants.
 */
#include "dp4a_ptx.h"
#include "facts/type_functions.h"
#include "kernels/cpu/rows.h"
#include "kernels/dot_products.h"
#include "kernels/dp4a/dp4a_arguments.h"
#include <algorithm>

namespace {

using distile::dot_product::Dimension;
using distile::dp4a::Arguments;
using distile::dp4a::Axis;

/** The places of the operands. The residual, if any, and the output follow. */
enum Operand { Input, Weights, Bias, Requantized, Residual };

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/** The most bytes of a pixel that code can read at once wherever it reads. */
int32_t input_unit(const Arguments &a) {
    for (const int32_t unit : {16, 4}) {
        if (a.read_channels % unit == 0 && a.in_channels % unit == 0 && distile::is_aligned(a.input, unit)) {
            return unit;
        }
    }
    return 1;
}

/** All but the phase and its taps. `tile` and `extent` are of the output. */
Axis axis_of(const distile_array &input, Dimension dimension, int32_t scale, int32_t stride, int32_t tile,
             int32_t extent) {
    Axis axis{};
    axis.scale = scale;
    axis.stride = stride;
    axis.begin = input.dim[dimension].min;
    axis.end = axis.begin + input.dim[dimension].extent;
    axis.tile = tile;
    axis.extent = extent;
    axis.pixels = static_cast<int32_t>(divide_up(tile, scale));
    return axis;
}

void set_phase(Axis &axis, int32_t phase, const distile_taps &taps) {
    axis.phase = phase;
    axis.first = taps.first;
    axis.step = taps.step;
    axis.taps = taps.taps;
}

/** What all phases share. */
Arguments arguments_of(const distile_dot_product_code &code, const distile_kernel_call &call) {
    const distile_array *operands = call.operands;
    const distile_array &input = operands[Input], &weights = operands[Weights],
                        &output = operands[call.num_operands - 1];
    Arguments a{};
    static_cast<distile::CudaCall &>(a) = distile::cuda_call_of(call, code.epilogue);
    a.input = distile::cuda_tensor_of(input);
    a.output = distile::cuda_tensor_of(output);
    if (call.num_operands > Residual + 1) {
        a.residual = distile::cuda_tensor_of(operands[Residual]);
    }
    a.weights = static_cast<const char *>(weights.data);
    a.weight_block = int64_t{weights.dim[1].extent} * distile::dp4a::weight_step;
    a.bias = static_cast<const float *>(operands[Bias].data);
    a.requantization = static_cast<const char *>(operands[Requantized].data);
    a.rows = axis_of(input, Dimension::Y, code.scale_h, code.stride_h, code.tile_h, call.height);
    a.columns = axis_of(input, Dimension::X, code.scale_w, code.stride_w, code.tile_w, output.dim[Dimension::X].extent);
    a.in_channels = input.dim[Dimension::Channel].extent;
    a.out_channels = output.dim[Dimension::Channel].extent;
    a.read_channels = code.read_channels;
    a.section_channels = code.section_channels;
    a.padded_section = static_cast<int32_t>(divide_up(code.section_channels, distile::dp4a::block_channels)) *
                       distile::dp4a::block_channels;
    a.unit = input_unit(a);
    a.flip = input.dtype == DISTILE_INT8 ? 0x80808080U : 0;
    a.output_bytes = static_cast<int32_t>(distile::bytes_of_element(output));
    a.output_least = distile::facts_of_type(output.dtype).least;
    // A section may begin at any channel.
    const bool begins_aligned =
        a.section_channels >= a.out_channels || a.section_channels % distile::dp4a::thread_channels == 0;
    a.stores_vectors =
        begins_aligned && distile::is_aligned(a.output, int64_t{distile::dp4a::thread_channels} * a.output_bytes) ? 1
                                                                                                                  : 0;
    return a;
}

/** A kernel and the output pixels and channels of a block. */
struct Kernel {
    const char *name;
    int32_t threads, pixels, channels;
};

Kernel kernel_of(const distile_dot_product_code &code) {
    using namespace distile::dp4a;
    const bool many = code.block_pixels >= many_pixels, wide = code.block_channels >= many_channels;
    if (code.read_channels == 0) {
        return {"distile_dp4a_depthwise", depthwise_threads, 1, thread_channels};
    }
    if (many) {
        return wide ? Kernel{"distile_dp4a_128_64", 256, many_pixels, many_channels}
                    : Kernel{"distile_dp4a_128_16", 64, many_pixels, few_channels};
    }
    return wide ? Kernel{"distile_dp4a_32_64", 128, few_pixels, many_channels}
                : Kernel{"distile_dp4a_32_16", 32, few_pixels, few_channels};
}

/** The steps of a phase in the weights. */
int32_t steps_of(const Arguments &a) {
    constexpr int64_t step_elements = distile::dp4a::weight_step / distile::dp4a::block_channels, group = 4;
    const int64_t elements = a.read_channels == 0 ? divide_up(a.rows.taps, group) * group * a.columns.taps
                                                  : int64_t{a.rows.taps} * a.columns.taps * a.read_channels;
    return static_cast<int32_t>(divide_up(elements, step_elements));
}

int launch(const Kernel &kernel, Arguments &a, const distile_kernel_call &call) {
    const int64_t rows = int64_t{call.num_tiles} * a.rows.pixels * a.columns.pixels;
    const bool depthwise = a.read_channels == 0;
    const int64_t sections = divide_up(a.out_channels, a.section_channels),
                  columns = depthwise ? divide_up(a.out_channels, kernel.channels)
                                      : sections * divide_up(a.padded_section, kernel.channels);
    int64_t blocks = divide_up(rows, kernel.pixels) * columns;
    if (depthwise) {
        blocks = divide_up(blocks, kernel.threads);
    }
    void *arguments[] = {&a};
    const distile_gpu_launch launch = {
        kernel.name, {static_cast<int32_t>(blocks), 1, 1}, {kernel.threads, 1, 1}, 0, arguments, 0, 0};
    return call.hooks->gpu->launch(call.hooks, &launch);
}

}  // namespace

extern "C" int distile_call_dp4a(const distile_dot_product_code *code, const distile_kernel_call *call) {
    int result = call->hooks->gpu->use_module(call->hooks, distile_dp4a_ptx, sizeof(distile_dp4a_ptx) - 1);
    Arguments a = arguments_of(*code, *call);
    const Kernel kernel = kernel_of(*code);
    // Behind the header come the offsets of each phase and the multipliers, for whole blocks of channels.
    const int64_t channels = int64_t{call->operands[Weights].dim[2].extent} * distile::dp4a::block_channels;
    const auto *const offsets = reinterpret_cast<const int32_t *>(a.requantization + sizeof(distile_requantization));
    a.multipliers = reinterpret_cast<const float *>(offsets + int64_t{code->scale_h} * code->scale_w * channels);
    a.offsets = offsets;
    for (int32_t row = 0; row < code->scale_h; row++) {
        for (int32_t column = 0; column < code->scale_w && result == 0; column++) {
            set_phase(a.rows, row, code->rows[row]);
            set_phase(a.columns, column, code->columns[column]);
            a.steps = steps_of(a);
            result = launch(kernel, a, *call);
            a.offsets += channels;
            a.weights += int64_t{a.steps} * distile::dp4a::weight_step;
        }
    }
    return result;
}
