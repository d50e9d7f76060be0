#include "operators.h"

namespace distile {

namespace {

int64_t output_extent(const Axis &axis, int64_t input) {
    const int64_t room = input + axis.pad_before + axis.pad_after - axis.dilation * (axis.kernel - 1) - 1;
    return room < 0 ? 0 : room / axis.stride + 1;
}

PixelRange interior(const Axis &axis, const PixelRange &readable) {
    // Output pixel x reads from x * stride - pad to x * stride - pad + dilation * (kernel - 1).
    const int64_t first_read = readable.first + axis.pad_before;
    const int64_t last_read = readable.last - 1 + axis.pad_before - axis.dilation * (axis.kernel - 1);
    return {first_read <= 0 ? 0 : (first_read + axis.stride - 1) / axis.stride,
            last_read < 0 ? 0 : last_read / axis.stride + 1};
}

}  // namespace

const OperatorKind conv2d_kind = {output_extent, interior};

}  // namespace distile
