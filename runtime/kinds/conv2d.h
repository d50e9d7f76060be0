/** \file
 * Shared by all convolution kinds: distile_conv2d along each axis.
 */
#ifndef DISTILE_CONV2D_H
#define DISTILE_CONV2D_H

#include "runtime/kinds/filter.h"

namespace distile {

/** The geometry of a convolution along one axis, in pixels. */
struct Axis {
    int32_t kernel, stride, dilation, pad_before, pad_after;
};

inline const distile_conv2d &conv_of(const void *op) {
    return *static_cast<const distile_conv2d *>(op);
}
inline Axis rows_of(const distile_conv2d &conv) {
    return {conv.kernel_h, conv.stride_h, conv.dilation_h, conv.pad_top, conv.pad_bottom};
}
inline Axis columns_of(const distile_conv2d &conv) {
    return {conv.kernel_w, conv.stride_w, conv.dilation_w, conv.pad_left, conv.pad_right};
}

FilterExtents filter_extents(const distile_conv2d &conv);
/** What is wrong with the channels and groups; "" if nothing. */
std::string why_channels_illegal(const void *op);
distile_activation epilogue_of_conv(const void *op);
distile_window window_of_conv(const distile_conv2d &conv, distile_window_kind kind);
/** For instance "256 -> 256 channels in 1 groups, 3 x 3 kernel". */
std::string shape_of_filter(const void *op);
int64_t elements_of_filter(const void *op);

/** The output extent of a convolution along one axis; 0 if the output is empty. */
int64_t conv_output_extent(const Axis &axis, int64_t input);

}  // namespace distile

#endif
