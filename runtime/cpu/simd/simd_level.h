/** \file
 * The inner loops that exist for several instruction sets. To add one, add a file, and a row in the file of its
 * architecture in ../architectures/. All levels give bit-identical results.
 */
#ifndef DISTILE_SIMD_LEVEL_H
#define DISTILE_SIMD_LEVEL_H

#include "runtime/base/activation.h"
#include <cstdint>
#include <distile/layers.h>

namespace distile {

/** Some rows of an image's tile grid. A bit set in both a row and `columns` is a tile; its position is the tile's
 * origin in pixels. */
struct TileRows {
    const uint64_t *rows;     ///< num_rows * num_words
    const uint64_t *columns;  ///< num_words
    int32_t num_rows, num_words;
};

/** Entries beyond the end that `list` and `fill` may overwrite, so they can store whole vectors. */
constexpr int64_t tile_list_slack = 16;

/** Rows and columns transposed together: a cache line of each. */
constexpr int64_t transpose_block = 16;

/** How to normalize a row: (x - shift - mean) * factor * gamma + beta. */
struct RowNorm {
    float shift, mean, factor;
    const float *gamma, *beta;
};

/** How to normalize channels: (x - mean) * factor + summand. */
struct ChannelNorm {
    const float *mean, *factor, *summand;
};

/** Loops over the channels of a pixel, in float32. `to` may be an operand. */
struct ChannelLoops {
    void (*activate)(const Activation &activation, int64_t count, float *values);
    void (*add)(const float *a, const float *b, int64_t count, float *to);
    void (*multiply)(const float *a, const float *b, int64_t count, float *to);
    /** NaN if either is. */
    void (*maximize)(const float *a, const float *b, int64_t count, float *to);
    void (*divide)(float by, int64_t count, float *values);
    /** Adds the values and their squares. */
    void (*add_moments)(const float *from, int64_t count, double *sums, double *squares);
    void (*standardize)(const float *from, int64_t count, const ChannelNorm &norm, float *to);
    /** The sum of products. */
    float (*dot)(const float *a, const float *b, int64_t count);
};

/** Conversions of a type to float32, and back to the nearest, ties to even. */
struct FloatConversion {
    void (*widen)(const void *from, float *to, int64_t count);
    void (*narrow)(const float *from, void *to, int64_t count);
};

struct SimdLevel {
    const char *name;
    /** Whether this CPU and operating system can run the level. */
    bool (*is_supported)();

    // Bitmasks.

    /** Packs `width` bytes into ceil(width / 64) words and returns the number of nonzero bytes. */
    int64_t (*pack_row)(const uint8_t *bytes, int32_t width, uint64_t *words);
    /** Counts the tiles. */
    int64_t (*count)(const TileRows &tiles);
    /** Writes x | y << 16 for every tile, where y starts at `y` and grows by `tile_h` per row. Returns the end of the
     * list. May overwrite tile_list_slack entries beyond it. */
    uint32_t *(*list)(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy);
    /** Writes `value` to [begin, end). May overwrite tile_list_slack entries beyond the end. */
    void (*fill)(uint32_t *begin, const uint32_t *end, uint32_t value);

    // Rows of bits.

    /** Extracts the bits of a row selected by `places`, packed together. At most 32 bits are set per word of
     * `places`. */
    void (*extract)(const uint64_t *row, const uint64_t *places, int32_t num_words, uint64_t *out);
    /** The reverse: deposits the next bits of `in`, of in_words words, at the set bits of `places`, and 0 elsewhere. */
    void (*deposit)(const uint64_t *in, int32_t in_words, const uint64_t *places, int32_t num_words, uint64_t *row);
    /** to[x] = any of rows[x], for num_rows rows `distance` words apart; 0 if there are none. */
    void (*unite_rows)(const uint64_t *from, int64_t distance, int32_t num_rows, int32_t num_words, uint64_t *to);

    // Tensors.

    /** Sets bit i of `bits`, of ceil(count / 64) words, if |a[i] - b[i]| > threshold or is NaN. */
    void (*compare)(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits);
    const FloatConversion *conversions;  ///< By float_type_place().
    /** to[c * to_stride + r] = from[r * from_stride + c] for r < rows and c < columns. */
    void (*transpose)(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                      int64_t columns);

    // Channels of a pixel.

    /** The sum of x - shift. */
    float (*sum_differences)(const float *from, int64_t count, float shift);
    /** The sum of (x - shift - mean)^2. */
    float (*sum_squares)(const float *from, int64_t count, float shift, float mean);
    /** `to` may be `from`. */
    void (*normalize)(const float *from, int64_t count, const RowNorm &norm, float *to);
    ChannelLoops channels;
};

/** Some levels: at least one, fastest last. */
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
    SimdLevels first(int32_t count) const {
        return {levels_, count};
    }
    const SimdLevel &best() const {
        return *levels_[count_ - 1];
    }

private:
    const SimdLevel *const *levels_;
    int32_t count_;
};

/** The levels that this CPU supports. */
SimdLevels supported_simd_levels();

}  // namespace distile

#endif
