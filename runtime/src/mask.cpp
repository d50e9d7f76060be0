#include "mask.h"
#include "context.h"
#include "tensor.h"
#include <algorithm>
#include <memory>

using distile::fail;
using distile::Granularity;
using distile::guarded;
using distile::largest_extent;
using distile::TileList;
using distile::TileRect;

namespace {

distile_status check_set(const char *call, const distile_mask *mask) {
    return distile::check_mask(mask->context, mask->owner(), call, mask);
}

distile_status check_granularity(const char *call, const distile_mask *mask, int32_t tile_h, int32_t tile_w) {
    if (tile_h < 1 || tile_w < 1 || tile_h > largest_extent || tile_w > largest_extent) {
        return fail(mask->context, DISTILE_ERROR_BAD_VALUE, "%s: a tile of %d x %d pixels: extents go from 1 to %d",
                    call, tile_h, tile_w, largest_extent);
    }
    return check_set(call, mask);
}

}  // namespace

void distile_mask::resize(int32_t batch, int32_t height, int32_t width) {
    const size_t words = num_words(batch, height, width);
    if (words_.size() < words) {
        // Allocate before anything is changed, so that a failure leaves the old mask as it was.
        std::vector<uint64_t> grown(words);
        words_.swap(grown);
    }
    bits = {words_.data(), batch, height, width};
    counts_.clear();
    num_lists_ = 0;
}

void distile_mask::take_next(int32_t batch, int32_t height, int32_t width) {
    scratch_.resize(std::max(scratch_.size(), static_cast<size_t>((width + 63) / 64)));
    // These are the next call's, which then allocates nothing.
    words_.resize(std::max(words_.size(), next_words_.size()));
    words_.swap(next_words_);
    bits = {words_.data(), batch, height, width};
    counts_.clear();
    num_lists_ = 0;
    active_pixels = distile::count_pixels(bits, scratch_.data());
}

void distile_mask::set_all(int32_t batch, int32_t height, int32_t width) {
    resize(batch, height, width);
    const int32_t words_per_row = bits.words_per_row();
    for (int64_t row = 0; row < int64_t{batch} * height; row++) {
        uint64_t *words = words_.data() + row * words_per_row;
        std::fill_n(words, words_per_row, ~uint64_t{0});
        if (width % 64 != 0) {
            words[words_per_row - 1] = (uint64_t{1} << (width % 64)) - 1;
        }
    }
    active_pixels = int64_t{batch} * height * width;
}

void distile_mask::set_bytes(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch, int32_t height,
                             int32_t width) {
    resize(batch, height, width);
    active_pixels = distile::pack_bitmask(bytes, stride_n, stride_h, batch, height, width, words_.data());
}

void distile_mask::count(const Granularity *granularities, int32_t num_granularities, int64_t *counts) {
    missing_.clear();
    for (int32_t i = 0; i < num_granularities; i++) {
        const auto same = [&](const auto &known) { return known == granularities[i]; };
        const bool known =
            std::any_of(counts_.begin(), counts_.end(), [&](const Count &count) { return same(count.granularity); });
        if (!known && std::none_of(missing_.begin(), missing_.end(), same)) {
            missing_.push_back(granularities[i]);
        }
    }
    if (!missing_.empty()) {
        const auto num_missing = static_cast<int32_t>(missing_.size());
        const auto words = static_cast<size_t>(distile::tile_scratch_words(bits));
        if (scratch_.size() < words) {
            scratch_.resize(words);
        }
        missing_counts_.resize(missing_.size());
        distile::count_tiles(bits, missing_.data(), num_missing, scratch_.data(), missing_counts_.data());
        for (size_t i = 0; i < missing_.size(); i++) {
            counts_.push_back({missing_[i], missing_counts_[i]});
        }
    }
    for (int32_t i = 0; i < num_granularities; i++) {
        counts[i] = std::find_if(counts_.begin(), counts_.end(), [&](const Count &count) {
                        return count.granularity == granularities[i];
                    })->tiles;
    }
}

TileList distile_mask::list(Granularity granularity, TileRect interior) {
    for (size_t i = 0; i < num_lists_; i++) {
        if (lists_[i].granularity == granularity && lists_[i].interior == interior) {
            return lists_[i].tiles;
        }
    }
    int64_t count = 0;
    this->count(&granularity, 1, &count);
    const auto words = static_cast<size_t>(distile::tile_scratch_words(bits));
    if (scratch_.size() < words) {
        scratch_.resize(words);
    }
    // A list that has room already, or one with room for every tile of the shape, if they are not too many: whatever
    // masks follow, they need no more.
    const auto kept = std::find_if(lists_.begin() + static_cast<ptrdiff_t>(num_lists_), lists_.end(),
                                   [&](const List &list) { return list.granularity == granularity; });
    if (kept == lists_.end()) {
        lists_.emplace_back();
        std::swap(lists_[num_lists_], lists_.back());
    } else {
        std::swap(lists_[num_lists_], *kept);
    }
    List &list = lists_[num_lists_];
    const int64_t rows = (bits.height - 1) / granularity.h + 1, columns = (bits.width - 1) / granularity.w + 1;
    constexpr int64_t most_to_spare = 1 << 22;
    const int64_t all = bits.batch * rows * columns;
    const int64_t capacity = (all <= most_to_spare ? all : count) + distile::tile_list_slack;
    if (list.entries.size() < static_cast<size_t>(2 * capacity)) {
        list.entries.clear();
        list.entries.resize(2 * capacity);
    }
    uint32_t *xy = list.entries.data(), *image = xy + capacity;
    list.granularity = granularity;
    list.interior = interior;
    list.tiles.count = count;
    list.tiles.num_interior = distile::list_tiles(bits, granularity, interior, scratch_.data(), xy, image);
    list.tiles.xy = xy;
    list.tiles.image = image;
    list.tiles.capacity = capacity;
    num_lists_++;
    return list.tiles;
}

distile_status distile::check_mask_shape(distile_context *context, const char *call, int32_t batch, int32_t height,
                                         int32_t width) {
    if (batch < 1 || height < 1 || width < 1 || batch > largest_extent || height > largest_extent ||
        width > largest_extent) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE, "%s: batch %d, height %d, width %d: each goes from 1 to %d", call,
                    batch, height, width, largest_extent);
    }
    // The kernels address the bits in 32-bit words with 32-bit indices.
    constexpr int64_t most_words = (int64_t{1} << 30) - 1;
    if (int64_t{batch} * height > most_words / ((width + 63) / 64)) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: batch %d, height %d, width %d are more than 2^30 words of 64 pixels", call, batch, height,
                    width);
    }
    return DISTILE_OK;
}

extern "C" {

distile_status distile_mask_create(distile_context *context, distile_mask **mask) {
    if (!context) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!mask) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_mask_create: the address for the mask is null");
    }
    return guarded(context, [&] {
        *mask = std::make_unique<distile_mask>(context).release();
        return DISTILE_OK;
    });
}

void distile_mask_destroy(distile_mask *mask) {
    std::unique_ptr<distile_mask> owned(mask);
}

distile_status distile_mask_set_bytes(distile_mask *mask, const uint8_t *bytes, int32_t batch, int32_t height,
                                      int32_t width, int64_t stride_n, int64_t stride_h) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = mask->context;
    if (!bytes) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_mask_set_bytes: the bytes are null");
    }
    const distile_status status = distile::check_mask_shape(context, "distile_mask_set_bytes", batch, height, width);
    if (status != DISTILE_OK) {
        return status;
    }
    if (stride_h < width || (batch > 1 && (stride_n < 0 || stride_n / height < stride_h))) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "distile_mask_set_bytes: stride_h %lld must be at least the width %d, and stride_n %lld at least "
                    "stride_h times the height %d",
                    static_cast<long long>(stride_h), width, static_cast<long long>(stride_n), height);
    }
    return guarded(context, [&] {
        mask->set_bytes(bytes, stride_n, stride_h, batch, height, width);
        return DISTILE_OK;
    });
}

distile_status distile_mask_bits(distile_mask *mask, const uint64_t **words, int32_t *words_per_row) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!words || !words_per_row) {
        return fail(mask->context, DISTILE_ERROR_NULL_POINTER, "distile_mask_bits: an address for a result is null");
    }
    const distile_status status = check_set("distile_mask_bits", mask);
    if (status == DISTILE_OK) {
        *words = mask->bits.words;
        *words_per_row = mask->bits.words_per_row();
    }
    return status;
}

distile_status distile_mask_active_pixels(distile_mask *mask, int64_t *pixels) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!pixels) {
        return fail(mask->context, DISTILE_ERROR_NULL_POINTER,
                    "distile_mask_active_pixels: the address for the result is null");
    }
    const distile_status status = check_set("distile_mask_active_pixels", mask);
    if (status == DISTILE_OK) {
        *pixels = mask->active_pixels;
    }
    return status;
}

distile_status distile_mask_count_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, int64_t *count) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!count) {
        return fail(mask->context, DISTILE_ERROR_NULL_POINTER,
                    "distile_mask_count_tiles: the address for the count is null");
    }
    const distile_status status = check_granularity("distile_mask_count_tiles", mask, tile_h, tile_w);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(mask->context, [&] {
        const Granularity granularity{tile_h, tile_w};
        mask->count(&granularity, 1, count);
        return DISTILE_OK;
    });
}

distile_status distile_mask_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, distile_tile_list *list) {
    if (!mask) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!list) {
        return fail(mask->context, DISTILE_ERROR_NULL_POINTER, "distile_mask_tiles: the address for the list is null");
    }
    const distile_status status = check_granularity("distile_mask_tiles", mask, tile_h, tile_w);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(mask->context, [&] {
        const TileList tiles = mask->list({tile_h, tile_w}, {0, largest_extent, 0, largest_extent});
        *list = {tiles.count, tiles.xy, tiles.image};
        return DISTILE_OK;
    });
}

}  // extern "C"
