/** \file
 * The mask object. Its bits, counts and lists live in device memory.
 */
#ifndef DISTILE_MASK_H
#define DISTILE_MASK_H

#include "runtime/base/context.h"
#include "runtime/mask/cell_order.h"
#include "runtime/mask/mask_bytes.h"
#include "runtime/mask/tiles.h"
#include <distile/mask_algebra.h>
#include <utility>

namespace distile {

/** The active tiles at a granularity, in the mask's memory. */
struct TileList {
    int64_t count;        /**< -1 if only the device knows. */
    int64_t num_interior; /**< Tiles inside the requested rectangle, which come first; 0 on a GPU. */
    int64_t capacity;     /**< Distance from xy to image, in entries. */
    const uint32_t *xy, *image;
    const uint32_t *device_count; /**< Null on a CPU. */
};

/** The bits, in the format of distile_mask_bits. */
struct MaskBits {
    const uint32_t *words;
    int32_t words_per_row;
};

/** The direction in which a window maps bits. */
enum class Direction { ToInput, ToOutput };

/** Combinations of two masks of the same shape; Invert uses only the first. */
enum class Combination { Unite, Intersect, Subtract, Invert };

/** Which pixels of a tensor score enough: the sum of channels times weights, plus the bias, is above the threshold. */
struct Scores {
    const float *weights;  ///< Null: 1.
    float bias, threshold;
};

}  // namespace distile

/** The base class of each device's masks. Setters that throw leave the mask unchanged or, if a GPU fails, without
 * data. */
struct distile_mask {
    explicit distile_mask(distile_context &given) : context(given) {
    }
    virtual ~distile_mask() = default;
    distile_mask(const distile_mask &) = delete;
    distile_mask &operator=(const distile_mask &) = delete;

    bool is_set() const {
        return shape.batch > 0;
    }

    /** Checks the device's own limits on shapes. */
    virtual distile_status check_shape(const char *call, const distile::MaskShape &wanted) const = 0;
    virtual void set_bytes(const distile::MaskShape &to, const uint8_t *bytes, int64_t stride_n, int64_t stride_h) = 0;
    virtual void set_bits(const distile::MaskShape &to, const uint32_t *words, int64_t words_per_row) = 0;
    /** `call` is for messages about errors found while reading the lists. */
    virtual void set_indices(const char *call, const distile::MaskShape &to, const int32_t *indices,
                             const int32_t *counts, int64_t stride_n) = 0;
    /** Makes every pixel active. */
    virtual void set_all(const distile::MaskShape &to) = 0;
    /** Maps the bits of `from`, which may be this mask, through a window. */
    virtual void set_window(const distile::MaskShape &to, distile_mask &from, const distile_window &window,
                            distile::Direction direction) = 0;
    /** `b` is null for Invert. Either may be this mask. */
    virtual void set_combination(distile::Combination how, distile_mask &a, distile_mask *b) = 0;
    virtual void set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) = 0;
    virtual void set_scores(const distile_tensor &tensor, const distile::Scores &scores) = 0;

    virtual distile::MaskBits bits() = 0;
    /** Fails if the device cannot write the bytes of a mask of this shape. */
    virtual void check_bytes(const distile::MaskShape & /*of*/, const distile::MaskBytes & /*to*/) const {
    }
    /** Writes 1 for active pixels and 0 for others. */
    virtual void get_bytes(const distile::MaskBytes &to) = 0;
    /** True if counting needs neither a wait nor a device. */
    virtual bool counts_on_host() const = 0;
    /** Counts at several granularities. May wait for the device; throws CAPTURING during capture. */
    virtual void count(const distile::Granularity *granularities, int32_t num_granularities, int64_t *counts) = 0;
    /** The number of active pixels. Waits and throws like count(). */
    virtual int64_t active_pixels() = 0;
    /** The tiles at a granularity, those inside `interior` first. Valid until the mask is set again. */
    virtual distile::TileList list(distile::Granularity granularity, const distile::TileRect &interior) = 0;
    /** The list with the tiles of each image in another order, of those inside and those outside apart. Row by row
     * where the device lists in no other order. */
    virtual distile::TileList list_in(distile::CellOrder, distile::Granularity granularity,
                                      const distile::TileRect &interior) {
        return list(granularity, interior);
    }
    /** The active pixels before each image, and of all: batch + 1 numbers in the mask's memory, for fewer than 2^31
     * active pixels. Valid until the mask is set again. */
    virtual const int32_t *cumulative_lengths() = 0;

    /** Sets the mask to a shape by calling set(), and has its bytes written to the mirror, if there is one. */
    template<typename Set> void set_mirrored(const distile::MaskShape &to, const Set &set) {
        if (mirror.bytes) {
            check_bytes(to, mirror);
        }
        unwritten_ = mirror;
        set();
        if (const distile::MaskBytes rest = take_mirror(); rest.bytes) {
            get_bytes(rest);
        }
    }

    distile_context &context;
    distile::MaskShape shape{};
    distile::MaskBytes mirror{};  ///< See distile_mask_mirror.

protected:
    /** The memory to which a setter writes the bytes itself; without bytes if there is none. */
    distile::MaskBytes take_mirror() {
        return std::exchange(unwritten_, {});
    }

private:
    distile::MaskBytes unwritten_{};
};

#endif
