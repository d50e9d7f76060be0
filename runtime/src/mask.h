/** \file
 * The mask object: a bitmask, and the tile counts and lists that were asked of it.
 */
#ifndef DISTILE_MASK_H
#define DISTILE_MASK_H

#include "bit_rows.h"
#include "mask_checks.h"
#include <algorithm>
#include <distile/distile.h>
#include <vector>

namespace distile {

/** The active tiles at a granularity, those inside `interior` first. Views into vectors of the mask. */
struct TileList {
    int64_t count, num_interior;
    const uint32_t *xy, *image;
    int64_t capacity; /**< Distance from xy to image, in entries. */
};

/** Whether a mask may have a shape, for the API function `call`. */
distile_status check_mask_shape(distile_context *context, const char *call, int32_t batch, int32_t height,
                                int32_t width);

}  // namespace distile

struct distile_mask {
    explicit distile_mask(distile_context *context) : context(context) {
    }

    /** Makes every pixel of a shape active. */
    void set_all(int32_t batch, int32_t height, int32_t width);
    /** Makes it the mask of a shape whose words `write(words)` fills, which may read what this mask was. */
    template<typename Write> void set_words(int32_t batch, int32_t height, int32_t width, const Write &write);
    void set_bytes(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch, int32_t height,
                   int32_t width);
    bool is_set() const {
        return bits.words != nullptr;
    }
    distile_context *host() const {
        return context;
    }
    const void *owner() const {
        return context;
    }
    distile::MaskShape shape() const {
        return {bits.batch, bits.height, bits.width};
    }
    distile_status check_shape(const char *call, const distile::MaskShape &shape) const {
        return distile::check_mask_shape(context, call, shape.batch, shape.height, shape.width);
    }
    /** Counts at several granularities; one pass over the words for those that were not counted yet. */
    void count(const distile::Granularity *granularities, int32_t num_granularities, int64_t *counts);
    /** The list at a granularity. It stays valid until the mask is set again. */
    distile::TileList list(distile::Granularity granularity, distile::TileRect interior);

    distile_context *context;
    distile::Bitmask bits{};
    int64_t active_pixels = 0;
    std::vector<distile::RowMemory> row_memory; /**< Of calls that set this mask, one for each of their tasks. */

private:
    struct Count {
        distile::Granularity granularity;
        int64_t tiles;
    };
    struct List {
        distile::Granularity granularity;
        distile::TileRect interior;
        distile::TileList tiles;
        std::vector<uint32_t> entries;
    };

    static size_t num_words(int32_t batch, int32_t height, int32_t width) {
        return static_cast<size_t>(batch) * height * ((width + 63) / 64);
    }
    void resize(int32_t batch, int32_t height, int32_t width);
    /** Makes the next words the mask's. */
    void take_next(int32_t batch, int32_t height, int32_t width);

    std::vector<uint64_t> words_, next_words_, scratch_;
    std::vector<Count> counts_;
    // Work space of count(), kept so that the steady state allocates nothing.
    std::vector<distile::Granularity> missing_;
    std::vector<int64_t> missing_counts_;
    // Lists of the current mask, then vectors of earlier ones that are kept for their memory.
    std::vector<List> lists_;
    size_t num_lists_ = 0;
};

template<typename Write>
void distile_mask::set_words(int32_t batch, int32_t height, int32_t width, const Write &write) {
    next_words_.resize(std::max(next_words_.size(), num_words(batch, height, width)));
    write(next_words_.data());
    take_next(batch, height, width);
}

#endif
