/** \file
 * Masked linear layer over tokens:
 *
 *     output(co, token, 0, n) = epilogue(bias(co) + sum over ci of weights * input(ci, token, 0, n) [+ residual])
 *
 * at the active tokens of the tiles in a list. Tokens are the pixels of images of height 1, so this is a 1x1
 * convolution (masked_conv.h).
 */
#include "generators/masked_conv.h"

namespace {

using namespace Halide;

class MaskedLinear : public Generator<MaskedLinear>, public distile::MaskedConv {
public:
    GeneratorParam<int> in_channels{"in_channels", 64, 1, 1 << 20};
    GeneratorParam<int> out_channels{"out_channels", 64, 1, 1 << 20};

    void configure() {
        set_filter_types();
        add_last_arguments(*this);
    }

    void generate() {
        define_conv(conv());
    }

    void schedule() {
        estimate_conv(conv(), estimated_tokens, 1);
    }

private:
    // A vision transformer's for 224 x 224 pixels.
    static constexpr int estimated_tokens = 197;

    Conv conv() const {
        return {in_channels, out_channels, 1, {}};
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedLinear, masked_linear)
