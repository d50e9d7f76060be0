/** \file
 * The axes of a window over rows of bits, shared by all devices.
 */
#ifndef DISTILE_WINDOW_AXIS_H
#define DISTILE_WINDOW_AXIS_H

#include <algorithm>
#include <cstdint>
#include <distile/mask_algebra.h>

namespace distile {

/** One axis of a window: output o reads the inputs o * stride - pad + i * dilation, 0 <= i < kernel. */
struct WindowAxis {
    int32_t kernel, stride, pad, dilation;
};

struct Window {
    WindowAxis y, x;
};

inline Window window_of(const distile_window &window) {
    return {{window.kernel_h, window.stride_h, window.pad_top, window.dilation_h},
            {window.kernel_w, window.stride_w, window.pad_left, window.dilation_w}};
}

/** Drops the taps that never meet an input of this extent. */
inline WindowAxis clip(const WindowAxis &axis, int32_t extent) {
    return {std::min(axis.kernel, (axis.pad + extent - 1) / axis.dilation + 1), axis.stride, axis.pad, axis.dilation};
}

/** Calls step(distance) for a series of distances. Applying row[x] |= row[x + distance] for each in turn makes row[x]
 * the union of row[x + i * dilation], 0 <= i < kernel. */
template<typename Step> void for_each_distance(const WindowAxis &axis, Step step) {
    for (int32_t done = 1; done < axis.kernel;) {
        const int32_t more = std::min(done, axis.kernel - done);
        step(int64_t{more} * axis.dilation);
        done += more;
    }
}

}  // namespace distile

#endif
