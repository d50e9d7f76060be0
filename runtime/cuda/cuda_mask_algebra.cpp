// Masks from masks on a GPU.
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/mask_algebra.h"
#include "runtime/gpu/bit_steps.h"
#include <algorithm>

namespace distile {

namespace {

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
    const auto &source = static_cast<CudaMask &>(from);
    DeviceBits operand = source.bits_;
    const BitSteps steps = bit_steps(from.shape, to, given, direction);
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
    transfer.column = steps.column;
    transfer.row = steps.row;
    transfer.height = make_divisor(static_cast<uint32_t>(to.height));
    transfer.num_rows = static_cast<uint32_t>(int64_t{to.batch} * to.height);
    transfer.words_per_row = (to.width + 31) / 32;
    transfer.width = to.width;
    transfer.mirror = take_mirror();
    // Short rows get small teams, so few threads are idle: a thread for a word, and for every few bytes.
    constexpr uint32_t bytes_of_thread = 4, most_for_bytes = 32;
    const uint32_t for_bytes = std::min(static_cast<uint32_t>(to.width) / bytes_of_thread, most_for_bytes);
    const uint32_t most = std::max(static_cast<uint32_t>(transfer.row.words), transfer.mirror.bytes ? for_bytes : 1);
    transfer.team = 1;
    while (2 * transfer.team <= std::min(most, block_threads)) {
        transfer.team *= 2;
    }
    const uint32_t teams = block_threads / transfer.team;
    LaunchGrid grid = grid_of(uint64_t{transfer.num_rows} * transfer.team);
    grid.shared_bytes = static_cast<uint32_t>(sizeof(uint32_t) * 2 * teams * transfer.row.words);
    set_words(to, [&](uint32_t *words, Listing &) { launch(device_.kernels->transfer_bits, grid, transfer, words); });
}

void CudaMask::set_combination(Combination how, distile_mask &a, distile_mask *b) {
    const auto &left = static_cast<CudaMask &>(a), &right = b ? static_cast<CudaMask &>(*b) : left;
    const DeviceBits &bits = left.bits_;
    const BitCombination combination = {bits.words,        right.bits_.words,
                                        operation_of(how), make_divisor(static_cast<uint32_t>(bits.words_per_row)),
                                        left.num_words(),  ~0u >> (32 * bits.words_per_row - bits.width)};
    set_words(MaskShape(left.shape), [&](uint32_t *words, Listing &) {
        launch(device_.kernels->combine_bits, grid_of(combination.num_words), combination, words);
    });
}

}  // namespace distile
