/** \file
 * The mask object, whose bits, counts and lists are in the memory of its device.
 */
#ifndef DISTILE_MASK_H
#define DISTILE_MASK_H

#include "context.h"
#include "tiles.h"
#include <distile/mask_algebra.h>

namespace distile {

/** The active tiles at a granularity, in memory of the mask. */
struct TileList {
    int64_t count;        /**< -1 where only the device knows. */
    int64_t num_interior; /**< Tiles inside the rectangle that was asked for, which come first; 0 on a GPU. */
    int64_t capacity;     /**< Distance from xy to image, in entries. */
    const uint32_t *xy, *image;
    const uint32_t *device_count; /**< Null on a CPU. */
};

/** The bits, as distile_mask_bits has them. */
struct MaskBits {
    const uint32_t *words;
    int32_t words_per_row;
};

/** Whether bits go from the outputs of a window to its inputs, or the other way. */
enum class Direction { ToInput, ToOutput };

/** How two masks of one shape are combined; Invert takes the first one only. */
enum class Combination { Unite, Intersect, Subtract, Invert };

}  // namespace distile

/** A device derives its own. Functions that set the mask leave it as it was where they throw, or on a GPU, where the
 * device fails, without data. */
struct distile_mask {
    explicit distile_mask(distile_context &given) : context(given) {
    }
    virtual ~distile_mask() = default;
    distile_mask(const distile_mask &) = delete;
    distile_mask &operator=(const distile_mask &) = delete;

    bool is_set() const {
        return shape.batch > 0;
    }

    /** What only this device refuses of a shape. */
    virtual distile_status check_shape(const char *call, const distile::MaskShape &wanted) const = 0;
    virtual void set_bytes(const distile::MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) = 0;
    virtual void set_bits(const distile::MaskShape &to, const uint32_t *words, int64_t words_per_row) = 0;
    /** `call` is for messages about what is found only while the lists are read. */
    virtual void set_indices(const char *call, const distile::MaskShape &to, const int32_t *indices,
                             const int32_t *counts, int64_t stride_n) = 0;
    /** Makes every pixel of a shape active. */
    virtual void set_all(const distile::MaskShape &to) = 0;
    /** Moves the bits of another mask, or of this one, through a window. */
    virtual void set_window(const distile::MaskShape &to, distile_mask &from, const distile_window &window,
                            distile::Direction direction) = 0;
    /** `b` is null for Invert. Either may be this mask. */
    virtual void set_combination(distile::Combination how, distile_mask &a, distile_mask *b) = 0;
    virtual void set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) = 0;

    virtual distile::MaskBits bits() = 0;
    /** True where counting neither waits nor asks a device. */
    virtual bool counts_on_host() const = 0;
    /** Counts at several granularities. May wait for the device; throws CAPTURING where it must not. */
    virtual void count(const distile::Granularity *granularities, int32_t num_granularities, int64_t *counts) = 0;
    /** The active pixels. As count(). */
    virtual int64_t active_pixels() = 0;
    /** The list at a granularity, those inside `interior` first. It stays valid until the mask is set again. */
    virtual distile::TileList list(distile::Granularity granularity, const distile::TileRect &interior) = 0;

    distile_context &context;
    distile::MaskShape shape{};
};

#endif
