/** \file
 * The rows of the matrix product: the active output pixels, and what each reads, staged as the instructions take it.
 */
#ifndef DISTILE_DOT_PRODUCT_ROWS_H
#define DISTILE_DOT_PRODUCT_ROWS_H

#include "kernels/cpu/short_copy.h"
#include "kernels/dot_products.h"
#include <cstdint>
#include <distile/polykernel.h>

namespace distile::dot_product {

/** The bytes of a step of the reduction. */
constexpr int32_t step_bytes = 64;

/** The dimensions of an activation. */
enum Dimension { Channel, X, Y, Image };

/** The taps of one phase on both axes. */
struct Phase {
    int32_t row, column;  ///< Row and column of its output pixels, modulo the scales.
    distile_taps rows, columns;
    int32_t index;       ///< Its index among all phases, row by row.
    int32_t first_step;  ///< The first step of its weights.
    int32_t steps;
};

/** An output pixel. Offsets in elements. */
struct Row {
    int32_t y, x;   ///< The input pixel of its first tap.
    int64_t input;  ///< Offset of this pixel, which may lie outside the input.
    int64_t output, residual;
    int32_t column;  ///< Its first staged column (columns.h).
};

/** Walks the pixels of some tiles that are to be stored. `Types` as in product.h. */
template<class Types> class Rows {
public:
    using Element = typename Types::Element;
    static constexpr int32_t step_elements = step_bytes / static_cast<int32_t>(sizeof(Element));

    Rows(const distile_dot_product_code &code, const distile_kernel_call &call, const Types &types, int32_t first_tile,
         int32_t last_tile)
        : types_(types), code_(code), call_(call), input_(call.operands[0]),
          width_(call.operands[call.num_operands - 1].dim[X].extent), inputs_(input_),
          outputs_(call.operands[call.num_operands - 1]), residuals_(call.operands[call.num_operands - 2]),
          tile_(first_tile), last_tile_(last_tile) {
    }

    /** Gets up to `most` rows of a phase. Returns their number: less than `most` only at the end. */
    int32_t take(const Phase &phase, Row *rows, int32_t most) {
        int32_t count = 0;
        while (tile_ < last_tile_ && count < most) {
            const uint32_t xy = call_.tile_xy[tile_];
            const int32_t y = static_cast<int32_t>(xy >> 16) + down_, x = static_cast<int32_t>(xy & 0xffff) + right_;
            const auto image = static_cast<int32_t>(call_.tile_xy[call_.tile_capacity + tile_]);
            if (++right_ == code_.tile_w) {
                right_ = 0;
                if (++down_ == code_.tile_h) {
                    down_ = 0;
                    tile_++;
                }
            }
            if (y < call_.height && x < width_ && remainder(y, code_.scale_h) == phase.row &&
                remainder(x, code_.scale_w) == phase.column && is_stored(y, x, image)) {
                set(rows[count++], phase, y, x, image);
            }
        }
        return count;
    }

    /** Finds the input pixels that `count` rows read: [tap][row]. They are null beyond the input. */
    void find(const Phase &phase, const Row *rows, int32_t count, const Element **pixels) const {
        for (int32_t ty = 0; ty < phase.rows.taps; ty++) {
            for (int32_t tx = 0; tx < phase.columns.taps; tx++) {
                for (int32_t row = 0; row < count; row++) {
                    *pixels++ = pixel(rows[row], ty * phase.rows.step, tx * phase.columns.step);
                }
            }
        }
    }
    /** Some channels of pixels that find() found. */
    struct Pixels {
        const Element *const *first;
        int32_t rows, taps;
        int32_t channel, channels;
    };
    /** Copies them into a block, whose steps are `stride` elements apart. Pixels beyond the input, and what is left of
     * the last step, are padding. */
    void stage(const Pixels &pixels, Element *to, int32_t stride) const {
        for (int32_t row = 0; row < pixels.rows; row += most_together, to += most_together * step_elements) {
            const int32_t left = pixels.rows - row;
            stage_together(pixels, row, left < most_together ? left : most_together, to, stride);
        }
    }
    /** Whether rows lie side by side in the input, and read nothing beyond it. */
    bool are_even(const Phase &phase, const Row *rows, int32_t count) const {
        const Row &first = rows[0], &last = rows[count - 1];
        const int32_t down = (phase.rows.taps - 1) * phase.rows.step,
                      right = (phase.columns.taps - 1) * phase.columns.step;
        for (int32_t i = 1; i < count; i++) {
            if (!continues(rows[i - 1], rows[i], code_.stride_w)) {
                return false;
            }
        }
        return pixel(first, 0, 0) && pixel(first, down, right) && pixel(last, 0, 0) && pixel(last, down, right);
    }
    /** The input pixel at a distance from that of a row's first tap; null outside the input. */
    const Element *pixel(const Row &row, int32_t down, int32_t right) const {
        return is_inside(row.y + down, Y) && is_inside(row.x + right, X)
                   ? static_cast<const Element *>(input_.data) + row.input + int64_t{down} * input_.dim[Y].stride +
                         int64_t{right} * input_.dim[X].stride
                   : nullptr;
    }
    /** Whether a row reads the same input rows as the one before, `right` pixels further right. */
    bool continues(const Row &before, const Row &row, int32_t right) const {
        return row.y == before.y && row.x - before.x == right &&
               row.input - before.input == int64_t{right} * input_.dim[X].stride;
    }

private:
    /** Most operators have a scale of 1, and divisions take long. */
    static int32_t quotient(int32_t a, int32_t scale) {
        return scale == 1 ? a : a / scale;
    }
    static int32_t remainder(int32_t a, int32_t scale) {
        return scale == 1 ? 0 : a % scale;
    }
    bool is_inside(int32_t coordinate, Dimension dimension) const {
        const auto &dim = input_.dim[dimension];
        return static_cast<uint32_t>(coordinate - dim.min) < static_cast<uint32_t>(dim.extent);
    }
    bool is_stored(int32_t y, int32_t x, int32_t image) const {
        const int64_t word = (int64_t{image} * call_.height + y) * call_.words_per_row + x / 32;
        return call_.store_tiles != 0 || (call_.bits[word] >> (x % 32) & 1) != 0;
    }
    /** Where the pixels of an activation are. */
    struct Places {
        int64_t first, x, y, image;

        explicit Places(const distile_array &array)
            : first(-int64_t{array.dim[Y].min} * array.dim[Y].stride - int64_t{array.dim[X].min} * array.dim[X].stride),
              x(array.dim[X].stride), y(array.dim[Y].stride), image(array.dim[Image].stride) {
        }
        int64_t at(int32_t row, int32_t column, int32_t number) const {
            return first + row * y + column * x + number * image;
        }
    };
    /** Writes in place: copying the row would stall on the stores before it. */
    void set(Row &row, const Phase &phase, int32_t y, int32_t x, int32_t image) const {
        row.y = quotient(y, code_.scale_h) * code_.stride_h + phase.rows.first;
        row.x = quotient(x, code_.scale_w) * code_.stride_w + phase.columns.first;
        row.input = inputs_.at(row.y, row.x, image);
        row.output = outputs_.at(y, x, image);
        row.residual = residuals_.at(y, x, image);
    }
    /** The most rows that are staged at a time. */
    static constexpr int32_t most_together = 32;

    /** Fills one step of all rows after the other: what is written lies side by side, in few pages. */
    void stage_together(const Pixels &pixels, int32_t row, int32_t count, Element *to, int32_t stride) const {
        const Element *const *of_tap = pixels.first + row;
        int32_t offset = 0;  // In the step.
        for (int32_t tap = 0; tap < pixels.taps; tap++, of_tap += pixels.rows) {
            for (int32_t done = 0; done < pixels.channels;) {
                const int32_t room = step_elements - offset, left = pixels.channels - done,
                              part = left < room ? left : room;
                copy(of_tap, count, pixels.channel + done, part, to + offset);
                done += part;
                offset += part;
                if (offset == step_elements) {
                    offset = 0;
                    to += stride;
                }
            }
        }
        for (int32_t i = 0; offset != 0 && i < count; i++) {
            types_.pad(to + i * step_elements + offset, step_elements - offset);
        }
    }
    /** Copies a part of a step of each pixel, or padding. */
    void copy(const Element *const *pixels, int32_t count, int32_t from, int32_t part, Element *to) const {
        const auto copy_all = [&](const auto &copy_one) {
            for (int32_t row = 0; row < count; row++, to += step_elements) {
                if (pixels[row]) {
                    copy_one(reinterpret_cast<const uint8_t *>(pixels[row] + from), reinterpret_cast<uint8_t *>(to));
                } else {
                    types_.pad(to, part);
                }
            }
        };
        ShortCopy<Types>::with(part * static_cast<int32_t>(sizeof(Element)), types_.flip(), copy_all);
    }

    const Types &types_;
    const distile_dot_product_code &code_;
    const distile_kernel_call &call_;
    const distile_array &input_;
    const int32_t width_;  ///< The output's width.
    const Places inputs_, outputs_, residuals_;
    int32_t tile_, last_tile_;
    int32_t down_ = 0, right_ = 0;  ///< In the tile.
};

}  // namespace distile::dot_product

#endif
