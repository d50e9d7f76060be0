/** \file
 * AVX2, with BMI2 and POPCNT.
 */
#include "runtime/cpu/simd/channel_loops.h"
#include "runtime/cpu/simd/row_sums.h"
#include "runtime/cpu/simd/simd_files.h"
#include "runtime/cpu/simd/transpose_portable.h"
#include "runtime/cpu/simd/type_loops.h"
#include <cstring>

#include <immintrin.h>
#define DISTILE_TARGET_AVX2 __attribute__((target("avx2,bmi2,f16c,popcnt")))

namespace distile {

namespace {

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
        // The row may end at the end of a page, so copy its last bytes to where 64 can be read.
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

DISTILE_TARGET_AVX2 void extract_avx2(const uint64_t *row, const uint64_t *places, int32_t num_words, uint64_t *out) {
    uint64_t pending = 0;
    int64_t filled = 0;
    for (int32_t i = 0; i < num_words; i++) {
        const uint64_t bits = _pext_u64(row[i], places[i]);
        const int64_t count = _mm_popcnt_u64(places[i]);
        pending |= bits << filled;
        filled += count;
        if (filled >= 64) {
            *out++ = pending;
            filled -= 64;
            pending = bits >> (count - filled);
        }
    }
    if (filled > 0) {
        *out = pending;
    }
}

DISTILE_TARGET_AVX2 void deposit_avx2(const uint64_t *in, int32_t in_words, const uint64_t *places, int32_t num_words,
                                      uint64_t *row) {
    int64_t at = 0;
    for (int32_t i = 0; i < num_words; i++) {
        row[i] = _pdep_u64(word_at(in, in_words, at), places[i]);
        at += _mm_popcnt_u64(places[i]);
    }
}

DISTILE_TARGET_AVX2 void unite_rows_avx2(const uint64_t *from, int64_t distance, int32_t num_rows, int32_t num_words,
                                         uint64_t *to) {
    unite_rows(from, distance, num_rows, num_words, to);
}

DISTILE_TARGET_AVX2 void compare_avx2(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits) {
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(threshold);
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        uint64_t word = 0;
        for (int j = 0; j < 64; j += 8) {
            const __m256 difference = _mm256_sub_ps(_mm256_loadu_ps(a + i + j), _mm256_loadu_ps(b + i + j));
            const __m256 above = _mm256_cmp_ps(_mm256_andnot_ps(sign, difference), limit, _CMP_NLE_UQ);
            word |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(above))) << j;
        }
        *bits++ = word;
    }
    if (i < count) {
        *bits = compare_up_to_64(a + i, b + i, count - i, threshold);
    }
}

/** Elements per vector, and the rows and columns transposed in registers. */
constexpr int64_t lanes = 8;

/** Rows i and i + 4 of 8 x 8 elements: one vector pairs their left halves, the other their right halves. */
struct RowPairs {
    __m256 left[4], right[4];
};

DISTILE_TARGET_AVX2 inline RowPairs load_whole(const float *from, int64_t stride) {
    RowPairs pairs;
    for (int i = 0; i < 4; i++) {
        const float *upper = from + i * stride, *lower = upper + 4 * stride;
        pairs.left[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper)), _mm_loadu_ps(lower), 1);
        pairs.right[i] =
            _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper + 4)), _mm_loadu_ps(lower + 4), 1);
    }
    return pairs;
}

/** load_whole() for fewer rows or columns; reads nothing beyond them. */
DISTILE_TARGET_AVX2 inline RowPairs load_part(const float *from, int64_t stride, int64_t num_rows, int64_t columns) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(columns)), lane);
    __m256 rows[lanes];
    for (int i = 0; i < lanes; i++) {
        rows[i] = i < num_rows ? _mm256_maskload_ps(from + i * stride, mask) : _mm256_setzero_ps();
    }
    RowPairs pairs;
    for (int i = 0; i < 4; i++) {
        pairs.left[i] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20);
        pairs.right[i] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31);
    }
    return pairs;
}

/** Transposes the 4 x 4 elements in each half of the vectors. */
DISTILE_TARGET_AVX2 inline void transpose_halves(const __m256 *rows, __m256 *columns) {
    const __m256 low = _mm256_unpacklo_ps(rows[0], rows[1]), low2 = _mm256_unpacklo_ps(rows[2], rows[3]);
    const __m256 high = _mm256_unpackhi_ps(rows[0], rows[1]), high2 = _mm256_unpackhi_ps(rows[2], rows[3]);
    columns[0] = _mm256_shuffle_ps(low, low2, 0x44);
    columns[1] = _mm256_shuffle_ps(low, low2, 0xee);
    columns[2] = _mm256_shuffle_ps(high, high2, 0x44);
    columns[3] = _mm256_shuffle_ps(high, high2, 0xee);
}

/** Stores the first elements. Masked stores are many times slower on AMD. */
DISTILE_TARGET_AVX2 inline void store_part(float *to, __m256 values, int64_t count) {
    __m128 rest = _mm256_castps256_ps128(values);
    if (count >= lanes) {
        _mm256_storeu_ps(to, values);
        return;
    }
    if ((count & 4) != 0) {
        _mm_storeu_ps(to, rest);
        rest = _mm256_extractf128_ps(values, 1);
        to += 4;
    }
    if ((count & 2) != 0) {
        _mm_storel_pi(reinterpret_cast<__m64 *>(to), rest);
        rest = _mm_movehl_ps(rest, rest);
        to += 2;
    }
    if ((count & 1) != 0) {
        _mm_store_ss(to, rest);
    }
}

DISTILE_TARGET_AVX2 inline void transpose_8x8(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    __m256 transposed[lanes];
    const RowPairs pairs = load_whole(from, from_stride);
    transpose_halves(pairs.left, transposed);
    transpose_halves(pairs.right, transposed + 4);
    for (int i = 0; i < lanes; i++) {
        _mm256_storeu_ps(to + i * to_stride, transposed[i]);
    }
}

DISTILE_TARGET_AVX2 void transpose_part(const float *from, int64_t from_stride, float *to, int64_t to_stride,
                                        int64_t rows, int64_t columns) {
    __m256 transposed[lanes];
    const RowPairs pairs = load_part(from, from_stride, rows, columns);
    transpose_halves(pairs.left, transposed);
    if (columns > 4) {
        transpose_halves(pairs.right, transposed + 4);
    }
    for (int64_t i = 0; i < std::min(columns, lanes); i++) {
        store_part(to + i * to_stride, transposed[i], rows);
    }
}

/** The positions of a few channels' elements in contiguous pixels. Lane j of vector k, of `channels` vectors, holds
 * element 8 k + j. */
template<int channels> struct PixelLanes {
    alignas(32) int32_t pixel[channels][lanes], is_channel[channels][channels][lanes];
    alignas(32) int32_t lane[channels][lanes], is_vector[channels][channels][lanes];

    constexpr PixelLanes() : pixel(), is_channel(), lane(), is_vector() {
        for (int32_t element = 0; element < channels * lanes; element++) {
            const int32_t k = element / lanes, j = element % lanes, x = element / channels, c = element % channels;
            pixel[k][j] = x;
            is_channel[k][c][j] = -1;
            lane[c][x] = j;
            is_vector[c][k][x] = -1;
        }
    }
};

/** Gathers lanes from several vectors: each result takes lane index[i] of the vector that `from` selects. */
template<int count> DISTILE_TARGET_AVX2 inline __m256 pick_lanes(const __m256 *vectors, const int32_t *index,
                                                                 const int32_t (*from)[lanes]) {
    const __m256i places = _mm256_load_si256(reinterpret_cast<const __m256i *>(index));
    __m256 picked = _mm256_permutevar8x32_ps(vectors[0], places);
    for (int i = 1; i < count; i++) {
        const __m256 marked = _mm256_load_ps(reinterpret_cast<const float *>(from[i]));
        picked = _mm256_blendv_ps(picked, _mm256_permutevar8x32_ps(vectors[i], places), marked);
    }
    return picked;
}

/** Transposes between planes of a few channels and contiguous pixels. */
template<int channels> DISTILE_TARGET_AVX2 void transpose_few(const float *from, int64_t from_stride, float *to,
                                                              int64_t to_stride, int64_t pixels, bool to_planes) {
    static constexpr PixelLanes<channels> where;
    int64_t x = 0;
    for (; x + lanes <= pixels; x += lanes) {
        __m256 vectors[channels];
        for (int i = 0; i < channels; i++) {
            vectors[i] = _mm256_loadu_ps(to_planes ? from + channels * x + lanes * i : from + i * from_stride + x);
        }
        for (int i = 0; i < channels; i++) {
            const __m256 result = to_planes ? pick_lanes<channels>(vectors, where.lane[i], where.is_vector[i])
                                            : pick_lanes<channels>(vectors, where.pixel[i], where.is_channel[i]);
            _mm256_storeu_ps(to_planes ? to + i * to_stride + x : to + channels * x + lanes * i, result);
        }
    }
    if (to_planes) {
        transpose_portable(from + channels * x, channels, to + x, to_stride, pixels - x, channels);
    } else {
        transpose_portable(from + x, from_stride, to + channels * x, channels, channels, pixels - x);
    }
}

DISTILE_TARGET_AVX2 void transpose_many(const float *from, int64_t from_stride, float *to, int64_t to_stride,
                                        int64_t rows, int64_t columns) {
    // Finish the side with the larger stride first: its elements may share few cache lines.
    const bool rows_first = from_stride > to_stride;
    for (int64_t r = 0; r < rows; r += transpose_block) {
        for (int64_t c = 0; c < columns; c += transpose_block) {
            const int64_t num_rows = std::min(rows - r, transpose_block);
            const int64_t num_columns = std::min(columns - c, transpose_block);
            const float *source = from + r * from_stride + c;
            float *target = to + c * to_stride + r;
            const bool whole = num_rows == transpose_block && num_columns == transpose_block;
            for (int64_t i = 0; i < transpose_block; i += lanes) {
                for (int64_t j = 0; j < transpose_block; j += lanes) {
                    const int64_t row = rows_first ? i : j, column = rows_first ? j : i;
                    if (whole) {
                        transpose_8x8(source + row * from_stride + column, from_stride,
                                      target + column * to_stride + row, to_stride);
                    } else if (row < num_rows && column < num_columns) {
                        transpose_part(source + row * from_stride + column, from_stride,
                                       target + column * to_stride + row, to_stride, num_rows - row,
                                       num_columns - column);
                    }
                }
            }
        }
    }
}

DISTILE_TARGET_AVX2 void transpose_avx2(const float *from, int64_t from_stride, float *to, int64_t to_stride,
                                        int64_t rows, int64_t columns) {
    // Few channels in contiguous pixels.
    if (rows == 3 && to_stride == 3) {
        transpose_few<3>(from, from_stride, to, to_stride, columns, false);
    } else if (rows == 4 && to_stride == 4) {
        transpose_few<4>(from, from_stride, to, to_stride, columns, false);
    } else if (columns == 3 && from_stride == 3) {
        transpose_few<3>(from, from_stride, to, to_stride, rows, true);
    } else if (columns == 4 && from_stride == 4) {
        transpose_few<4>(from, from_stride, to, to_stride, rows, true);
    } else {
        transpose_many(from, from_stride, to, to_stride, rows, columns);
    }
}

DISTILE_TYPE_LOOPS(DISTILE_TARGET_AVX2)

template<> struct TypeLoops<DISTILE_FLOAT16> {
    DISTILE_TARGET_AVX2 static void widen(const void *stored, float *to, int64_t count) {
        const auto *const from = static_cast<const uint16_t *>(stored);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i))));
        }
        widen_all<DISTILE_FLOAT16>(from + i, to + i, count - i);
    }
    DISTILE_TARGET_AVX2 static void narrow(const float *from, void *stored, int64_t count) {
        auto *const to = static_cast<uint16_t *>(stored);
        const __m256i nan = _mm256_set1_epi32(0x7fc00000), sign = _mm256_set1_epi32(INT32_MIN);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            const __m256 values = _mm256_loadu_ps(from + i);
            // As portable code does, keep only the sign of a NaN.
            const __m256 quiet =
                _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(values), sign), nan));
            const __m256 kept = _mm256_blendv_ps(values, quiet, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i),
                             _mm256_cvtps_ph(kept, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
        narrow_all<DISTILE_FLOAT16>(from + i, to + i, count - i);
    }
};

template<> struct TypeLoops<DISTILE_BFLOAT16> {
    DISTILE_TARGET_AVX2 static void widen(const void *stored, float *to, int64_t count) {
        const auto *const from = static_cast<const uint16_t *>(stored);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
            _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
        }
        widen_all<DISTILE_BFLOAT16>(from + i, to + i, count - i);
    }
    DISTILE_TARGET_AVX2 static void narrow(const float *from, void *stored, int64_t count) {
        auto *const to = static_cast<uint16_t *>(stored);
        const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(0x40);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            const __m256 values = _mm256_loadu_ps(from + i);
            const __m256i bits = _mm256_castps_si256(values), upper = _mm256_srli_epi32(bits, 16);
            const __m256i up = _mm256_add_epi32(half, _mm256_and_si256(upper, one));
            const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
            const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
            const __m256i narrowed = _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, quiet), is_nan);
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i),
                             _mm_packus_epi32(_mm256_castsi256_si128(narrowed), _mm256_extracti128_si256(narrowed, 1)));
        }
        narrow_all<DISTILE_BFLOAT16>(from + i, to + i, count - i);
    }
};

DISTILE_CONVERSIONS()

DISTILE_TARGET_AVX2 float sum_differences_avx2(const float *from, int64_t count, float shift) {
    return sum_differences(from, count, shift);
}

DISTILE_TARGET_AVX2 float sum_squares_avx2(const float *from, int64_t count, float shift, float mean) {
    return sum_squares(from, count, shift, mean);
}

DISTILE_TARGET_AVX2 void normalize_avx2(const float *from, int64_t count, const RowNorm &norm, float *to) {
    normalize_row(from, count, norm, to);
}

DISTILE_CHANNEL_LOOPS(DISTILE_TARGET_AVX2)

bool is_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("popcnt");
}

}  // namespace

const SimdLevel avx2_level = {"avx2",       is_supported,   pack_row_avx2,        count_avx2,       list_avx2,
                              fill_avx2,    extract_avx2,   deposit_avx2,         unite_rows_avx2,  compare_avx2,
                              conversions,  transpose_avx2, sum_differences_avx2, sum_squares_avx2, normalize_avx2,
                              channel_loops};

}  // namespace distile
