/** \file
 * The algorithm of masked convolutions, channels innermost. Linear layers share it as 1x1 convolutions:
 *
 *     output(co, x, y, n) = epilogue(bias(co) + sum over ci, kx, ky of weights * input [+ residual])
 *
 * at the active pixels of the tiles in a list (virtual_pixels.h). With groups, ci runs over the input channels of the
 * output channel's group, and groups have one of the forms of GroupBlocks. On a CPU, border tiles stage their input, so
 * phantom reads become zeros once for all output channels. With diagonals, an accumulator has a sum for each input
 * channel and diagonal, and the output adds those of its channel. Each input value then serves few sums, so border
 * tiles read it as those of a depthwise convolution do.
 *
 * A GPU stages every input in shared memory. Staging reads through a Func over the tiles' *windows*: all input that a
 * tile's pixels read, shared by pixels and taps. A schedule keeps either the windows or the pixels of one tap in shared
 * memory and inlines the other Func.
 */
#ifndef DISTILE_MASKED_CONV_H
#define DISTILE_MASKED_CONV_H

#include "generators/masked_filter.h"
#include "runtime/kinds/group_blocks.h"

namespace distile {

class MaskedConv : public MaskedFilter {
protected:
    MaskedConv() = default;
    ~MaskedConv() = default;

    struct Conv {
        int in_channels, out_channels, groups;
        Window window;
    };

    /** For configure(), before adding the last arguments. Groups must divide both channel counts. */
    void set_groups(const Conv &conv, const Halide::Target &target);
    /** For generate(). */
    void define_conv(const Conv &conv);
    /** For schedule(). `width` and `height` are the output's. */
    void estimate_conv(const Conv &conv, int width, int height);

private:
    Halide::Var ci{"ci"}, diagonal{"diagonal"}, kx{"kx"}, ky{"ky"}, tile{"tile"}, wx{"wx"}, wy{"wy"};

    GroupReaders readers = GroupReaders::Vectors;

    GroupBlocks blocks_of(const Conv &conv) const;
    Halide::Expr first_channel(const Conv &conv) const;
    Halide::Func sums(const Conv &conv, const Stage &stage);
    Halide::Func sums_of_diagonals(const Conv &conv, const Stage &stage);
    Halide::Expr sum_of_diagonals(const Conv &conv, const Halide::Func &accumulator,
                                  const std::vector<Halide::Expr> &place);
    Halide::Func staged_input(const Conv &conv, const Stage &stage);
};

}  // namespace distile

#endif
