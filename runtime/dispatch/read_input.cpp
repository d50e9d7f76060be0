#include "runtime/dispatch/read_input.h"
#include "runtime/base/types.h"
#include "runtime/mask/window_axis.h"
#include "runtime/tensor/planner.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <iterator>
#include <limits>

namespace distile {

namespace {

int32_t clamped(int64_t value) {
    return static_cast<int32_t>(std::min<int64_t>(value, std::numeric_limits<int32_t>::max()));
}

/** An axis on which an active output pixel stands for all pixels of its tile, wherever it lies in it, and the input
 * starts `border` pixels earlier. May read more. */
WindowAxis widened(const WindowAxis &axis, distile_window_kind kind, int64_t tile, int64_t border) {
    const int64_t reach = (tile - 1) * (kind == DISTILE_WINDOW_CONV ? axis.stride : 1);
    const int64_t moved = kind == DISTILE_WINDOW_CONV         ? -border
                          : kind == DISTILE_WINDOW_TRANSPOSED ? border * axis.stride
                                                              : -border * axis.stride;
    const int64_t first = axis.pad + reach + moved;
    // A window has no negative padding: it starts at the first pixel instead.
    const int64_t more = std::max<int64_t>(-first, 0);
    if (reach == 0 && more == 0) {
        return {axis.kernel, axis.stride, clamped(first), axis.dilation};
    }
    const int64_t span = int64_t{axis.dilation} * (axis.kernel - 1) + 1;
    return {clamped(span + 2 * reach + more), axis.stride, clamped(first + more), 1};
}

bool reads_one_pixel(const WindowAxis &axis) {
    return axis.kernel == 1 && axis.stride == 1 && axis.pad == 0;
}

/** The pixels of an input and its border that a variant reads to compute its tiles of a mask, and perhaps some around
 * them; null for all pixels. Valid until the kernel's next call. */
distile_mask *needed_input(distile_kernel &kernel, const distile_variant &variant, distile_mask &mask,
                           const distile_tensor &input) {
    const distile_window window = kernel.kind.window(kernel.polykernel.op);
    const Window axes = window_of(window);
    const WindowAxis y = widened(axes.y, window.kind, variant.tile_h, input.border_top),
                     x = widened(axes.x, window.kind, variant.tile_w, input.border_left);
    const distile_tensor whole = with_border_inside(input);
    const MaskShape shape = {whole.batch, whole.height, whole.width};
    const int32_t extents[] = {y.kernel, x.kernel, y.pad, x.pad, shape.height, shape.width};
    if (variant.dense != 0 || *std::max_element(std::begin(extents), std::end(extents)) > largest_extent) {
        return nullptr;
    }
    if (reads_one_pixel(y) && reads_one_pixel(x) && shape == mask.shape) {
        return &mask;
    }
    if (!kernel.needed_input) {
        kernel.needed_input = kernel.context.device->make_mask();
    }
    kernel.needed_input->set_window(
        shape, mask, {y.kernel, x.kernel, y.stride, x.stride, y.dilation, x.dilation, y.pad, x.pad, window.kind},
        Direction::ToInput);
    return kernel.needed_input.get();
}

/** Whether to copy a plain input into one with a border. The code copies the windows of outputs at the edges tap by
 * tap; where edges are most of the image, one copy of the input takes less time. Measured: where the outputs that read
 * beyond the image, times the taps, are three times all outputs, as for a 3x3 convolution of 7x7 pixels. The answer
 * does not depend on the mask, so calls of a known shape need no new memory. */
bool should_add_border(const distile_kernel &kernel, const distile_tensor &input, const distile_tensor &output) {
    const PixelRect inside = kernel.kind.interior(
        kernel.polykernel.op, {{-int64_t{input.border_top}, int64_t{input.height} + input.border_bottom},
                               {-int64_t{input.border_left}, int64_t{input.width} + input.border_right}});
    const auto part_of = [](const PixelRange &range, int32_t extent) {
        const int64_t first = std::max<int64_t>(range.first, 0), last = std::min<int64_t>(range.last, extent);
        return static_cast<double>(std::max<int64_t>(last - first, 0)) / extent;
    };
    const double at_edges = 1 - part_of(inside.rows, output.height) * part_of(inside.columns, output.width);
    const Window axes = window_of(kernel.kind.window(kernel.polykernel.op));
    return at_edges * axes.y.kernel * axes.x.kernel >= 3;
}

distile_tensor with_border(distile_tensor tensor, const distile_border &border) {
    tensor.border_top = border.top;
    tensor.border_bottom = border.bottom;
    tensor.border_left = border.left;
    tensor.border_right = border.right;
    return tensor;
}

/** Zeros the border of a tensor, except the part that a smaller border covers. */
void zero_border(Device &device, const distile_tensor &tensor, const distile_tensor &covered) {
    const auto zero = [&](int64_t y, int64_t height, int64_t x, int64_t width) {
        if (height > 0 && width > 0) {
            distile_tensor part = without_border(tensor);
            part.data = static_cast<char *>(tensor.data) +
                        (y * tensor.stride_h + x * tensor.stride_w) * element_bytes(tensor.dtype);
            part.height = static_cast<int32_t>(height);
            part.width = static_cast<int32_t>(width);
            device.update_pixels(nullptr, part, nullptr, true);
        }
    };
    const int64_t left = covered.border_left, right = tensor.width + int64_t{covered.border_right};
    const int64_t top = covered.border_top, bottom = tensor.height + int64_t{covered.border_bottom};
    const int64_t width = int64_t{tensor.border_left} + tensor.width + tensor.border_right;
    zero(-tensor.border_top, tensor.border_top - top, -tensor.border_left, width);
    zero(bottom, tensor.height + tensor.border_bottom - bottom, -tensor.border_left, width);
    zero(-top, bottom + top, -tensor.border_left, tensor.border_left - left);
    zero(-top, bottom + top, right, tensor.width + tensor.border_right - right);
}

}  // namespace

ReadInput::ReadInput(distile_kernel &kernel, const distile_variant &variant, distile_mask &mask,
                     const distile_tensor &given, const distile_tensor &output)
    : tensor_(given) {
    // Only code for CPUs that says what it reads takes a copy.
    if (raw(variant.input_dtype) == 0 || raw(kernel.polykernel.device) != DISTILE_CPU) {
        return;
    }
    if (variant.input_dtype == given.dtype && !should_add_border(kernel, given, output)) {
        return;
    }
    const distile_border useful = kernel.kind.border(kernel.polykernel.op);
    const distile_border given_border = {
        std::min(given.border_top, useful.top), std::min(given.border_bottom, useful.bottom),
        std::min(given.border_left, useful.left), std::min(given.border_right, useful.right)};
    const distile_tensor from = with_border(given, given_border);

    Device &device = *kernel.context.device;
    const distile_output_spec copy = {from.batch,    from.height, from.width,   from.channels,      useful.top,
                                      useful.bottom, useful.left, useful.right, variant.input_dtype};
    memory_ = device.take_scratch(static_cast<size_t>(bytes_of(copy)));
    tensor_ = tensor_of(copy, memory_.get());
    zero_border(device, tensor_, from);
    const distile_tensor source = with_border_inside(from);
    device.update_pixels(needed_input(kernel, variant, mask, from),
                         with_border_inside(with_border(tensor_, given_border)), &source, false);
}

}  // namespace distile
