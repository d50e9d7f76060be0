/** \file
 * AVX-512 with VBMI2, where it is faster than AVX2.
 */
#include "runtime/cpu/simd/channel_loops.h"
#include "runtime/cpu/simd/row_sums.h"
#include "runtime/cpu/simd/simd_files.h"
#include "runtime/cpu/simd/type_loops.h"
#include <numeric>

#include <immintrin.h>
#define DISTILE_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi2,popcnt")))

namespace distile {

namespace {

#ifndef __clang__
// GCC 12 warns about the undefined vectors in its own headers.
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
        // A masked load does not touch masked bytes, so they may lie in an unmapped page.
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
            // One compression of 64 bytes and a store per 16 entries is faster than four compressions of 16 entries,
            // and much faster than compressing into memory, which AMD Zen does in microcode. The merged values behind
            // the positions do not matter. We merge because on Zen 5 the zeroing form waits for the old value of its
            // destination register, which would chain all iterations together.
            __m512i positions = _mm512_mask_compress_epi8(all_positions, word, all_positions);
            const __m512i origin = _mm512_set1_epi32(static_cast<int32_t>(pack_xy(64 * i, y)));
            uint32_t *const end = xy + _mm_popcnt_u64(word);
            for (; xy < end; xy += 16) {
                const __m512i next = _mm512_cvtepu8_epi32(_mm512_castsi512_si128(positions));
                _mm512_storeu_si512(xy, _mm512_add_epi32(origin, next));
                positions = _mm512_shuffle_i64x2(positions, positions, 0x39);  // Moves the next 16 bytes to the front.
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

DISTILE_TARGET_AVX512 void compare_avx512(const float *a, const float *b, int64_t count, float threshold,
                                          uint64_t *bits) {
    const __m512 limit = _mm512_set1_ps(threshold);
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
        uint64_t word = 0;
        for (int j = 0; j < 64; j += 16) {
            const __m512 difference = _mm512_sub_ps(_mm512_loadu_ps(a + i + j), _mm512_loadu_ps(b + i + j));
            word |= static_cast<uint64_t>(_mm512_cmp_ps_mask(_mm512_abs_ps(difference), limit, _CMP_NLE_UQ)) << j;
        }
        *bits++ = word;
    }
    if (i < count) {
        *bits = compare_up_to_64(a + i, b + i, count - i, threshold);
    }
}

DISTILE_TARGET_AVX512 float sum_differences_avx512(const float *from, int64_t count, float shift) {
    return sum_differences(from, count, shift);
}

DISTILE_TARGET_AVX512 float sum_squares_avx512(const float *from, int64_t count, float shift, float mean) {
    return sum_squares(from, count, shift, mean);
}

DISTILE_TARGET_AVX512 void normalize_avx512(const float *from, int64_t count, const RowNorm &norm, float *to) {
    normalize_row(from, count, norm, to);
}

DISTILE_CHANNEL_LOOPS(DISTILE_TARGET_AVX512)

#ifndef __clang__
#pragma GCC diagnostic pop
#endif

bool is_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vbmi2");
}

// The other loops are the AVX2 ones.
int64_t count(const TileRows &tiles) {
    return avx2_level.count(tiles);
}

void extract(const uint64_t *row, const uint64_t *places, int32_t num_words, uint64_t *out) {
    avx2_level.extract(row, places, num_words, out);
}

void deposit(const uint64_t *in, int32_t in_words, const uint64_t *places, int32_t num_words, uint64_t *row) {
    avx2_level.deposit(in, in_words, places, num_words, row);
}

void unite_rows_avx512(const uint64_t *from, int64_t distance, int32_t num_rows, int32_t num_words, uint64_t *to) {
    avx2_level.unite_rows(from, distance, num_rows, num_words, to);
}

void transpose(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows, int64_t columns) {
    avx2_level.transpose(from, from_stride, to, to_stride, rows, columns);
}

template<int32_t number> struct TypeLoops {
    static void widen(const void *from, float *to, int64_t count) {
        avx2_level.conversions[float_type_place(number)].widen(from, to, count);
    }
    static void narrow(const float *from, void *to, int64_t count) {
        avx2_level.conversions[float_type_place(number)].narrow(from, to, count);
    }
};

DISTILE_CONVERSIONS()

}  // namespace

const SimdLevel avx512_level = {"avx512",
                                is_supported,
                                pack_row_avx512,
                                count,
                                list_avx512,
                                fill_avx512,
                                extract,
                                deposit,
                                unite_rows_avx512,
                                compare_avx512,
                                conversions,
                                transpose,
                                sum_differences_avx512,
                                sum_squares_avx512,
                                normalize_avx512,
                                channel_loops};

}  // namespace distile
