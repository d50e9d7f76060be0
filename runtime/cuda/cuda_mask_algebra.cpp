// Masks from masks on a GPU.
#include "cuda_mask.h"
#include "kernels/mask_algebra.h"
#include "window_axis.h"
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

BitOperation operation_of(Combination how) {
    switch (how) {
    case Combination::Unite:
        return BitOperation::Unite;
    case Combination::Intersect:
        return BitOperation::Intersect;
    case Combination::Subtract:
        return BitOperation::Subtract;
    case Combination::Invert:
        break;
    }
    return BitOperation::Invert;
}

}  // namespace

void CudaMask::set_window(const MaskShape &to, distile_mask &from, const distile_window &given, Direction direction) {
    const bool to_input = direction == Direction::ToInput;
    const bool upsampled = given.kind == DISTILE_WINDOW_UPSAMPLED;
    // A transposed convolution is the convolution from its output to its input.
    const bool scatters = to_input != (given.kind == DISTILE_WINDOW_TRANSPOSED);
    const Window window = window_of(given);
    const auto &source = static_cast<CudaMask &>(from);
    DeviceBits operand = source.bits_;
    const Passage down(window.y, scatters, upsampled, scatters ? to.height : operand.height);
    const Passage along(window.x, scatters, upsampled, scatters ? to.width : operand.width);
    if (&source == this) {
        const size_t bytes = num_words() * sizeof(uint32_t);
        device_.operand->reserve(bytes);
        device_.check(device_.driver.cuMemcpyDtoDAsync(device_.operand->address(), words_.address(), bytes,
                                                       device_.caller_stream),
                      "cuMemcpyDtoDAsync");
        operand.words = device_.operand->as<uint32_t>();
    }
    BitTransfer transfer{};
    transfer.from = operand;
    transfer.column = column_of(down);
    transfer.row = row_of(along, operand.width, to.width);
    transfer.height = make_divisor(static_cast<uint32_t>(to.height));
    transfer.num_rows = static_cast<uint32_t>(int64_t{to.batch} * to.height);
    transfer.words_per_row = (to.width + 31) / 32;
    // Short rows get small teams, so no thread is idle.
    transfer.team = 1;
    while (2 * transfer.team <= std::min(static_cast<uint32_t>(transfer.row.words), block_threads)) {
        transfer.team *= 2;
    }
    const uint32_t teams = block_threads / transfer.team;
    LaunchGrid grid = grid_of(uint64_t{transfer.num_rows} * transfer.team);
    grid.shared_bytes = static_cast<uint32_t>(sizeof(uint32_t) * 2 * teams * transfer.row.words);
    set_words(to, [&](uint32_t *words, Listing &) {
        device_.launch(device_.kernels->transfer_bits, device_.caller_stream, grid, transfer, words);
    });
}

void CudaMask::set_combination(Combination how, distile_mask &a, distile_mask *b) {
    const auto &left = static_cast<CudaMask &>(a), &right = b ? static_cast<CudaMask &>(*b) : left;
    const DeviceBits &bits = left.bits_;
    const BitCombination combination = {bits.words,        right.bits_.words,
                                        operation_of(how), make_divisor(static_cast<uint32_t>(bits.words_per_row)),
                                        left.num_words(),  ~0u >> (32 * bits.words_per_row - bits.width)};
    set_words(MaskShape(left.shape), [&](uint32_t *words, Listing &) {
        device_.launch(device_.kernels->combine_bits, device_.caller_stream, grid_of(combination.num_words),
                       combination, words);
    });
}

}  // namespace distile
