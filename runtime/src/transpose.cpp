#include "transpose.h"
#include <algorithm>

#if defined(__x86_64__) && defined(__GNUC__)
#define DISTILE_TRANSPOSE_X86 1
#include <immintrin.h>
#define DISTILE_TARGET_AVX2 __attribute__((target("avx2")))
#endif

namespace distile {

namespace {

void transpose_part(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                    int64_t columns) {
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t r = 0; r < rows; r++) {
            to[c * to_stride + r] = from[r * from_stride + c];
        }
    }
}

void transpose_portable(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    transpose_part(from, from_stride, to, to_stride, transpose_block, transpose_block);
}

#ifdef DISTILE_TRANSPOSE_X86

DISTILE_TARGET_AVX2 inline void transpose_8x8(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    __m256 rows[8], pairs[8], quads[8];
    // Each step brings together what is twice as far apart: 1 and then 2 rows within the halves, and then the halves.
    for (int i = 0; i < 8; i++) {
        rows[i] = _mm256_loadu_ps(from + i * from_stride);
    }
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31));
    }
}

// Rows that lie a power of two apart share few lines of a cache, so that those farther apart are finished first, 8 at
// once.
DISTILE_TARGET_AVX2 void transpose_avx2(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    const bool rows_first = from_stride > to_stride;
    for (int64_t outer = 0; outer < transpose_block; outer += 8) {
        for (int64_t inner = 0; inner < transpose_block; inner += 8) {
            const int64_t row = rows_first ? outer : inner, column = rows_first ? inner : outer;
            transpose_8x8(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
        }
    }
}

#endif

constexpr TransposeLevel all_levels[] = {
    {"portable", transpose_portable},
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

TransposeLevels supported_transpose_levels() {
    static const int32_t count = count_supported_levels();
    return {all_levels, count};
}

const TransposeLevel &best_transpose_level() {
    const TransposeLevels supported = supported_transpose_levels();
    return supported.levels[supported.count - 1];
}

// All rows of some columns first, so that what is written is contiguous.
void transpose(const TransposeLevel &level, const float *from, int64_t from_stride, float *to, int64_t to_stride,
               int64_t rows, int64_t columns) {
    for (int64_t c = 0; c < columns; c += transpose_block) {
        for (int64_t r = 0; r < rows; r += transpose_block) {
            const float *source = from + r * from_stride + c;
            float *target = to + c * to_stride + r;
            if (c + transpose_block <= columns && r + transpose_block <= rows) {
                level.block(source, from_stride, target, to_stride);
            } else {
                transpose_part(source, from_stride, target, to_stride, std::min(rows - r, transpose_block),
                               std::min(columns - c, transpose_block));
            }
        }
    }
}

}  // namespace distile
