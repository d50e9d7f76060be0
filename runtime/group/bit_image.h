/** \file
 * Masks of host memory, as plans for groups of devices work on them.
 */
#ifndef DISTILE_BIT_IMAGE_H
#define DISTILE_BIT_IMAGE_H

#include "runtime/cpu/bitmask.h"
#include <vector>

namespace distile {

/** A rectangle of the images [image, image + batch): rows from y, columns from x. Empty if an extent is 0. */
struct PixelBox {
    int32_t image = 0, y = 0, x = 0;
    MaskShape shape{0, 0, 0};

    bool is_empty() const {
        return shape.num_pixels() == 0;
    }
};

/** A bitmask that owns its words. */
class BitImage {
public:
    BitImage() = default;
    explicit BitImage(const MaskShape &given)
        : shape(given), words(static_cast<size_t>(given.batch) * static_cast<size_t>(given.height) *
                              static_cast<size_t>((given.width + 63) / 64)) {
    }

    int32_t words_per_row() const {
        return (shape.width + 63) / 64;
    }
    Bitmask view() const {
        return {words.data(), shape.batch, shape.height, shape.width};
    }
    uint64_t *row(int32_t image, int32_t y) {
        return &words[(static_cast<size_t>(image) * shape.height + y) * words_per_row()];
    }
    const uint64_t *row(int32_t image, int32_t y) const {
        return &words[(static_cast<size_t>(image) * shape.height + y) * words_per_row()];
    }
    /** Sets the bits [first, last) of a row. */
    void set(int32_t image, int32_t y, int32_t first, int32_t last);
    int64_t count() const;
    /** The least box that has every bit; empty if there is none. */
    PixelBox bounds() const;

    MaskShape shape{0, 0, 0};
    std::vector<uint64_t> words;
};

/** The number of bits in [first, last) of a row. */
int64_t count_bits(const uint64_t *row, int32_t first, int32_t last);

/** The first bit in [first, last) of a row, or `last`; the last one, or first - 1. */
int32_t first_bit(const uint64_t *row, int32_t first, int32_t last);
int32_t last_bit(const uint64_t *row, int32_t first, int32_t last);

/** The first place in [first, last) of a row without a bit, or `last`. */
int32_t first_gap(const uint64_t *row, int32_t first, int32_t last);

/** The part of an image in a box, which may not reach beyond it. */
BitImage crop(const BitImage &image, const PixelBox &box);

/** Calls run(first, last) for each run of bits in a row. */
template<typename Run> void for_each_run(const uint64_t *row, int32_t width, const Run &run) {
    for (int32_t first = first_bit(row, 0, width); first < width;) {
        const int32_t last = first_gap(row, first, width);
        run(first, last);
        first = first_bit(row, last, width);
    }
}

}  // namespace distile

#endif
