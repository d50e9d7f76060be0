#include "runtime/gpu/bit_steps.h"
#include "runtime/mask/window_axis.h"
#include <algorithm>

namespace distile {

namespace {

/** One axis of a window for rows of bits: a convolution, or a stride-1 convolution with an upsampling before or after
 * it. */
struct Passage {
    Passage(const WindowAxis &given, bool scatters_, bool upsampled_, int32_t in_extent)
        : scatters(scatters_), upsampled(upsampled_), inputs(upsampled_ ? in_extent * given.stride : in_extent),
          axis(clip(given, inputs)) {
    }

    /** The number of input positions, including the padding before them. */
    int32_t places() const {
        return axis.pad + inputs;
    }
    int32_t span() const {
        return (axis.kernel - 1) * axis.dilation;
    }

    /** Whether bits are first spread a stride apart, rather than sampled a stride apart at the end. */
    bool moves_apart() const {
        return scatters != upsampled;
    }

    bool scatters;  ///< From outputs to inputs.
    bool upsampled;
    int32_t inputs;  ///< After the upsampling.
    WindowAxis axis;
};

BitColumn column_of(const Passage &passage) {
    const auto &[kernel, stride, pad, dilation] = passage.axis;
    const bool apart = passage.moves_apart();
    BitColumn column{};
    column.taps = kernel;
    column.dilation = dilation;
    column.scale = apart ? 1 : stride;
    column.start = passage.scatters ? pad - passage.span() : -pad;
    column.before = passage.upsampled && !passage.scatters ? stride - 1 : 0;
    column.behind = passage.upsampled && passage.scatters ? stride - 1 : 0;
    column.divisor = make_divisor(apart ? static_cast<uint32_t>(stride) : 1);
    return column;
}

BitRow row_of(const Passage &passage, int32_t from_width, int32_t to_width) {
    const auto &[kernel, stride, pad, dilation] = passage.axis;
    const bool apart = passage.moves_apart();
    BitRow row{};
    row.spread = apart ? stride : 1;
    row.take = apart ? 1 : stride;
    row.shift = passage.scatters ? -pad : pad;
    row.words = (passage.places() + 31) / 32;
    row.from_bits =
        std::min(from_width, (passage.scatters ? passage.places() - 1 : passage.inputs - 1) / row.spread + 1);
    row.to_bits = std::min(to_width, (passage.scatters ? passage.inputs - 1 : passage.places() - 1) / row.take + 1);
    const auto add_up = [&](int64_t distance) { row.up[row.num_up++] = static_cast<int32_t>(distance); };
    const auto add_down = [&](int64_t distance) { row.down[row.num_down++] = static_cast<int32_t>(distance); };
    const WindowAxis repetition = {passage.upsampled ? stride : 1, 1, 0, 1};
    if (passage.scatters) {
        for_each_distance(passage.axis, add_up);
        for_each_distance(repetition, add_down);
    } else {
        for_each_distance(repetition, add_up);
        for_each_distance(passage.axis, add_down);
    }
    return row;
}

}  // namespace

BitSteps bit_steps(const MaskShape &from, const MaskShape &to, const distile_window &given, Direction direction) {
    const bool to_input = direction == Direction::ToInput;
    const bool upsampled = given.kind == DISTILE_WINDOW_UPSAMPLED;
    // A transposed convolution is the convolution from its output to its input.
    const bool scatters = to_input != (given.kind == DISTILE_WINDOW_TRANSPOSED);
    const Window window = window_of(given);
    const Passage down(window.y, scatters, upsampled, scatters ? to.height : from.height);
    const Passage along(window.x, scatters, upsampled, scatters ? to.width : from.width);
    return {column_of(down), row_of(along, from.width, to.width)};
}

}  // namespace distile
