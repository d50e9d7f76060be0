#include "reference.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

/** The geometry of an operator along one axis. */
struct Axis {
    int32_t kernel, stride, dilation, pad_before, pad_after;
};

Axis rows_of(const distile_conv2d &conv) {
    return {conv.kernel_h, conv.stride_h, conv.dilation_h, conv.pad_top, conv.pad_bottom};
}

Axis columns_of(const distile_conv2d &conv) {
    return {conv.kernel_w, conv.stride_w, conv.dilation_w, conv.pad_left, conv.pad_right};
}

int32_t output_extent(distile_operator_kind kind, const Axis &axis, int32_t input) {
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        const int32_t uncut = (input - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1;
        return std::max(uncut - axis.pad_before - axis.pad_after, 0);
    }
    const bool upsampled = kind == DISTILE_MASKED_UPSAMPLE_CONV2D;
    const int32_t stride = upsampled ? 1 : axis.stride, enlarged = upsampled ? input * axis.stride : input;
    int32_t pixels = 0;
    while (pixels * stride + axis.dilation * (axis.kernel - 1) < enlarged + axis.pad_before + axis.pad_after) {
        pixels++;
    }
    return pixels;
}

/** What every position of the kernel multiplies for every output along an axis: [output][position], -1 for zeros. */
std::vector<std::vector<int32_t>> inputs_along(distile_operator_kind kind, const Axis &axis, int32_t input) {
    const int32_t outputs = output_extent(kind, axis, input);
    std::vector<std::vector<int32_t>> inputs(outputs, std::vector<int32_t>(axis.kernel, -1));
    const bool transposed = kind == DISTILE_MASKED_CONV_TRANSPOSE2D;
    for (int32_t position = 0; position < axis.kernel; position++) {
        // A transposed convolution is a convolution from its output to its input.
        for (int32_t from = 0; from < (transposed ? input : outputs); from++) {
            if (kind == DISTILE_MASKED_UPSAMPLE_CONV2D) {
                const int32_t enlarged = from - axis.pad_before + position * axis.dilation;
                if (enlarged >= 0 && enlarged < input * axis.stride) {
                    inputs[from][position] = enlarged / axis.stride;
                }
                continue;
            }
            const int32_t to = from * axis.stride - axis.pad_before + position * axis.dilation;
            if (transposed && to >= 0 && to < outputs) {
                inputs[to][position] = from;
            } else if (!transposed && to >= 0 && to < input) {
                inputs[from][position] = to;
            }
        }
    }
    return inputs;
}

float value_at(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x, int32_t channel) {
    return static_cast<const float *>(
        tensor.data)[n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w + channel];
}

bool tile_is_active(const std::vector<uint8_t> &mask, int32_t n, int32_t height, int32_t width, int32_t tile_y,
                    int32_t tile_x, int32_t tile_h, int32_t tile_w) {
    for (int32_t y = tile_y; y < std::min(tile_y + tile_h, height); y++) {
        for (int32_t x = tile_x; x < std::min(tile_x + tile_w, width); x++) {
            if (mask[(int64_t{n} * height + y) * width + x]) {
                return true;
            }
        }
    }
    return false;
}

double apply_epilogue(double value, distile_epilogue epilogue) {
    switch (epilogue) {
    case DISTILE_EPILOGUE_NONE:
        return value;
    case DISTILE_EPILOGUE_RELU:
        return std::max(value, 0.0);
    case DISTILE_EPILOGUE_RELU6:
        return std::min(std::max(value, 0.0), 6.0);
    case DISTILE_EPILOGUE_SILU:
        return value / (1 + std::exp(-value));
    }
    return value;
}

}  // namespace

int32_t reference_output_height(const distile_conv2d &conv, int32_t input_height, distile_operator_kind kind) {
    return output_extent(kind, rows_of(conv), input_height);
}

int32_t reference_output_width(const distile_conv2d &conv, int32_t input_width, distile_operator_kind kind) {
    return output_extent(kind, columns_of(conv), input_width);
}

ReferenceOutput reference_masked_conv2d(const ReferenceArgs &args) {
    const distile_conv2d &conv = args.conv;
    const distile_tensor &input = args.input;
    const auto rows = inputs_along(args.kind, rows_of(conv), input.height);
    const auto columns = inputs_along(args.kind, columns_of(conv), input.width);
    const auto height = static_cast<int32_t>(rows.size()), width = static_cast<int32_t>(columns.size());
    const int64_t pixels = int64_t{input.batch} * height * width;
    ReferenceOutput output;
    output.states.resize(pixels);
    output.values.resize(pixels * conv.out_channels);

    int64_t pixel = 0;
    std::vector<double> sums(conv.out_channels);
    for (int32_t n = 0; n < input.batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++, pixel++) {
                const bool in_tile = args.dense || tile_is_active(args.mask, n, height, width, y - y % args.tile_h,
                                                                  x - x % args.tile_w, args.tile_h, args.tile_w);
                const bool stored = args.mask[pixel] || (args.store == DISTILE_STORE_TILES && in_tile);
                if (!stored) {
                    output.states[pixel] = args.inactive == DISTILE_ZERO ? PixelState::Zeroed : PixelState::Kept;
                    continue;
                }
                for (int32_t o = 0; o < conv.out_channels; o++) {
                    sums[o] = args.bias.empty() ? 0 : args.bias[o];
                    if (args.residual) {
                        sums[o] += value_at(*args.residual, n, y, x, o);
                    }
                }
                const float *weight = args.filter.data();
                for (int32_t row = 0; row < conv.kernel_h; row++) {
                    for (int32_t column = 0; column < conv.kernel_w; column++) {
                        const int32_t in_y = rows[y][row], in_x = columns[x][column];
                        const bool inside = in_y >= 0 && in_x >= 0;
                        if (!inside) {
                            weight += int64_t{conv.in_channels} * conv.out_channels;
                            continue;
                        }
                        for (int32_t i = 0; i < conv.in_channels; i++, weight += conv.out_channels) {
                            const double value = value_at(input, n, in_y, in_x, i);
                            for (int32_t o = 0; o < conv.out_channels; o++) {
                                sums[o] += value * weight[o];
                            }
                        }
                    }
                }
                output.states[pixel] = PixelState::Computed;
                for (int32_t o = 0; o < conv.out_channels; o++) {
                    output.largest = std::max(output.largest, std::abs(sums[o]));
                    output.values[pixel * conv.out_channels + o] =
                        static_cast<float>(apply_epilogue(sums[o], conv.epilogue));
                }
            }
        }
    }
    return output;
}

int64_t reference_active_tiles(const std::vector<uint8_t> &mask, int32_t batch, int32_t height, int32_t width,
                               int32_t tile_h, int32_t tile_w) {
    int64_t tiles = 0;
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < height; y += tile_h) {
            for (int32_t x = 0; x < width; x += tile_w) {
                tiles += tile_is_active(mask, n, height, width, y, x, tile_h, tile_w) ? 1 : 0;
            }
        }
    }
    return tiles;
}

}  // namespace distile
