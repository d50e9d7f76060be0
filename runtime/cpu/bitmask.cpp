#include "runtime/cpu/bitmask.h"
#include "runtime/cpu/bitmask_levels.h"
#include <algorithm>

namespace distile {

namespace {

// A tile's bit is stored at its first pixel. A row first becomes the union of all rows of its row of tiles; then bit x
// becomes the union of bits [x, x + tile width), and the bits at multiples of the tile width are the tiles. All steps
// work on whole words for any tile width, and the position of a tile's bit is the tile's origin.

/** Replaces bit x with the union of bits [x, x + width); width <= 64 * num_words. */
void widen_row(uint64_t *row, int32_t num_words, int32_t width) {
    for (int32_t done = 1; done < width;) {
        const int32_t step = std::min(done, width - done);
        const int32_t words = step / 64, bits = step % 64;
        const int32_t last = num_words - 1 - words;
        for (int32_t i = 0; i < last; i++) {
            // Two shifts, because a shift by 64 bits is undefined.
            row[i] |= row[i + words] >> bits | (row[i + words + 1] << 1) << (63 - bits);
        }
        row[last] |= row[num_words - 1] >> bits;
        done += step;
    }
}

/** Sets exactly the bits at multiples of `period` in a row of `width` pixels. */
void set_multiples(uint64_t *row, int32_t width, int32_t period) {
    uint64_t multiples = 1;
    for (int32_t shift = period; shift < 64; shift *= 2) {
        multiples |= multiples << shift;
    }
    // The first multiple of the period at or after the start of the current word, relative to it.
    int32_t first = 0;
    const int32_t num_words = (width + 63) / 64;
    for (int32_t i = 0; i < num_words; i++) {
        row[i] = first < 64 ? multiples << first : 0;
        while (first < 64) {
            first += period;
        }
        first -= 64;
    }
    // No tile starts in the padding, which may hold bits shifted in from the next row.
    row[num_words - 1] &= ~uint64_t{0} >> (64 * num_words - width);
}

/** Sets exactly the bits in [begin, end). */
void set_range(uint64_t *row, int32_t num_words, int32_t begin, int32_t end) {
    for (int32_t i = 0; i < num_words; i++, begin -= 64, end -= 64) {
        const uint64_t from_begin = begin >= 64 ? 0 : ~uint64_t{0} << std::max(begin, 0);
        const uint64_t from_end = end >= 64 ? 0 : ~uint64_t{0} << std::max(end, 0);
        row[i] = from_begin & ~from_end;
    }
}

/** The tile grid of every image of a mask. */
struct Grid {
    Granularity tile;
    int32_t height, width, num_words;

    // A tile larger than the image covers the same pixels as a tile of the image's size.
    Grid(const Bitmask &mask, Granularity granularity)
        : tile{std::min(granularity.h, mask.height), std::min(granularity.w, mask.width)},
          height((mask.height + tile.h - 1) / tile.h), width((mask.width + tile.w - 1) / tile.w),
          num_words(mask.words_per_row()) {
    }
};

/** Writes the rows of tiles of image n: grid.height * grid.num_words words. */
void fold_tiles(const Bitmask &mask, int32_t n, const Grid &grid, uint64_t *tiles) {
    const int32_t num_words = grid.num_words, grid_words = grid.height * num_words;
    const uint64_t *image = mask.words + int64_t{n} * mask.height * num_words;
    if (grid.tile.h == 1) {
        std::copy_n(image, grid_words, tiles);
    } else {
        uint64_t *out = tiles;
        for (int32_t y = 0; y < mask.height; y += grid.tile.h) {
            const uint64_t *begin = image + int64_t{y} * num_words;
            const uint64_t *end = image + int64_t{std::min(y + grid.tile.h, mask.height)} * num_words;
            for (int32_t i = 0; i < num_words; i++) {
                uint64_t any = 0;
                for (const uint64_t *row = begin; row < end; row += num_words) {
                    any |= row[i];
                }
                *out++ = any;
            }
        }
    }

    // If the last tile of a row ends within the row's words, no tile can see bits of the next row, so all rows can be
    // widened as one.
    const bool join_rows = grid.width * grid.tile.w <= 64 * num_words;
    const int32_t step = join_rows ? grid_words : num_words;
    for (int32_t begin = 0; begin < grid_words; begin += step) {
        widen_row(tiles + begin, step, grid.tile.w);
    }
}

}  // namespace

int64_t pack_bitmask(const SimdLevel &level, const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch,
                     int32_t height, int32_t width, uint64_t *words) {
    const int32_t words_per_row = (width + 63) / 64;
    int64_t active = 0;
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            active += level.pack_row(bytes + n * stride_n + y * stride_h, width, words);
            words += words_per_row;
        }
    }
    return active;
}

int64_t tile_scratch_words(const Bitmask &mask) {
    // All rows of tiles and up to three rows for columns.
    return (int64_t{mask.batch} * mask.height + 3) * mask.words_per_row();
}

void count_tiles(const SimdLevel &level, const Bitmask &mask, const Granularity *granularities,
                 int32_t num_granularities, uint64_t *scratch, int64_t *counts) {
    const int32_t num_words = mask.words_per_row();
    uint64_t *columns = scratch, *tiles = scratch + num_words;
    std::fill_n(counts, num_granularities, int64_t{0});
    // Count an image at all granularities before the next image, while its words are in cache.
    for (int32_t n = 0; n < mask.batch; n++) {
        for (int32_t g = 0; g < num_granularities; g++) {
            const Grid grid(mask, granularities[g]);
            set_multiples(columns, mask.width, grid.tile.w);
            fold_tiles(mask, n, grid, tiles);
            counts[g] += level.count({tiles, columns, grid.height, num_words});
        }
    }
}

int64_t list_tiles(const SimdLevel &level, const Bitmask &mask, Granularity granularity, const TileRect &interior,
                   uint64_t *scratch, uint32_t *xy, uint32_t *image) {
    const Grid grid(mask, granularity);
    const int32_t num_words = grid.num_words;
    const int32_t y0 = std::clamp(interior.y0, 0, grid.height), y1 = std::clamp(interior.y1, y0, grid.height);
    const int32_t x0 = std::clamp(interior.x0, 0, grid.width), x1 = std::clamp(interior.x1, x0, grid.width);

    uint64_t *columns = scratch;
    uint64_t *inside = columns + num_words;
    uint64_t *outside = inside + num_words;
    uint64_t *tiles = outside + num_words;
    set_multiples(columns, mask.width, grid.tile.w);
    set_range(inside, num_words, x0 * grid.tile.w, x1 * grid.tile.w);
    for (int32_t i = 0; i < num_words; i++) {
        outside[i] = columns[i] & ~inside[i];
        inside[i] &= columns[i];
    }

    uint32_t *end = xy;
    const auto list_rows = [&](int32_t n, int32_t row_begin, int32_t row_end, const uint64_t *in_columns) {
        const uint64_t *rows = tiles + (int64_t{n} * grid.height + row_begin) * num_words;
        uint32_t *const begin = end;
        end = level.list({rows, in_columns, row_end - row_begin, num_words}, row_begin * grid.tile.h, grid.tile.h, end);
        level.fill(image + (begin - xy), image + (end - xy), static_cast<uint32_t>(n));
    };
    for (int32_t n = 0; n < mask.batch; n++) {
        fold_tiles(mask, n, grid, tiles + int64_t{n} * grid.height * num_words);
        list_rows(n, y0, y1, inside);
    }
    const int64_t num_interior = end - xy;
    for (int32_t n = 0; n < mask.batch; n++) {
        list_rows(n, 0, y0, columns);
        list_rows(n, y0, y1, outside);
        list_rows(n, y1, grid.height, columns);
    }
    return num_interior;
}

int64_t pack_bitmask(const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch, int32_t height,
                     int32_t width, uint64_t *words) {
    return pack_bitmask(supported_simd_levels().best(), bytes, stride_n, stride_h, batch, height, width, words);
}

int64_t count_pixels(const Bitmask &mask, uint64_t *scratch) {
    set_multiples(scratch, mask.width, 1);
    return supported_simd_levels().best().count({mask.words, scratch, mask.batch * mask.height, mask.words_per_row()});
}

void count_tiles(const Bitmask &mask, const Granularity *granularities, int32_t num_granularities, uint64_t *scratch,
                 int64_t *counts) {
    count_tiles(supported_simd_levels().best(), mask, granularities, num_granularities, scratch, counts);
}

int64_t list_tiles(const Bitmask &mask, Granularity granularity, const TileRect &interior, uint64_t *scratch,
                   uint32_t *xy, uint32_t *image) {
    return list_tiles(supported_simd_levels().best(), mask, granularity, interior, scratch, xy, image);
}

}  // namespace distile
