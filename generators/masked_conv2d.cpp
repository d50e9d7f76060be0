/** \file
 * Masked 2-D convolution (masked_conv.h).
 */
#include "generators/masked_conv.h"

namespace {

using namespace Halide;

class MaskedConv2d : public Generator<MaskedConv2d>, public distile::MaskedConv, public distile::WindowParams {
public:
    GeneratorParam<int> in_channels{"in_channels", 64, 1, 1 << 20};
    GeneratorParam<int> out_channels{"out_channels", 64, 1, 1 << 20};
    // Divides both channel counts: output channels read only the input channels of their group.
    GeneratorParam<int> groups{"groups", 1, 1, 1 << 20};

    void configure() {
        if (in_channels.value() % groups.value() != 0 || out_channels.value() % groups.value() != 0) {
            throw CompileError("masked_conv2d: groups must divide in_channels and out_channels.\n");
        }
        set_filter_types();
        set_groups(conv(), context().target());
        add_last_arguments(*this);
    }

    void generate() {
        define_conv(conv());
    }

    void schedule() {
        estimate_conv(conv(), estimated_extent, estimated_extent);
    }

private:
    Conv conv() const {
        return {in_channels, out_channels, groups, window()};
    }
};

}  // namespace

HALIDE_REGISTER_GENERATOR(MaskedConv2d, masked_conv2d)
