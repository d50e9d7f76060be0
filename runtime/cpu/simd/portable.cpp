/** \file
 * Plain C++, for any CPU.
 */
#include "runtime/cpu/simd/channel_loops.h"
#include "runtime/cpu/simd/row_sums.h"
#include "runtime/cpu/simd/simd_files.h"
#include "runtime/cpu/simd/transpose_portable.h"
#include "runtime/cpu/simd/type_loops.h"
#include <cstring>

namespace distile {

namespace {

int64_t popcount(uint64_t word) {
    word -= (word >> 1) & 0x5555555555555555;
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
    return static_cast<int64_t>((word * 0x0101010101010101) >> 56);
}

/** Packs up to 8 bytes into the low bits of a word. */
uint64_t pack_8(const uint8_t *bytes, size_t count) {
    uint64_t eight = 0;
    memcpy(&eight, bytes, count);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    eight = __builtin_bswap64(eight);
#endif
    // The sum carries into the top bit of each byte with a nonzero low bit, and never further.
    constexpr uint64_t low_bits = 0x7f7f7f7f7f7f7f7f;
    const uint64_t nonzero = ((((eight & low_bits) + low_bits) | eight) & ~low_bits) >> 7;
    // The product moves bit 8 * i to bit 56 + i; no two terms overlap, so nothing carries.
    return (nonzero * 0x0102040810204080) >> 56;
}

int64_t pack_row_portable(const uint8_t *bytes, int32_t width, uint64_t *words) {
    int64_t active = 0;
    for (int32_t x = 0; x < width; x += 64) {
        const int32_t end = std::min(width - x, 64);
        uint64_t word = 0;
        int32_t bit = 0;
        for (; bit + 8 <= end; bit += 8) {
            word |= pack_8(bytes + x + bit, 8) << bit;
        }
        if (bit < end) {
            word |= pack_8(bytes + x + bit, static_cast<size_t>(end - bit)) << bit;
        }
        *words++ = word;
        active += popcount(word);
    }
    return active;
}

int64_t count_portable(const TileRows &tiles) {
    int64_t count = 0;
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words) {
        for (int32_t i = 0; i < tiles.num_words; i++) {
            count += popcount(row[i] & tiles.columns[i]);
        }
    }
    return count;
}

// Every level writes whole groups of entries and then advances by the number of valid ones. A loop over the set bits
// would end after an unpredictable number of steps.
uint32_t *list_portable(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy) {
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words, y += tile_h) {
        for (int32_t i = 0; i < tiles.num_words; i++) {
            uint32_t origin = pack_xy(64 * i, y);
            for (uint64_t word = row[i] & tiles.columns[i]; word != 0; word >>= 8, origin += 8) {
                const uint8_t *positions = byte_positions.positions[word & 0xff];
                for (int lane = 0; lane < 8; lane++) {
                    xy[lane] = origin + positions[lane];
                }
                xy += byte_positions.count[word & 0xff];
            }
        }
    }
    return xy;
}

void fill_portable(uint32_t *begin, const uint32_t *end, uint32_t value) {
    std::fill_n(begin, end - begin, value);
}

uint64_t lowest_bit(uint64_t word) {
    return word & (~word + 1);
}

void extract_portable(const uint64_t *row, const uint64_t *places, int32_t num_words, uint64_t *out) {
    uint64_t pending = 0;
    int filled = 0;
    for (int32_t i = 0; i < num_words; i++) {
        for (uint64_t rest = places[i]; rest != 0; rest &= rest - 1) {
            pending |= static_cast<uint64_t>((row[i] & lowest_bit(rest)) != 0) << filled;
            if (++filled == 64) {
                *out++ = pending;
                pending = 0;
                filled = 0;
            }
        }
    }
    if (filled > 0) {
        *out = pending;
    }
}

void deposit_portable(const uint64_t *in, int32_t in_words, const uint64_t *places, int32_t num_words, uint64_t *row) {
    int64_t at = 0;
    for (int32_t i = 0; i < num_words; i++) {
        row[i] = 0;
        uint64_t bits = word_at(in, in_words, at);
        for (uint64_t rest = places[i]; rest != 0; rest &= rest - 1, bits >>= 1, at++) {
            row[i] |= (bits & 1) != 0 ? lowest_bit(rest) : 0;
        }
    }
}

void compare_portable(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits) {
    for (int64_t i = 0; i < count; i += 64) {
        *bits++ = compare_up_to_64(a + i, b + i, std::min<int64_t>(count - i, 64), threshold);
    }
}

DISTILE_TYPE_LOOPS()
DISTILE_CONVERSIONS()

float sum_differences_portable(const float *from, int64_t count, float shift) {
    return sum_differences(from, count, shift);
}

float sum_squares_portable(const float *from, int64_t count, float shift, float mean) {
    return sum_squares(from, count, shift, mean);
}

void normalize_portable(const float *from, int64_t count, const RowNorm &norm, float *to) {
    normalize_row(from, count, norm, to);
}

DISTILE_CHANNEL_LOOPS()

bool is_supported() {
    return true;
}

}  // namespace

const SimdLevel portable_level = {"portable",
                                  is_supported,
                                  pack_row_portable,
                                  count_portable,
                                  list_portable,
                                  fill_portable,
                                  extract_portable,
                                  deposit_portable,
                                  unite_rows,
                                  compare_portable,
                                  conversions,
                                  transpose_portable<float>,
                                  sum_differences_portable,
                                  sum_squares_portable,
                                  normalize_portable,
                                  channel_loops};

}  // namespace distile
