#include "runtime/opencl/opencl_mask.h"
#include "runtime/base/types.h"
#include "runtime/gpu/bit_steps.h"
#include "runtime/opencl/kernel_names.h"
#include <algorithm>
#include <array>
#include <string>

namespace distile {

namespace {

/** Equals the struct of this name in kernels.cl. */
struct Tiles {
    int32_t height, width, words_per_row;
    int32_t tile_h, tile_w, tile_rows, tile_columns;
    uint32_t tiles;
};

Tiles tiles_of(const MaskShape &shape, int32_t words_per_row, const Granularity &granularity) {
    const auto along = [](int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; };
    return {shape.height,
            shape.width,
            words_per_row,
            granularity.h,
            granularity.w,
            along(shape.height, granularity.h),
            along(shape.width, granularity.w),
            static_cast<uint32_t>(num_tiles(shape, granularity))};
}

uint64_t rows_of(const MaskShape &shape) {
    return static_cast<uint64_t>(shape.batch) * static_cast<uint64_t>(shape.height);
}

/** From the first byte of a mask to its last. */
uint64_t bytes_between(const MaskShape &shape, int64_t stride_n, int64_t stride_h) {
    return static_cast<uint64_t>((shape.batch - 1) * stride_n + (shape.height - 1) * stride_h + shape.width);
}

}  // namespace

OpenClMask::OpenClMask(OpenClDevice &device)
    : distile_mask(device.context), device_(device), words_(device), counts_(device), operand_(device),
      lengths_(device) {
    // References to levels must stay valid.
    levels_.reserve(most_levels);
    counts_.reserve(most_levels * sizeof(uint32_t));
}

distile_status OpenClMask::check_shape(const char *call, const MaskShape &wanted) const {
    return wanted.num_pixels() <= INT32_MAX ? DISTILE_OK
                                            : fail(&context, DISTILE_ERROR_BAD_SHAPE,
                                                   "%s: the mask is %d x %d x %d (batch, height, width); on a GPU it "
                                                   "must have fewer than 2^31 pixels",
                                                   call, wanted.batch, wanted.height, wanted.width);
}

// ---- Setting ---------------------------------------------------------------------------------

void OpenClMask::begin_words(const MaskShape &to) {
    shape = {};
    has_lengths_ = false;
    words_per_row_ = (to.width + 31) / 32;
    words_.reserve(rows_of(to) * static_cast<uint64_t>(words_per_row_) * sizeof(uint32_t));
    for (Level &level : levels_) {
        level.counted = level.read_back = level.listed = false;
    }
}

void OpenClMask::set_bytes(const MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) {
    device_.check_range(bytes, bytes_between(to, stride_n, stride_h), 1, "mask's bytes");
    set_words(to, [&](uint32_t *words) {
        device_.launch("distile_pack_bytes", items_for(static_cast<uint64_t>(words_per_row_), rows_of(to)), bytes,
                       cl_long{stride_n}, cl_long{stride_h}, to.height, to.width, words_per_row_,
                       static_cast<int32_t>(rows_of(to)), words);
    });
}

void OpenClMask::copy_bits(const MaskShape &to, const uint32_t *from, int64_t stride, uint32_t *words) const {
    device_.launch("distile_copy_bits", items_for(static_cast<uint64_t>(words_per_row_), rows_of(to)), from,
                   cl_long{stride}, words_per_row_, static_cast<int32_t>(rows_of(to)), last_bits(to), words);
}

void OpenClMask::set_bits(const MaskShape &to, const uint32_t *words, int64_t words_per_row) {
    const uint64_t last =
        (rows_of(to) - 1) * static_cast<uint64_t>(words_per_row) + static_cast<uint64_t>((to.width + 31) / 32);
    device_.check_range(words, last * sizeof(uint32_t), sizeof(uint32_t), "mask's words");
    set_words(to, [&](uint32_t *own) { copy_bits(to, words, words_per_row, own); });
}

void OpenClMask::set_all(const MaskShape &to) {
    set_words(to, [&](uint32_t *words) {
        device_.fill(words, ~0u, rows_of(to) * static_cast<uint64_t>(words_per_row_) * sizeof(uint32_t));
        copy_bits(to, words, words_per_row_, words);
    });
}

void OpenClMask::set_indices(const char *, const MaskShape &to, const int32_t *indices, const int32_t *counts,
                             int64_t stride_n) {
    const auto stride = static_cast<uint64_t>(stride_n), images = static_cast<uint64_t>(to.batch);
    if (stride > 0) {
        device_.check_range(indices, images * stride * sizeof(int32_t), sizeof(int32_t), "list of indices");
    }
    if (counts) {
        device_.check_range(counts, images * sizeof(int32_t), sizeof(int32_t), "list of counts");
    }
    set_words(to, [&](uint32_t *words) {
        device_.fill(words, 0, rows_of(to) * static_cast<uint64_t>(words_per_row_) * sizeof(uint32_t));
        if (stride > 0) {
            device_.launch("distile_set_indices", items_for(stride, images), indices, counts, counts ? 1 : 0,
                           cl_long{stride_n}, to.height, to.width, words_per_row_, words);
        }
    });
}

void OpenClMask::set_window(const MaskShape &to, distile_mask &from, const distile_window &given, Direction direction) {
    const MaskShape operand = from.shape;
    const BitSteps steps = bit_steps(operand, to, given, direction);
    const LocalBytes local{2 * sizeof(uint32_t) * static_cast<size_t>(steps.row.words)};
    if (local.bytes > device_.local_bytes()) {
        throw Failure{fail(&context, DISTILE_ERROR_BAD_SHAPE,
                           "a row of the mask needs %zu bytes of local memory, but the device has %llu", local.bytes,
                           static_cast<unsigned long long>(device_.local_bytes()))};
    }
    const MaskBits bits = from.bits();
    const uint32_t *words = bits.words;
    if (&from == this) {
        const uint64_t bytes = bytes_of_words();
        operand_.reserve(bytes);
        device_.copy(words, operand_.as<void>(), bytes);
        words = operand_.as<uint32_t>();
    }
    set_words(to, [&](uint32_t *own) {
        device_.launch("distile_transfer_bits", items_for(rows_of(to) * group_items), steps, words, operand.height,
                       bits.words_per_row, to.height, words_per_row_, own, local);
    });
}

void OpenClMask::set_combination(Combination how, distile_mask &a, distile_mask *b) {
    const MaskShape to = a.shape;
    const uint32_t *left = a.bits().words, *right = b ? b->bits().words : left;
    const std::array<Combination, 4> order = {Combination::Unite, Combination::Intersect, Combination::Subtract,
                                              Combination::Invert};
    const auto number = static_cast<int32_t>(std::find(order.begin(), order.end(), how) - order.begin());
    set_words(to, [&](uint32_t *words) {
        const uint64_t num_words = rows_of(to) * static_cast<uint64_t>(words_per_row_);
        device_.launch("distile_combine_bits", items_for(num_words), left, right, number,
                       static_cast<uint32_t>(num_words), static_cast<uint32_t>(words_per_row_), last_bits(to), words);
    });
}

void OpenClMask::set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) {
    device_.check_view(a, "first tensor");
    device_.check_view(b, "second tensor");
    static constexpr KernelNames compare_names("compare");
    const MaskShape to = {a.batch, a.height, a.width};
    set_words(to, [&](uint32_t *words) {
        device_.launch(compare_names.of(a.dtype), items_for(static_cast<uint64_t>(to.width), rows_of(to)), a.data,
                       cl_long{a.stride_n}, cl_long{a.stride_h}, cl_long{a.stride_w}, b.data, cl_long{b.stride_n},
                       cl_long{b.stride_h}, cl_long{b.stride_w}, to.height, to.width, a.channels, threshold,
                       words_per_row_, words);
    });
}

void OpenClMask::check_bytes(const MaskShape &of, const MaskBytes &to) const {
    device_.check_range(to.bytes, bytes_between(of, to.stride_n, to.stride_h), 1, "memory for bytes");
}

void OpenClMask::get_bytes(const MaskBytes &to) {
    check_bytes(shape, to);
    device_.launch("distile_unpack_bytes", items_for(static_cast<uint64_t>(shape.width), rows_of(shape)),
                   words_.as<uint32_t>(), words_per_row_, shape.height, shape.width,
                   static_cast<int32_t>(rows_of(shape)), to.bytes, cl_long{to.stride_n}, cl_long{to.stride_h});
}

// ---- Counting and listing --------------------------------------------------------------------

OpenClMask::Level &OpenClMask::level(Granularity granularity) {
    auto found = std::find_if(levels_.begin(), levels_.end(),
                              [&](const Level &level) { return level.granularity == granularity; });
    if (found == levels_.end()) {
        if (levels_.size() == most_levels) {
            throw Failure{fail(&context, DISTILE_ERROR_BAD_VALUE, "a mask on a GPU can have at most %d granularities",
                               static_cast<int>(most_levels))};
        }
        levels_.push_back({granularity, false, false, false, std::make_unique<GrowingBuffer>(device_),
                           std::make_unique<GrowingBuffer>(device_)});
        found = levels_.end() - 1;
    }
    return *found;
}

uint32_t *OpenClMask::count_of(const Level &level) const {
    return counts_.as<uint32_t>() + (&level - levels_.data());
}

void OpenClMask::count_on_device(Level &level) {
    if (level.counted) {
        return;
    }
    const Tiles tiles = tiles_of(shape, words_per_row_, level.granularity);
    const ItemGrid grid = items_for(tiles.tiles);
    const size_t groups = grid.items[0] / group_items;
    level.groups->reserve(groups * sizeof(uint32_t));
    const auto *group_counts = level.groups->as<uint32_t>();
    device_.launch("distile_count_tiles", grid, tiles, words_.as<uint32_t>(), group_counts);
    device_.launch("distile_add_groups", items_for(1), static_cast<uint32_t>(groups), group_counts, count_of(level));
    level.counted = true;
}

void OpenClMask::count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) {
    bool all_read = true;
    for (int32_t i = 0; i < num_granularities; i++) {
        Level &one = level(granularities[i]);
        count_on_device(one);
        all_read = all_read && one.read_back;
    }
    if (!all_read) {
        device_.read(counts_.as<uint32_t>(), host_counts_.data(), levels_.size() * sizeof(uint32_t));
        for (Level &one : levels_) {
            one.read_back = one.counted;
        }
    }
    for (int32_t i = 0; i < num_granularities; i++) {
        counts[i] = host_counts_.at(static_cast<size_t>(&level(granularities[i]) - levels_.data()));
    }
}

int64_t OpenClMask::active_pixels() {
    const Granularity pixels{1, 1};
    int64_t active = 0;
    count(&pixels, 1, &active);
    return active;
}

TileList OpenClMask::list(Granularity granularity, const TileRect &) {
    Level &one = level(granularity);
    const Tiles tiles = tiles_of(shape, words_per_row_, granularity);
    one.list->reserve(2 * uint64_t{tiles.tiles} * sizeof(uint32_t));
    if (!one.listed) {
        count_on_device(one);
        device_.launch("distile_list_tiles", items_for(tiles.tiles), tiles, words_.as<uint32_t>(),
                       one.groups->as<uint32_t>(), one.list->as<uint32_t>());
        one.listed = true;
    }
    const auto *xy = one.list->as<const uint32_t>();
    return {-1, 0, tiles.tiles, xy, xy + tiles.tiles, count_of(one)};
}

}  // namespace distile
