/** \file
 * The inner loops that are written for several instruction sets. A further set is one file and one row in
 * simd_level.cpp. All levels give the same results, to the bit.
 */
#ifndef DISTILE_SIMD_LEVEL_H
#define DISTILE_SIMD_LEVEL_H

#include <cstdint>

namespace distile {

/** Some rows of the tile grid of an image. A bit that is set both in a row and in `columns` is a tile, and its
 * position is the tile's origin in pixels. */
struct TileRows {
    const uint64_t *rows;     ///< num_rows * num_words
    const uint64_t *columns;  ///< num_words
    int32_t num_rows, num_words;
};

/** Entries beyond the last one that `list` and `fill` may overwrite, so that they can store whole vectors. */
constexpr int64_t tile_list_slack = 16;

/** Rows and columns that are transposed together: a cache line of each. */
constexpr int64_t transpose_block = 16;

struct SimdLevel {
    const char *name;
    /** Whether this CPU and its operating system run the level. */
    bool (*is_supported)();

    // Bitmasks.

    /** Packs `width` bytes into ceil(width / 64) words and returns the number of nonzero bytes. */
    int64_t (*pack_row)(const uint8_t *bytes, int32_t width, uint64_t *words);
    /** Counts the tiles. */
    int64_t (*count)(const TileRows &tiles);
    /** Writes x | y << 16 for every tile, where y starts at `y` and grows by `tile_h` a row, and returns the end
     * of the list. May overwrite tile_list_slack entries beyond it. */
    uint32_t *(*list)(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy);
    /** Writes `value` to all of [begin, end), and may overwrite tile_list_slack entries beyond the end. */
    void (*fill)(uint32_t *begin, const uint32_t *end, uint32_t value);

    // Rows of bits.

    /** Writes the bits of a row that are set in `places`, moved together. At most 32 are set in a word of `places`. */
    void (*extract)(const uint64_t *row, const uint64_t *places, int32_t num_words, uint64_t *out);
    /** The reverse: writes the next bit of `in`, of in_words words, to each of the places, and 0 between them. */
    void (*deposit)(const uint64_t *in, int32_t in_words, const uint64_t *places, int32_t num_words, uint64_t *row);
    /** to[x] = any of num_rows rows[x], which lie `distance` words apart; 0 of none. */
    void (*unite_rows)(const uint64_t *from, int64_t distance, int32_t num_rows, int32_t num_words, uint64_t *to);

    // Tensors.

    /** Bit i of `bits`, of ceil(count / 64) words: whether |a[i] - b[i]| > threshold or is not a number. */
    void (*compare)(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits);
    /** to[c * to_stride + r] = from[r * from_stride + c] for r < rows and c < columns. */
    void (*transpose)(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                      int64_t columns);
};

/** The levels that this CPU runs: at least one, the fastest last. */
class SimdLevels {
public:
    class Iterator {
    public:
        explicit Iterator(const SimdLevel *const *at) : at_(at) {
        }
        const SimdLevel &operator*() const {
            return **at_;
        }
        Iterator &operator++() {
            at_++;
            return *this;
        }
        bool operator!=(const Iterator &other) const {
            return at_ != other.at_;
        }

    private:
        const SimdLevel *const *at_;
    };

    SimdLevels(const SimdLevel *const *levels, int32_t count) : levels_(levels), count_(count) {
    }
    Iterator begin() const {
        return Iterator(levels_);
    }
    Iterator end() const {
        return Iterator(levels_ + count_);
    }
    int32_t size() const {
        return count_;
    }
    const SimdLevel &operator[](int32_t i) const {
        return *levels_[i];
    }
    const SimdLevel &best() const {
        return *levels_[count_ - 1];
    }

private:
    const SimdLevel *const *levels_;
    int32_t count_;
};

SimdLevels supported_simd_levels();

}  // namespace distile

#endif
