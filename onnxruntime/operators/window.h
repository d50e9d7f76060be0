/** \file
 * The windows of convolutions and of pooling, from the attributes of their nodes.
 */
#ifndef DISTILE_ONNXRUNTIME_WINDOW_H
#define DISTILE_ONNXRUNTIME_WINDOW_H

#include "onnxruntime/tensors.h"
#include <algorithm>
#include <distile/mask_algebra.h>

namespace distile::ort {

/** What output pixels read, and the padding at the other edges. */
struct NodeWindow {
    distile_window window;
    int32_t pad_bottom, pad_right;
};

/** `kernel` and `steps` are along rows and columns; steps are strides, or scales of an upsampled input. Fails where one
 * of them or a dilation is 0. */
inline NodeWindow window_of(const NodeView &node, const Shape &kernel, const Shape &steps) {
    const Shape dilations = node.integers("dilations", {1, 1}), pads = node.integers("pads", {0, 0, 0, 0});
    NodeWindow of{};
    distile_window &window = of.window;
    window.kernel_h = number(kernel[0], "the kernel's height");
    window.kernel_w = number(kernel[1], "the kernel's width");
    window.stride_h = number(steps[0], "a stride");
    window.stride_w = number(steps[1], "a stride");
    window.dilation_h = number(dilations[0], "a dilation");
    window.dilation_w = number(dilations[1], "a dilation");
    window.pad_top = number(pads[0], "padding");
    window.pad_left = number(pads[1], "padding");
    of.pad_bottom = number(pads[2], "padding");
    of.pad_right = number(pads[3], "padding");
    if (std::min({window.kernel_h, window.kernel_w, window.stride_h, window.stride_w, window.dilation_h,
                  window.dilation_w}) < 1) {
        fail("a kernel, a stride or a dilation of node '" + node.name() + "' is 0");
    }
    return of;
}

}  // namespace distile::ort

#endif
