#include "tests/support/reference.h"
#include "runtime/kinds/operator_kind.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

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

}  // namespace

void set_operator(ReferenceArgs &args, const distile_polykernel &polykernel) {
    args.kind = polykernel.kind;
    args.conv = convolution_of(polykernel);
    args.dtype = type_of(polykernel);
    if (find_operand(polykernel, DISTILE_ROLE_WEIGHTS)) {
        args.weights_dtype = stored_type(*find_layout(polykernel.variants[0].layout), polykernel, DISTILE_ROLE_WEIGHTS);
    }
}

ReferenceOutput reference_masked_conv2d(const ReferenceArgs &args) {
    const distile_conv2d &conv = args.conv;
    const distile_tensor &input = args.input;
    const int32_t height = reference_output_height(conv, input.height, args.kind);
    const int32_t width = reference_output_width(conv, input.width, args.kind);
    const int64_t pixels = int64_t{input.batch} * height * width;
    distile_weights_source weights{};
    weights.filter = args.filter.data();
    weights.order = DISTILE_HWIO;
    weights.bias = args.bias.empty() ? nullptr : args.bias.data();
    const Conv2dReference reference(conv, weights, args.kind, args.weights_dtype);
    ReferenceOutput output;
    output.states.resize(pixels);
    output.values.resize(pixels * conv.out_channels);
    output.exact.resize(pixels * conv.out_channels);

    int64_t pixel = 0;
    std::vector<double> sums;
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
                reference.sums(input, args.residual, n, y, x, sums);
                output.states[pixel] = PixelState::Computed;
                for (int32_t o = 0; o < conv.out_channels; o++) {
                    output.largest = std::max(output.largest, std::abs(sums[o]));
                    const double exact = apply_epilogue(conv.epilogue, sums[o], args.slope);
                    output.exact[pixel * conv.out_channels + o] = exact;
                    output.values[pixel * conv.out_channels + o] = round_to(args.dtype, static_cast<float>(exact));
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
