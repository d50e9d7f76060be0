#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/cpu_scores.h"
#include "runtime/cpu/tensor_difference.h"
#include <algorithm>
#include <array>
#include <cstring>

namespace distile {

namespace {

/** Eight pixels as bytes, by their bits. */
constexpr auto bytes_of_bits = [] {
    std::array<std::array<uint8_t, 8>, 256> table{};
    for (size_t bits = 0; bits < table.size(); bits++) {
        for (size_t pixel = 0; pixel < 8; pixel++) {
            table[bits][pixel] = bits >> pixel & 1;
        }
    }
    return table;
}();

/** Calls visit(n, index) for every listed index until it returns false. Returns whether it visited all. */
template<typename Visit>
bool visit_indices(int32_t batch, const int32_t *indices, const int32_t *counts, int64_t stride_n, const Visit &visit) {
    for (int32_t n = 0; n < batch; n++) {
        const int64_t count = counts ? counts[n] : stride_n;
        for (int64_t i = 0; i < count; i++) {
            if (!visit(n, indices[n * stride_n + i])) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace

CpuMask::CpuMask(distile_context &given)
    : distile_mask(given), words_(given.memory), next_words_(given.memory), scratch_(given.memory),
      lengths_(given.memory) {
}

distile_status CpuMask::check_shape(const char *call, const MaskShape &wanted) const {
    // Kernels address the bits as 32-bit words with 32-bit indices.
    constexpr int64_t most_words = (int64_t{1} << 30) - 1;
    if (int64_t{wanted.batch} * wanted.height > most_words / ((wanted.width + 63) / 64)) {
        return fail(&context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: batch %d, height %d, width %d exceed 2^30 words of 64 pixels", call, wanted.batch,
                    wanted.height, wanted.width);
    }
    return DISTILE_OK;
}

uint64_t *CpuMask::scratch(size_t words) {
    scratch_.resize(std::max(scratch_.size(), words));
    return scratch_.data();
}

void CpuMask::forget(const MaskShape &to) {
    shape = to;
    bits_ = {words_.data(), to.batch, to.height, to.width};
    counts_.clear();
    num_lists_ = 0;
    has_lengths_ = false;
}

uint64_t *CpuMask::begin_words(const MaskShape &to) {
    if (words_.size() < num_words(to)) {
        // Allocate before changing anything, so a failure leaves the old mask unchanged.
        HostVector<uint64_t> grown(num_words(to), words_.get_allocator());
        words_.swap(grown);
    }
    forget(to);
    return words_.data();
}

template<typename Write> void CpuMask::set_words(const MaskShape &to, const Write &write) {
    next_words_.resize(std::max(next_words_.size(), num_words(to)));
    write(next_words_.data());
    uint64_t *row = scratch((to.width + 63) / 64);
    // Grow the words of the next call too, which then allocates nothing.
    words_.resize(std::max(words_.size(), next_words_.size()));
    words_.swap(next_words_);
    forget(to);
    active_pixels_ = count_pixels(bits_, row);
}

void CpuMask::set_all(const MaskShape &to) {
    uint64_t *words = begin_words(to);
    const int32_t words_per_row = bits_.words_per_row();
    std::fill_n(words, num_words(to), ~uint64_t{0});
    if (to.width % 64 != 0) {
        for (int64_t row = 1; row <= int64_t{to.batch} * to.height; row++) {
            words[row * words_per_row - 1] = (uint64_t{1} << (to.width % 64)) - 1;
        }
    }
    active_pixels_ = to.num_pixels();
}

void CpuMask::set_bytes(const MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) {
    uint64_t *words = begin_words(to);
    active_pixels_ = pack_bitmask(bytes, stride_n, stride_h, to.batch, to.height, to.width, words);
}

void CpuMask::set_bits(const MaskShape &to, const uint32_t *words, int64_t words_per_row) {
    set_words(to, [&](uint64_t *rows) {
        const int64_t row_words = (to.width + 63) / 64, given_words = (to.width + 31) / 32;
        const uint64_t last = ~uint64_t{0} >> (64 * row_words - to.width);
        for (int64_t row = 0; row < int64_t{to.batch} * to.height; row++, rows += row_words) {
            rows[row_words - 1] = 0;
            std::memcpy(rows, words + row * words_per_row, given_words * sizeof(uint32_t));
            rows[row_words - 1] &= last;
        }
    });
}

void CpuMask::set_indices(const char *call, const MaskShape &to, const int32_t *indices, const int32_t *counts,
                          int64_t stride_n) {
    const int64_t pixels = int64_t{to.height} * to.width;
    for (int32_t n = 0; counts && n < to.batch; n++) {
        if (counts[n] < 0 || counts[n] > stride_n) {
            throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE,
                               "%s: image %d has %d indices; the count must be 0 to stride_n, %lld", call, n, counts[n],
                               static_cast<long long>(stride_n))};
        }
    }
    visit_indices(to.batch, indices, counts, stride_n, [&](int32_t n, int32_t index) {
        if (index < 0 || index >= pixels) {
            throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE,
                               "%s: image %d has the index %d; it must be 0 to %lld for %d x %d pixels", call, n, index,
                               static_cast<long long>(pixels - 1), to.height, to.width)};
        }
        return true;
    });
    uint64_t *words = begin_words(to);
    std::fill_n(words, num_words(to), uint64_t{0});
    const int64_t words_per_row = bits_.words_per_row();
    active_pixels_ = 0;
    visit_indices(to.batch, indices, counts, stride_n, [&](int32_t n, int32_t index) {
        const int32_t y = index / to.width, x = index % to.width;
        uint64_t &word = words[(int64_t{n} * to.height + y) * words_per_row + x / 64];
        const uint64_t bit = uint64_t{1} << (x % 64);
        active_pixels_ += (word & bit) == 0 ? 1 : 0;
        word |= bit;
        return true;
    });
}

MaskBits CpuMask::bits() {
    // A row of 64-bit words is a row of pairs of 32-bit words.
    return {reinterpret_cast<const uint32_t *>(bits_.words), 2 * bits_.words_per_row()};
}

void CpuMask::get_bytes(const MaskBytes &bytes) {
    const uint64_t *words = words_.data();
    for (int64_t row = 0; row < int64_t{shape.batch} * shape.height; row++, words += bits_.words_per_row()) {
        uint8_t *const to = bytes.bytes + row / shape.height * bytes.stride_n + row % shape.height * bytes.stride_h;
        int32_t x = 0;
        for (; x + 8 <= shape.width; x += 8) {
            std::memcpy(to + x, bytes_of_bits[words[x / 64] >> (x % 64) & 255].data(), 8);
        }
        for (; x < shape.width; x++) {
            to[x] = words[x / 64] >> (x % 64) & 1;
        }
    }
}

void CpuMask::count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) {
    const Granularity pixel = {1, 1};
    const auto find = [&](const Granularity &wanted) {
        return std::find_if(counts_.begin(), counts_.end(),
                            [&](const Count &count) { return count.granularity == wanted; });
    };
    missing_.clear();
    for (int32_t i = 0; i < num_granularities; i++) {
        const Granularity &wanted = granularities[i];
        if (!(wanted == pixel) && find(wanted) == counts_.end() &&
            std::find(missing_.begin(), missing_.end(), wanted) == missing_.end()) {
            missing_.push_back(wanted);
        }
    }
    if (!missing_.empty()) {
        missing_counts_.resize(missing_.size());
        count_tiles(bits_, missing_.data(), static_cast<int32_t>(missing_.size()),
                    scratch(static_cast<size_t>(tile_scratch_words(bits_))), missing_counts_.data());
        for (size_t i = 0; i < missing_.size(); i++) {
            counts_.push_back({missing_[i], missing_counts_[i]});
        }
    }
    for (int32_t i = 0; i < num_granularities; i++) {
        counts[i] = granularities[i] == pixel ? active_pixels_ : find(granularities[i])->tiles;
    }
}

void CpuMask::sort(CellOrder order, Granularity granularity, uint32_t *xy, const uint32_t *image, int64_t count) {
    const int32_t rows = (shape.height + granularity.h - 1) / granularity.h,
                  columns = (shape.width + granularity.w - 1) / granularity.w;
    if (order == CellOrder::RowMajor || int64_t{rows} * columns > TileWalk::most_tiles) {
        return;
    }
    auto walk = std::find_if(walks_.begin(), walks_.end(),
                             [&](const TileWalk &one) { return one.is_of(order, rows, columns); });
    if (walk == walks_.end()) {
        constexpr size_t most_walks = 8;
        if (walks_.size() == most_walks) {
            walks_.erase(walks_.begin());
        }
        walks_.emplace_back(context.memory, order, rows, columns);
        walk = walks_.end() - 1;
    }
    for (int64_t first = 0; first < count;) {
        const int64_t end =
            std::find_if(image + first, image + count, [&](uint32_t n) { return n != image[first]; }) - image;
        walk->sort(xy + first, end - first, granularity);
        first = end;
    }
}

TileList CpuMask::list_in(CellOrder order, Granularity granularity, const TileRect &interior) {
    for (size_t i = 0; i < num_lists_; i++) {
        if (lists_[i].order == order && lists_[i].granularity == granularity && lists_[i].interior == interior) {
            return lists_[i].tiles;
        }
    }
    int64_t count = 0;
    this->count(&granularity, 1, &count);
    uint64_t *work = scratch(static_cast<size_t>(tile_scratch_words(bits_)));
    // Take a list with enough room, or make one with room for every tile of the shape, unless these are too many: later
    // masks then need no more.
    const auto kept = std::find_if(lists_.begin() + static_cast<ptrdiff_t>(num_lists_), lists_.end(),
                                   [&](const List &list) { return list.granularity == granularity; });
    if (kept == lists_.end()) {
        lists_.emplace_back(context.memory);
        std::swap(lists_[num_lists_], lists_.back());
    } else {
        std::swap(lists_[num_lists_], *kept);
    }
    List &list = lists_[num_lists_];
    constexpr int64_t most_to_spare = 1 << 22;
    const int64_t all = num_tiles(shape, granularity);
    const int64_t capacity = (all <= most_to_spare ? all : count) + tile_list_slack;
    if (list.entries.size() < static_cast<size_t>(2 * capacity)) {
        list.entries.clear();
        list.entries.resize(2 * capacity);
    }
    uint32_t *xy = list.entries.data(), *image = xy + capacity;
    list.order = order;
    list.granularity = granularity;
    list.interior = interior;
    list.tiles = {count, list_tiles(bits_, granularity, interior, work, xy, image), capacity, xy, image, nullptr};
    sort(order, granularity, xy, image, list.tiles.num_interior);
    sort(order, granularity, xy + list.tiles.num_interior, image + list.tiles.num_interior,
         count - list.tiles.num_interior);
    num_lists_++;
    return list.tiles;
}

const int32_t *CpuMask::cumulative_lengths() {
    if (!has_lengths_) {
        lengths_.resize(static_cast<size_t>(shape.batch) + 1);
        uint64_t *row = scratch(static_cast<size_t>(bits_.words_per_row()));
        Bitmask image = {bits_.words, 1, shape.height, shape.width};
        lengths_[0] = 0;
        for (int32_t n = 0; n < shape.batch; n++, image.words += int64_t{shape.height} * bits_.words_per_row()) {
            lengths_[n + 1] = lengths_[n] + static_cast<int32_t>(count_pixels(image, row));
        }
        has_lengths_ = true;
    }
    return lengths_.data();
}

std::vector<RowMemory> &CpuMask::memory_of_tasks(size_t num_tasks) {
    while (row_memory_.size() < num_tasks) {
        row_memory_.emplace_back(context.memory);
    }
    for (RowMemory &memory : row_memory_) {
        memory.reset();
    }
    return row_memory_;
}

void CpuMask::set_window(const MaskShape &to, distile_mask &from, const distile_window &window, Direction direction) {
    const bool to_input = direction == Direction::ToInput;
    // A transposed convolution is the convolution from its output to its input.
    const auto move_bits = window.kind == DISTILE_WINDOW_UPSAMPLED
                               ? (to_input ? scatter_upsampled_bits : gather_upsampled_bits)
                           : to_input == (window.kind == DISTILE_WINDOW_CONV) ? scatter_bits
                                                                              : gather_bits;
    const Window axes = window_of(window);
    RowMemory &memory = memory_of_tasks(1)[0];
    set_words(to,
              [&](uint64_t *words) { move_bits(cpu_mask(from).bitmask(), axes, to.height, to.width, words, memory); });
}

void CpuMask::set_combination(Combination how, distile_mask &a, distile_mask *b) {
    const Bitmask &left = cpu_mask(a).bitmask();
    const uint64_t *right = b ? cpu_mask(*b).bitmask().words : nullptr;
    const auto combine = [&](const auto &word_of) {
        set_words(a.shape, [&](uint64_t *words) {
            const auto count = static_cast<int64_t>(num_words(a.shape));
            for (int64_t i = 0; i < count; i++) {
                words[i] = word_of(left.words[i], right ? right[i] : 0);
            }
            // Clear the inverted bits beyond the width.
            const int32_t words_per_row = left.words_per_row();
            const uint64_t last = ~uint64_t{0} >> (64 * words_per_row - left.width);
            for (int64_t i = words_per_row - 1; how == Combination::Invert && i < count; i += words_per_row) {
                words[i] &= last;
            }
        });
    };
    switch (how) {
    case Combination::Unite:
        return combine([](uint64_t x, uint64_t y) { return x | y; });
    case Combination::Intersect:
        return combine([](uint64_t x, uint64_t y) { return x & y; });
    case Combination::Subtract:
        return combine([](uint64_t x, uint64_t y) { return x & ~y; });
    case Combination::Invert:
        return combine([](uint64_t x, uint64_t) { return ~x; });
    }
}

void CpuMask::set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) {
    set_words({a.batch, a.height, a.width}, [&](uint64_t *words) {
        find_difference(context, a, b, threshold, words,
                        [&](size_t num_tasks) -> std::vector<RowMemory> & { return memory_of_tasks(num_tasks); });
    });
}

void CpuMask::set_scores(const distile_tensor &tensor, const Scores &scores) {
    set_words({tensor.batch, tensor.height, tensor.width},
              [&](uint64_t *words) { find_scores(static_cast<CpuDevice &>(*context.device), tensor, scores, words); });
}

}  // namespace distile
