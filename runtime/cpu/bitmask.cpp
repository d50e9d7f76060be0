#include "bitmask.h"

#include "bitmask_levels.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#if defined(__x86_64__) && defined(__GNUC__)
#define DISTILE_BITMASK_X86 1
#include <immintrin.h>
#define DISTILE_TARGET_AVX2 __attribute__((target("avx2,popcnt")))
#define DISTILE_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi2,popcnt")))
#endif

namespace distile {

namespace {

/** For every value of a byte, its number of set bits and their positions in increasing order. */
struct BytePositions {
    uint8_t count[256];
    uint8_t positions[256][8];
};

constexpr BytePositions make_byte_positions() {
    BytePositions table{};
    for (int byte = 0; byte < 256; byte++) {
        for (int bit = 0; bit < 8; bit++) {
            if ((byte >> bit) & 1) {
                table.positions[byte][table.count[byte]++] = static_cast<uint8_t>(bit);
            }
        }
    }
    return table;
}

constexpr BytePositions byte_positions = make_byte_positions();

uint32_t pack_xy(int32_t x, int32_t y) {
    return static_cast<uint32_t>(x) | static_cast<uint32_t>(y) << 16;
}

// ---- Portable level --------------------------------------------------------------------------

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
    // The sum carries into the top bit of a byte whose other bits are not all zero, and never further.
    constexpr uint64_t low_bits = 0x7f7f7f7f7f7f7f7f;
    const uint64_t nonzero = ((((eight & low_bits) + low_bits) | eight) & ~low_bits) >> 7;
    // The product moves bit 8 * i to bit 56 + i; no two terms meet, so nothing carries.
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

// Every level writes whole groups of entries and then advances by as many as are valid: the alternative, a loop
// over the set bits, ends after an unpredictable number of steps.
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

#ifdef DISTILE_BITMASK_X86

// ---- AVX2 ------------------------------------------------------------------------------------

DISTILE_TARGET_AVX2 inline uint64_t pack_64_avx2(const uint8_t *bytes) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bytes));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bytes + 32));
    const auto low_zeros = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, zero)));
    const auto high_zeros = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, zero)));
    return ~(low_zeros | static_cast<uint64_t>(high_zeros) << 32);
}

DISTILE_TARGET_AVX2 int64_t pack_row_avx2(const uint8_t *bytes, int32_t width, uint64_t *words) {
    int64_t active = 0;
    int32_t x = 0;
    for (; x + 64 <= width; x += 64) {
        const uint64_t word = pack_64_avx2(bytes + x);
        *words++ = word;
        active += _mm_popcnt_u64(word);
    }
    if (x < width) {
        // The row may end at the end of a page, so its last bytes are copied to where 64 can be read.
        uint8_t tail[64] = {};
        memcpy(tail, bytes + x, static_cast<size_t>(width - x));
        *words = pack_64_avx2(tail);
        active += _mm_popcnt_u64(*words);
    }
    return active;
}

DISTILE_TARGET_AVX2 int64_t count_avx2(const TileRows &tiles) {
    int64_t count = 0;
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words) {
        for (int32_t i = 0; i < tiles.num_words; i++) {
            count += _mm_popcnt_u64(row[i] & tiles.columns[i]);
        }
    }
    return count;
}

DISTILE_TARGET_AVX2 uint32_t *list_avx2(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy) {
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words, y += tile_h) {
        for (int32_t i = 0; i < tiles.num_words; i++) {
            __m256i origin = _mm256_set1_epi32(static_cast<int32_t>(pack_xy(64 * i, y)));
            for (uint64_t word = row[i] & tiles.columns[i]; word != 0; word >>= 8) {
                const auto *positions = reinterpret_cast<const __m128i *>(byte_positions.positions[word & 0xff]);
                const __m256i entries = _mm256_add_epi32(origin, _mm256_cvtepu8_epi32(_mm_loadl_epi64(positions)));
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(xy), entries);
                xy += byte_positions.count[word & 0xff];
                origin = _mm256_add_epi32(origin, _mm256_set1_epi32(8));
            }
        }
    }
    return xy;
}

DISTILE_TARGET_AVX2 void fill_avx2(uint32_t *begin, const uint32_t *end, uint32_t value) {
    for (; begin < end; begin += 8) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(begin), _mm256_set1_epi32(static_cast<int32_t>(value)));
    }
}

// ---- AVX-512 ---------------------------------------------------------------------------------

#ifndef __clang__
// GCC 12 takes the placeholders for undefined vectors in its own headers for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

DISTILE_TARGET_AVX512 int64_t pack_row_avx512(const uint8_t *bytes, int32_t width, uint64_t *words) {
    int64_t active = 0;
    int32_t x = 0;
    for (; x + 64 <= width; x += 64) {
        const __m512i block = _mm512_loadu_si512(bytes + x);
        const uint64_t word = _mm512_test_epi8_mask(block, block);
        *words++ = word;
        active += _mm_popcnt_u64(word);
    }
    if (x < width) {
        // A masked load does not touch the bytes that it leaves out, so they may lie in an unmapped page.
        const __mmask64 valid = (uint64_t{1} << (width - x)) - 1;
        const __m512i block = _mm512_maskz_loadu_epi8(valid, bytes + x);
        *words = _mm512_test_epi8_mask(block, block);
        active += _mm_popcnt_u64(*words);
    }
    return active;
}

DISTILE_TARGET_AVX512 uint32_t *list_avx512(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy) {
    uint8_t iota[64];
    std::iota(iota, iota + 64, uint8_t{0});
    const __m512i all_positions = _mm512_loadu_si512(iota);
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words, y += tile_h) {
        for (int32_t i = 0; i < tiles.num_words; i++) {
            const uint64_t word = row[i] & tiles.columns[i];
            if (word == 0) {
                continue;
            }
            // One compression of 64 bytes and a store for every 16 entries are faster than four compressions of 16
            // entries, and much faster than compressing into memory, which AMD Zen does in microcode. What is merged
            // behind the positions does not matter. It is there because on Zen 5 the zeroing form waits for the old
            // value of its destination register, which would chain all iterations together.
            __m512i positions = _mm512_mask_compress_epi8(all_positions, word, all_positions);
            const __m512i origin = _mm512_set1_epi32(static_cast<int32_t>(pack_xy(64 * i, y)));
            uint32_t *const end = xy + _mm_popcnt_u64(word);
            for (; xy < end; xy += 16) {
                const __m512i next = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(positions));
                _mm512_storeu_si512(xy, _mm512_add_epi32(origin, next));
                positions = _mm512_shuffle_i64x2(positions, positions, 0x39);  // The next 16 bytes become the first.
            }
            xy = end;
        }
    }
    return xy;
}

DISTILE_TARGET_AVX512 void fill_avx512(uint32_t *begin, const uint32_t *end, uint32_t value) {
    for (; begin < end; begin += 16) {
        _mm512_storeu_si512(begin, _mm512_set1_epi32(static_cast<int32_t>(value)));
    }
}

#ifndef __clang__
#pragma GCC diagnostic pop
#endif

#endif

constexpr BitmaskLevel all_levels[] = {
    {"portable", pack_row_portable, count_portable, list_portable, fill_portable},
#ifdef DISTILE_BITMASK_X86
    {"avx2", pack_row_avx2, count_avx2, list_avx2, fill_avx2},
    {"avx512", pack_row_avx512, count_avx2, list_avx512, fill_avx512},
#endif
};

int32_t count_supported_levels() {
    int32_t count = 1;
#ifdef DISTILE_BITMASK_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt")) {
        count++;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vbmi2")) {
            count++;
        }
    }
#endif
    return count;
}

// ---- Tiles -----------------------------------------------------------------------------------

// A tile is kept at its first pixel: once a row holds the union of the rows of a row of tiles, bit x becomes the
// union of bits [x, x + tile width), and the bits at multiples of the tile width are the tiles. All of this is
// done a word at a time for any tile width, and the position of a tile's bit is its origin.

/** Replaces bit x by the union of bits [x, x + width), where width <= 64 * num_words. */
void widen_row(uint64_t *row, int32_t num_words, int32_t width) {
    for (int32_t done = 1; done < width;) {
        const int32_t step = std::min(done, width - done);
        const int32_t words = step / 64, bits = step % 64;
        const int32_t last = num_words - 1 - words;
        for (int32_t i = 0; i < last; i++) {
            // In two shifts, because a shift by 64 bits is undefined.
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
    // The first multiple of the period that is not below the current word, relative to that word.
    int32_t first = 0;
    const int32_t num_words = (width + 63) / 64;
    for (int32_t i = 0; i < num_words; i++) {
        row[i] = first < 64 ? multiples << first : 0;
        while (first < 64) {
            first += period;
        }
        first -= 64;
    }
    // No tile begins in the padding, where bits of the next row may have been moved to.
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

    // A tile that is larger than an image covers the same pixels as one of the image's size.
    Grid(const Bitmask &mask, Granularity granularity)
        : tile{std::min(granularity.h, mask.height), std::min(granularity.w, mask.width)},
          height((mask.height + tile.h - 1) / tile.h), width((mask.width + tile.w - 1) / tile.w),
          num_words(mask.words_per_row()) {
    }
};

/** Makes the rows of tiles of image n: grid.height * grid.num_words words. */
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

    // Where the last tile of a row ends within the words of the row, no tile can see bits of the next row, and all
    // rows can be widened as if they were one.
    const bool join_rows = grid.width * grid.tile.w <= 64 * num_words;
    const int32_t step = join_rows ? grid_words : num_words;
    for (int32_t begin = 0; begin < grid_words; begin += step) {
        widen_row(tiles + begin, step, grid.tile.w);
    }
}

}  // namespace

Levels<BitmaskLevel> supported_bitmask_levels() {
    static const int32_t count = count_supported_levels();
    return {all_levels, count};
}

int64_t pack_bitmask(const BitmaskLevel &level, const uint8_t *bytes, int64_t stride_n, int64_t stride_h, int32_t batch,
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
    // All rows of tiles and up to three rows of columns.
    return (int64_t{mask.batch} * mask.height + 3) * mask.words_per_row();
}

void count_tiles(const BitmaskLevel &level, const Bitmask &mask, const Granularity *granularities,
                 int32_t num_granularities, uint64_t *scratch, int64_t *counts) {
    const int32_t num_words = mask.words_per_row();
    uint64_t *columns = scratch, *tiles = scratch + num_words;
    std::fill_n(counts, num_granularities, int64_t{0});
    // An image is done at all granularities before the next one, while its words are in a cache.
    for (int32_t n = 0; n < mask.batch; n++) {
        for (int32_t g = 0; g < num_granularities; g++) {
            const Grid grid(mask, granularities[g]);
            set_multiples(columns, mask.width, grid.tile.w);
            fold_tiles(mask, n, grid, tiles);
            counts[g] += level.count({tiles, columns, grid.height, num_words});
        }
    }
}

int64_t list_tiles(const BitmaskLevel &level, const Bitmask &mask, Granularity granularity, const TileRect &interior,
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
    return pack_bitmask(supported_bitmask_levels().best(), bytes, stride_n, stride_h, batch, height, width, words);
}

int64_t count_pixels(const Bitmask &mask, uint64_t *scratch) {
    set_multiples(scratch, mask.width, 1);
    return supported_bitmask_levels().best().count(
        {mask.words, scratch, mask.batch * mask.height, mask.words_per_row()});
}

void count_tiles(const Bitmask &mask, const Granularity *granularities, int32_t num_granularities, uint64_t *scratch,
                 int64_t *counts) {
    count_tiles(supported_bitmask_levels().best(), mask, granularities, num_granularities, scratch, counts);
}

int64_t list_tiles(const Bitmask &mask, Granularity granularity, const TileRect &interior, uint64_t *scratch,
                   uint32_t *xy, uint32_t *image) {
    return list_tiles(supported_bitmask_levels().best(), mask, granularity, interior, scratch, xy, image);
}

}  // namespace distile
