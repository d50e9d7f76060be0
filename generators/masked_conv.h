/** \file
 * The algorithm of masked convolutions, which linear layers share as convolutions of one pixel, channels innermost:
 *
 *     output(co, x, y, n) = epilogue(bias(co) + sum over ci, kx, ky of weights * input [+ residual])
 *
 * at the active pixels of the tiles in a list (virtual_pixels.h). With groups, ci runs over the input channels of the
 * output channel's group alone. On a CPU the tiles at a border stage their input, so that phantom reads are replaced by
 * zeros once for all output channels. All tiles do where the input is not float32, so that it is converted once.
 *
 * A GPU stages every input in shared memory anyway. What it stages is read through a Func over the tiles' *windows*:
 * all the input that any pixel of a tile reads, which pixels and taps share. A schedule keeps either the windows or the
 * pixels of one tap in shared memory; the other Func is inlined.
 */
#ifndef DISTILE_MASKED_CONV_H
#define DISTILE_MASKED_CONV_H

#include "masked_filter.h"

namespace distile {

class MaskedConv : public MaskedFilter {
protected:
    MaskedConv() = default;
    ~MaskedConv() = default;

    struct Conv {
        int in_channels, out_channels, groups;
        Window window;
    };

    /** For generate(). Groups must divide both numbers of channels. */
    void define_conv(const Conv &conv);
    /** For schedule(): with the extents of the output. */
    void estimate_conv(const Conv &conv, int width, int height);

private:
    Halide::Var ci{"ci"}, kx{"kx"}, ky{"ky"}, tile{"tile"}, wx{"wx"}, wy{"wy"};

    Halide::Expr first_channel(const Conv &conv) const;
    Halide::Func sums(const Conv &conv, const Stage &stage);
    Halide::Func staged_input(const Conv &conv, const Stage &stage);
};

}  // namespace distile

#endif
