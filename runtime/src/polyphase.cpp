#include "polyphase.h"
#include "operators.h"

namespace distile {

namespace {

template<bool nearest> PolyphaseAxis phases_of(const Axis &axis) {
    return {static_cast<int>(axis.kernel),    static_cast<int>(axis.stride),   static_cast<int>(axis.pad_before),
            static_cast<int>(axis.pad_after), static_cast<int>(axis.dilation), nearest};
}

template<bool nearest> int64_t output_extent(const Axis &axis, int64_t input) {
    return std::max<int64_t>(phases_of<nearest>(axis).output_extent(input), 0);
}

/** Whole virtual pixels, whether all of their output pixels exist or not. */
template<bool nearest> PixelRange interior(const Axis &axis, const PixelRange &readable) {
    const PolyphaseAxis phases = phases_of<nearest>(axis);
    const int64_t first = std::max<int64_t>(readable.first - phases.first_read(), 0);
    const int64_t last = std::max<int64_t>(readable.last - phases.last_read(), 0);
    return {first * axis.stride, last * axis.stride};
}

}  // namespace

const OperatorKind conv_transpose2d_kind = {output_extent<false>, interior<false>};
const OperatorKind upsample_conv2d_kind = {output_extent<true>, interior<true>};

}  // namespace distile
