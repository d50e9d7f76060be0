#include "reference.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

int32_t output_extent(int32_t input, int32_t pads, int32_t kernel, int32_t stride, int32_t dilation) {
    int32_t pixels = 0;
    while (pixels * stride + dilation * (kernel - 1) < input + pads) {
        pixels++;
    }
    return pixels;
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

int32_t reference_output_height(const distile_conv2d &conv, int32_t input_height) {
    return output_extent(input_height, conv.pad_top + conv.pad_bottom, conv.kernel_h, conv.stride_h, conv.dilation_h);
}

int32_t reference_output_width(const distile_conv2d &conv, int32_t input_width) {
    return output_extent(input_width, conv.pad_left + conv.pad_right, conv.kernel_w, conv.stride_w, conv.dilation_w);
}

ReferenceOutput reference_masked_conv2d(const ReferenceArgs &args) {
    const distile_conv2d &conv = args.conv;
    const distile_tensor &input = args.input;
    const int32_t height = reference_output_height(conv, input.height);
    const int32_t width = reference_output_width(conv, input.width);
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
                        const int32_t in_y = y * conv.stride_h - conv.pad_top + row * conv.dilation_h;
                        const int32_t in_x = x * conv.stride_w - conv.pad_left + column * conv.dilation_w;
                        const bool inside = in_y >= 0 && in_y < input.height && in_x >= 0 && in_x < input.width;
                        for (int32_t i = 0; i < conv.in_channels; i++, weight += conv.out_channels) {
                            const double value = inside ? value_at(input, n, in_y, in_x, i) : 0;
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
