#include "operators.h"
#include "context.h"
#include "pixel_runs.h"
#include "polyphase.h"
#include "tensor.h"
#include "tensor_buffer.h"
#include "weights.h"
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

namespace distile {

namespace {

constexpr const char *run_call = "distile_run";

/** The tiles along one axis whose reads all lie inside the input and its border: [first, last). */
struct TileRange {
    int32_t first, last;
};

TileRange interior_tiles(const PixelRange &interior, int64_t output, int64_t tile) {
    const int64_t num_tiles = (output + tile - 1) / tile;
    const int64_t first = (interior.first + tile - 1) / tile;
    const int64_t last = interior.last >= output ? num_tiles : interior.last / tile;
    return {static_cast<int32_t>(std::min(first, num_tiles)), static_cast<int32_t>(last)};
}

int64_t num_pixels(const distile_mask &mask) {
    return int64_t{mask.bits.batch} * mask.bits.height * mask.bits.width;
}

/** Calls visit(row, begin, end) for the runs of an output's pixels that the mask has or has not. For each it reads and
 * writes `bytes`. */
template<typename Visit> void for_each_output_run(const distile_tensor &output, const distile_mask &mask, bool active,
                                                  int64_t bytes, const Visit &visit) {
    const int64_t pixels = active ? mask.active_pixels : num_pixels(mask) - mask.active_pixels;
    for_each_row(*mask.context, output, bytes * pixels, [&](int64_t row) {
        for_each_run(mask.bits.words + row * mask.bits.words_per_row(), output.width, active,
                     [&](int64_t begin, int64_t end) { visit(row, begin, end); });
    });
}

void zero_inactive(const distile_tensor &output, const distile_mask &mask) {
    const auto bytes = static_cast<int64_t>(output.channels * sizeof(float));
    for_each_output_run(output, mask, false, bytes, [&](int64_t row, int64_t begin, int64_t end) {
        float *pixels = row_of(output, row);
        for (int64_t x = begin; x < end; x++) {
            std::fill_n(pixels + x * output.stride_w, output.channels, 0.0f);
        }
    });
}

void copy_active(const distile_tensor &from, const distile_tensor &to, const distile_mask &mask) {
    const auto bytes = static_cast<int64_t>(2 * sizeof(float)) * to.channels;
    for_each_output_run(to, mask, true, bytes, [&](int64_t row, int64_t begin, int64_t end) {
        const float *source = row_of(from, row);
        float *target = row_of(to, row);
        for (int64_t x = begin; x < end; x++) {
            std::copy_n(source + x * from.stride_w, to.channels, target + x * to.stride_w);
        }
    });
}

bool is_full(const distile_mask &mask) {
    return mask.active_pixels == num_pixels(mask);
}

/** Runs a dense candidate of the application's so that exactly the pixels that are due change. */
distile_status run_external(distile_kernel &kernel, const distile_run_args &args, const Variant &variant) {
    distile_context *context = kernel.context;
    const distile_tensor &output = *args.output;
    const bool aliased = args.residual && same_view(*args.residual, output);
    const bool every_pixel = is_full(*args.mask) || args.store == DISTILE_STORE_TILES;
    const bool in_place = !aliased && (every_pixel || args.inactive == DISTILE_ZERO);
    context->kernel_failed.store(false, std::memory_order_relaxed);
    if (in_place) {
        const int code = variant.external.run(variant.external.user, args.input, args.residual, &output);
        if (code != 0) {
            return fail_variant(kernel, run_call, DISTILE_ERROR_KERNEL, variant, code);
        }
        if (!every_pixel) {
            zero_inactive(output, *args.mask);
        }
        return DISTILE_OK;
    }
    distile_tensor result = distile_tensor_make(nullptr, output.batch, output.height, output.width, output.channels);
    const auto give_back = [&](void *memory) { context->scratch.give_back(memory); };
    const std::unique_ptr<void, decltype(give_back)> memory(
        context->scratch.take(static_cast<size_t>(result.batch * result.stride_n) * sizeof(float)), give_back);
    if (!memory) {
        return fail(context, DISTILE_ERROR_OUT_OF_MEMORY, "%s: no scratch memory for the variant '%s'", run_call,
                    variant.name);
    }
    result.data = memory.get();
    const int code = variant.external.run(variant.external.user, args.input, args.residual, &result);
    if (code != 0) {
        return fail_variant(kernel, run_call, DISTILE_ERROR_KERNEL, variant, code);
    }
    if (every_pixel) {
        copy_active(result, output, kernel.full_mask(args.mask->bits));
        return DISTILE_OK;
    }
    copy_active(result, output, *args.mask);
    if (args.inactive == DISTILE_ZERO) {
        zero_inactive(output, *args.mask);
    }
    return DISTILE_OK;
}

}  // namespace

Axis rows_of(const distile_conv2d &conv) {
    return {conv.kernel_h, conv.stride_h, conv.dilation_h, conv.pad_top, conv.pad_bottom};
}

Axis columns_of(const distile_conv2d &conv) {
    return {conv.kernel_w, conv.stride_w, conv.dilation_w, conv.pad_left, conv.pad_right};
}

const OperatorKind *find_operator_kind(int32_t kind) {
    switch (kind) {
    case DISTILE_MASKED_CONV2D:
        return &conv2d_kind;
    case DISTILE_MASKED_CONV_TRANSPOSE2D:
        return &conv_transpose2d_kind;
    case DISTILE_MASKED_UPSAMPLE_CONV2D:
        return &upsample_conv2d_kind;
    default:
        return nullptr;
    }
}

distile_status check_polykernel(distile_context *context, const char *call, const distile_polykernel &polykernel) {
    if (polykernel.version != DISTILE_POLYKERNEL_VERSION) {
        return fail(context, DISTILE_ERROR_VERSION,
                    "%s: the PolyKernel has version %u, this library reads version %u; build it again with this "
                    "version of distile",
                    call, polykernel.version, DISTILE_POLYKERNEL_VERSION);
    }
    if (!find_operator_kind(raw(polykernel.kind))) {
        return fail(context, DISTILE_ERROR_VERSION,
                    "%s: '%s' is an operator of kind %d, which this library does not know; build both with the same "
                    "version of distile",
                    call, polykernel.name, raw(polykernel.kind));
    }
    const distile_conv2d &conv = polykernel.conv2d;
    if (conv.groups < 1 || conv.in_channels % conv.groups != 0 || conv.out_channels % conv.groups != 0) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: '%s' has %d groups of %d -> %d channels", call,
                    polykernel.name, conv.groups, conv.in_channels, conv.out_channels);
    }
    return DISTILE_OK;
}

distile_status check_tensors(const distile_kernel &kernel, const char *call, const OperatorTensors &args) {
    const distile_conv2d &conv = kernel.polykernel->conv2d;
    distile_context *context = kernel.context;
    if (args.inactive < DISTILE_KEEP || args.inactive > DISTILE_ZERO || args.store < DISTILE_STORE_EXACT ||
        args.store > DISTILE_STORE_TILES) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: inactive is %d and store is %d: each is 0 or 1", call,
                    args.inactive, args.store);
    }
    distile_status status =
        check_tensor(context, raw(kernel.polykernel->dtype), call, args.input, "input", conv.in_channels, true);
    if (status != DISTILE_OK) {
        return status;
    }
    status =
        check_tensor(context, raw(kernel.polykernel->dtype), call, args.output, "output", conv.out_channels, false);
    if (status != DISTILE_OK) {
        return status;
    }
    const distile_tensor &input = *args.input, &output = *args.output;
    const OperatorKind &kind = *find_operator_kind(kernel.polykernel->kind);
    const int64_t height = kind.output_extent(rows_of(conv), input.height);
    const int64_t width = kind.output_extent(columns_of(conv), input.width);
    if (output.batch != input.batch || output.height != height || output.width != width) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the output is %d x %d x %d (batch, height, width); this input gives %d x %lld x %lld", call,
                    output.batch, output.height, output.width, input.batch, static_cast<long long>(height),
                    static_cast<long long>(width));
    }
    if (conv.residual != 0) {
        status = check_tensor(context, raw(kernel.polykernel->dtype), call, args.residual, "residual",
                              conv.out_channels, false);
        if (status != DISTILE_OK) {
            return status;
        }
        if (args.residual->batch != output.batch || args.residual->height != output.height ||
            args.residual->width != output.width) {
            return fail(context, DISTILE_ERROR_BAD_SHAPE,
                        "%s: the residual is %d x %d x %d (batch, height, width), the output %d x %d x %d", call,
                        args.residual->batch, args.residual->height, args.residual->width, output.batch, output.height,
                        output.width);
        }
        if (!same_view(*args.residual, output) && overlap(without_border(*args.residual), without_border(output))) {
            return fail(context, DISTILE_ERROR_ALIASING,
                        "%s: the residual overlaps the output but is not the same view", call);
        }
    } else if (args.residual) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a residual is given, but '%s' adds none", call,
                    kernel.polykernel->name);
    }
    if (overlap(input, without_border(output))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the input overlaps the output", call);
    }
    return DISTILE_OK;
}

distile_status fail_variant(const distile_kernel &kernel, const char *call, distile_status status,
                            const Variant &variant, int code) {
    const distile_context &context = *kernel.context;
    const std::string reason = context.kernel_failed ? std::string(": ") + context.message : "";
    return fail(kernel.context, status, "%s: the variant '%s' of '%s' failed with code %d%s", call, variant.name,
                kernel.polykernel->name, code, reason.c_str());
}

distile_status check_run(const distile_kernel &kernel, const distile_run_args &args) {
    distile_context *context = kernel.context;
    const distile_status status =
        check_tensors(kernel, run_call, {args.input, args.residual, args.output, raw(args.inactive), raw(args.store)});
    if (status != DISTILE_OK) {
        return status;
    }
    const distile_conv2d &conv = kernel.polykernel->conv2d;
    if (!args.weights) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the weights are null", run_call);
    }
    if (!args.weights->fit(*kernel.polykernel)) {
        return fail(context, DISTILE_ERROR_BAD_WEIGHTS,
                    "%s: the weights are of an operator with %d -> %d channels in %d groups and a %d x %d kernel "
                    "(layout %s); '%s' has %d -> %d in %d and %d x %d (layout %s)",
                    run_call, args.weights->in_channels, args.weights->out_channels, args.weights->groups,
                    args.weights->kernel_h, args.weights->kernel_w, args.weights->layout.c_str(),
                    kernel.polykernel->name, conv.in_channels, conv.out_channels, conv.groups, conv.kernel_h,
                    conv.kernel_w, kernel.polykernel->layout);
    }
    if (!(args.weights->phases == polyphase_of(kernel.polykernel->kind, conv))) {
        return fail(context, DISTILE_ERROR_BAD_WEIGHTS,
                    "%s: the weights were packed for another kind of operator than '%s', or for another stride, scale, "
                    "padding or dilation",
                    run_call, kernel.polykernel->name);
    }
    return check_output_mask(context, context, run_call, args.mask, *args.output);
}

distile_status run_variant(distile_kernel &kernel, const distile_run_args &args, int32_t index) {
    const distile_conv2d &conv = kernel.polykernel->conv2d;
    const Variant &variant = kernel.variants[index];
    if (variant.external.run) {
        return run_external(kernel, args, variant);
    }
    distile_context *context = kernel.context;
    const distile_tensor &input = *args.input, &output = *args.output;
    const distile_weights &weights = *args.weights;
    const Bitmask &bits = args.mask->bits;

    const OperatorKind &kind = *find_operator_kind(kernel.polykernel->kind);
    const PixelRange readable_columns = {-int64_t{input.border_left}, int64_t{input.width} + input.border_right};
    const PixelRange readable_rows = {-int64_t{input.border_top}, int64_t{input.height} + input.border_bottom};
    const TileRange columns =
        interior_tiles(kind.interior(columns_of(conv), readable_columns), output.width, variant.tile_w);
    const TileRange rows = interior_tiles(kind.interior(rows_of(conv), readable_rows), output.height, variant.tile_h);
    distile_mask &listed = variant.dense ? kernel.full_mask(bits) : *args.mask;
    const TileList tiles =
        listed.list({variant.tile_h, variant.tile_w}, {columns.first, columns.last, rows.first, rows.last});
    if (tiles.count * variant.tile_h * variant.tile_w > largest_span) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: %lld tiles of %d x %d are more than 2^31 pixels", run_call,
                    static_cast<long long>(tiles.count), variant.tile_h, variant.tile_w);
    }

    if (args.inactive == DISTILE_ZERO && !is_full(*args.mask)) {
        zero_inactive(output, *args.mask);
    }
    if (tiles.count == 0) {
        return DISTILE_OK;
    }

    TensorBuffer input_buffer(input), output_buffer(without_border(output));
    TensorBuffer residual_buffer(without_border(conv.residual != 0 ? *args.residual : output));
    const int32_t filter_channels = conv.in_channels / conv.groups;
    const int32_t column = DISTILE_CPU_CHANNEL_BLOCK * filter_channels, row = column * weights.columns;
    halide_dimension_t weights_dims[] = {{0, DISTILE_CPU_CHANNEL_BLOCK, 1},
                                         {0, filter_channels, DISTILE_CPU_CHANNEL_BLOCK},
                                         {0, weights.columns, column},
                                         {0, weights.rows, row},
                                         {0, weights.num_blocks(), row * weights.rows}};
    halide_dimension_t bias_dims[] = {{0, DISTILE_CPU_CHANNEL_BLOCK * weights.num_blocks(), 1}};
    // The kernels read the list as [tile, 2] and the 64-bit words as pairs of 32-bit ones.
    halide_dimension_t tiles_dims[] = {{0, static_cast<int32_t>(tiles.count), 1},
                                       {0, 2, static_cast<int32_t>(tiles.capacity)}};
    const int32_t words_per_row = 2 * bits.words_per_row();
    halide_dimension_t bits_dims[] = {
        {0, words_per_row, 1}, {0, bits.height, words_per_row}, {0, bits.batch, words_per_row * bits.height}};
    halide_buffer_t weights_buffer =
        make_buffer(const_cast<ChannelBlock *>(weights.filter.data()), halide_type_of<float>(), 5, weights_dims);
    halide_buffer_t bias_buffer =
        make_buffer(const_cast<ChannelBlock *>(weights.bias.data()), halide_type_of<float>(), 1, bias_dims);
    halide_buffer_t tiles_buffer =
        make_buffer(const_cast<uint32_t *>(tiles.xy), halide_type_of<uint32_t>(), 2, tiles_dims);
    halide_buffer_t bits_buffer =
        make_buffer(const_cast<uint64_t *>(bits.words), halide_type_of<uint32_t>(), 3, bits_dims);

    void *user_context = static_cast<distile_hooks *>(context);
    auto num_interior = static_cast<int32_t>(tiles.num_interior), num_tiles = static_cast<int32_t>(tiles.count);
    int32_t threads = context->options.threads;
    bool store_tiles = args.store == DISTILE_STORE_TILES;
    void *arguments[12] = {&user_context,   &input_buffer.buffer, &tiles_buffer, &bits_buffer,
                           &num_interior,   &num_tiles,           &threads,      &store_tiles,
                           &weights_buffer, &bias_buffer};
    int32_t count = 10;
    if (conv.residual != 0) {
        arguments[count++] = &residual_buffer.buffer;
    }
    arguments[count] = &output_buffer.buffer;
    context->kernel_failed.store(false, std::memory_order_relaxed);
    const int code = variant.run(arguments);
    const bool no_memory = code == halide_error_code_out_of_memory;
    return code == 0 ? DISTILE_OK
                     : fail_variant(kernel, run_call, no_memory ? DISTILE_ERROR_OUT_OF_MEMORY : DISTILE_ERROR_KERNEL,
                                    variant, code);
}

}  // namespace distile

distile_border distile_kernel_border(const distile_kernel *kernel) {
    distile_border border{};
    if (kernel) {
        const distile_conv2d &conv = kernel->polykernel->conv2d;
        border = {conv.pad_top, conv.pad_bottom, conv.pad_left, conv.pad_right};
        if (const auto phases = distile::polyphase_of(kernel->polykernel->kind, conv)) {
            border = {phases->rows.border_before(), phases->rows.border_after(), phases->columns.border_before(),
                      phases->columns.border_after()};
        }
    }
    return border;
}

distile_tensor distile_tensor_make(void *data, int32_t batch, int32_t height, int32_t width, int32_t channels) {
    distile_tensor tensor{};
    tensor.data = data;
    tensor.dtype = DISTILE_FLOAT32;
    tensor.batch = batch;
    tensor.height = height;
    tensor.width = width;
    tensor.channels = channels;
    tensor.stride_w = channels;
    tensor.stride_h = int64_t{width} * channels;
    // Of extents that no tensor has the product may be too large; the calls refuse them.
    tensor.stride_n = static_cast<int64_t>(static_cast<uint64_t>(tensor.stride_h) * static_cast<uint64_t>(height));
    return tensor;
}
