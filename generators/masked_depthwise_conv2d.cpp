/** \file
 * Masked depthwise 2-D convolution, channels innermost:
 *
 *     output(co, x, y, n) = epilogue(bias(co) + sum over kx, ky of weights * input(co) [+ residual])
 *
 * at the active pixels of the tiles in a list (virtual_pixels.h). Each input value serves only one output channel, so
 * staging would cost more than it saves: at a border, each phantom read becomes a zero.
 */
#include "generators/masked_filter.h"

namespace {

using namespace Halide;

class MaskedDepthwiseConv2d : public Generator<MaskedDepthwiseConv2d>,
                              public distile::MaskedFilter,
                              public distile::WindowParams {
public:
    GeneratorParam<int> channels{"channels", 64, 1, 1 << 20};

    void configure() {
        set_filter_types();
        reads_channels_once = true;
        add_last_arguments(*this);
    }

    void generate() {
        define_output([this](const Stage &stage) { return sums(stage); });
        constrain_buffers(channels, channels);
        constrain_filter(1, channels, kernel_w, kernel_h);
    }

    void schedule() {
        estimate_input(channels, estimated_extent * stride_w.value(), estimated_extent * stride_h.value());
        estimate_output(channels, estimated_extent, estimated_extent);
        estimate_filter(1, channels, kernel_w, kernel_h);
    }

private:
    Func sums(const Stage &stage) {
        RDom taps(0, kernel_w, 0, kernel_h, stage.name + "_taps");
        Func accumulator(stage.name + "_accumulator");
        accumulator(co, p) = bias(co);
        accumulator(co, p) +=
            weight(co, 0, taps.x, taps.y) * load_window(window(), pixel_at(p, stage.last), channel_of_lane(channels),
                                                        taps.x * dilation_w, taps.y * dilation_h, stage.in_place);
        return accumulator;
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedDepthwiseConv2d, masked_depthwise_conv2d)
