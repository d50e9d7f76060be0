#include "transpose.h"
#include <algorithm>

#if defined(__x86_64__) && defined(__GNUC__)
#define DISTILE_TRANSPOSE_X86 1
#include <immintrin.h>
#define DISTILE_TARGET_AVX2 __attribute__((target("avx2")))
#endif

namespace distile {

namespace {

template<typename Element> void transpose_portable(const Element *from, int64_t from_stride, Element *to,
                                                   int64_t to_stride, int64_t rows, int64_t columns) {
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t r = 0; r < rows; r++) {
            to[c * to_stride + r] = from[r * from_stride + c];
        }
    }
}

#ifdef DISTILE_TRANSPOSE_X86

/** Elements of a vector, and rows and columns that are transposed in registers. */
constexpr int64_t lanes = 8;

/** The rows i and i + 4 of 8 x 8 elements: their left halves beside each other, and their right ones. */
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

/** The same where there are fewer rows or columns, of which nothing else is read. */
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

/** Columns from 4 x 4 elements in each half of the vectors. */
DISTILE_TARGET_AVX2 inline void transpose_halves(const __m256 *rows, __m256 *columns) {
    const __m256 low = _mm256_unpacklo_ps(rows[0], rows[1]), low2 = _mm256_unpacklo_ps(rows[2], rows[3]);
    const __m256 high = _mm256_unpackhi_ps(rows[0], rows[1]), high2 = _mm256_unpackhi_ps(rows[2], rows[3]);
    columns[0] = _mm256_shuffle_ps(low, low2, 0x44);
    columns[1] = _mm256_shuffle_ps(low, low2, 0xee);
    columns[2] = _mm256_shuffle_ps(high, high2, 0x44);
    columns[3] = _mm256_shuffle_ps(high, high2, 0xee);
}

/** Stores the first elements. AMD's masked stores take many times as long. */
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

/** Where the elements of a few channels lie when their pixels are contiguous. Of `channels` vectors of pixels, lane j
 * of the k-th holds element 8 k + j. */
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

/** Picks lanes out of several vectors: to each of as many results lane index[i] of the vector that `from` marks. */
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

/** Between planes of a few channels and contiguous pixels. */
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
    // Those that are farther apart are finished first: they may share few lines of a cache.
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
    // A few channels, if their pixels are contiguous.
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

#endif

constexpr TransposeLevel all_levels[] = {
    {"portable", transpose_portable<float>},
#ifdef DISTILE_TRANSPOSE_X86
    {"avx2", transpose_avx2},
#endif
};

int32_t count_supported_levels() {
#ifdef DISTILE_TRANSPOSE_X86
    return __builtin_cpu_supports("avx2") ? 2 : 1;
#else
    return 1;
#endif
}

}  // namespace

Levels<TransposeLevel> supported_transpose_levels() {
    static const int32_t count = count_supported_levels();
    return {all_levels, count};
}

namespace {

/** Transposes block by block in an order that suits caches, fast also where strides are powers of two. */
template<typename Element, typename Transpose> void transpose_panels(Transpose transpose_block_of, const Element *from,
                                                                     int64_t from_stride, Element *to,
                                                                     int64_t to_stride, int64_t rows, int64_t columns) {
    if ((rows == 1 && to_stride == 1) || (columns == 1 && from_stride == 1)) {
        std::copy_n(from, rows * columns, to);
        return;
    }
    // One axis is the channels: along it the elements of NCHW lie far apart, so that every channel is a place of its
    // own to read or write. Hardware prefetches for a few places only, and those that lie a power of two apart evict
    // each other: hence a cache line of channels for a panel of pixels, one after the other.
    const bool rows_are_far = from_stride > to_stride;
    const int64_t far = rows_are_far ? rows : columns, near = rows_are_far ? columns : rows;
    // Where all that is written would share one set of the nearest cache, whole rows of a tile are written at once.
    constexpr int64_t one_set = 4096 / sizeof(Element), few = 4;
    const bool staged = far > few && to_stride % one_set == 0;
    constexpr int64_t tile_rows = 64, tile_columns = transpose_block, tile_stride = tile_rows + transpose_block;
    alignas(64) Element tile[tile_columns * tile_stride];
    // Pixels stay in the nearest cache until all of their channels are written, or in the next one until all are read.
    const int64_t panel_elements = rows_are_far ? 1 << 13 : 1 << 16, least_panel = staged ? tile_rows : transpose_block;
    const int64_t panel = std::max(panel_elements / far / least_panel, int64_t{1}) * least_panel;
    const int64_t far_step = staged && rows_are_far ? tile_rows : transpose_block;
    const int64_t near_step = !staged ? panel : rows_are_far ? tile_columns : tile_rows;
    for (int64_t p = 0; p < near; p += panel) {
        const int64_t panel_end = std::min(near, p + panel);
        for (int64_t f = 0; f < far; f += far_step) {
            for (int64_t n = p; n < panel_end; n += near_step) {
                const int64_t num_near = std::min(panel_end - n, near_step), num_far = std::min(far - f, far_step);
                const int64_t r = rows_are_far ? f : n, c = rows_are_far ? n : f;
                const int64_t num_rows = rows_are_far ? num_far : num_near;
                const int64_t num_columns = rows_are_far ? num_near : num_far;
                const Element *source = from + r * from_stride + c;
                Element *target = to + c * to_stride + r;
                if (!staged) {
                    transpose_block_of(source, from_stride, target, to_stride, num_rows, num_columns);
                    continue;
                }
                transpose_block_of(source, from_stride, tile, tile_stride, num_rows, num_columns);
                for (int64_t i = 0; i < num_columns; i++) {
                    std::copy_n(tile + i * tile_stride, num_rows, target + i * to_stride);
                }
            }
        }
    }
}

}  // namespace

void transpose(const TransposeLevel &level, const float *from, int64_t from_stride, float *to, int64_t to_stride,
               int64_t rows, int64_t columns) {
    transpose_panels(level.transpose, from, from_stride, to, to_stride, rows, columns);
}

void transpose_elements(const void *from, int64_t from_stride, void *to, int64_t to_stride, int64_t rows,
                        int64_t columns, int64_t bytes) {
    if (bytes == sizeof(float)) {
        transpose(supported_transpose_levels().best(), static_cast<const float *>(from), from_stride,
                  static_cast<float *>(to), to_stride, rows, columns);
    } else {
        transpose_panels(transpose_portable<uint16_t>, static_cast<const uint16_t *>(from), from_stride,
                         static_cast<uint16_t *>(to), to_stride, rows, columns);
    }
}

}  // namespace distile
