#include "difference.h"
#include <algorithm>
#include <cmath>

#if defined(__x86_64__) && defined(__GNUC__)
#define DISTILE_DIFFERENCE_X86 1
#include <immintrin.h>
#define DISTILE_TARGET_AVX2 __attribute__((target("avx2")))
#define DISTILE_TARGET_AVX512 __attribute__((target("avx512f")))
#endif

namespace distile {

namespace {

uint64_t compare_up_to_64(const float *a, const float *b, int64_t count, float threshold) {
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        // Not "above": a difference that is not a number must count.
        bits |= static_cast<uint64_t>(!(std::fabs(a[i] - b[i]) <= threshold)) << i;
    }
    return bits;
}

void compare_portable(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits) {
    for (int64_t i = 0; i < count; i += 64) {
        *bits++ = compare_up_to_64(a + i, b + i, std::min<int64_t>(count - i, 64), threshold);
    }
}

#ifdef DISTILE_DIFFERENCE_X86

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

#ifndef __clang__
// GCC 12 takes the placeholders for undefined vectors in its own headers for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

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

#ifndef __clang__
#pragma GCC diagnostic pop
#endif

#endif

constexpr DifferenceLevel all_levels[] = {
    {"portable", compare_portable},
#ifdef DISTILE_DIFFERENCE_X86
    {"avx2", compare_avx2},
    {"avx512", compare_avx512},
#endif
};

int32_t count_supported_levels() {
    int32_t count = 1;
#ifdef DISTILE_DIFFERENCE_X86
    if (__builtin_cpu_supports("avx2")) {
        count += __builtin_cpu_supports("avx512f") ? 2 : 1;
    }
#endif
    return count;
}

}  // namespace

Levels<DifferenceLevel> supported_difference_levels() {
    static const int32_t count = count_supported_levels();
    return {all_levels, count};
}

}  // namespace distile
