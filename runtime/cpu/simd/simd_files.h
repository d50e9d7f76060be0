/** \file
 * Shared by the files of the levels and of the architectures.
 */
#ifndef DISTILE_SIMD_FILES_H
#define DISTILE_SIMD_FILES_H

#include "runtime/cpu/bit_words.h"
#include "runtime/cpu/simd/simd_level.h"
#include <algorithm>
#include <cmath>

namespace distile {

// The build has those of its architecture.
extern const SimdLevel portable_level, avx2_level, avx512_level, neon_level;

/** For every byte value, the number of set bits and their positions in increasing order. */
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

inline constexpr BytePositions byte_positions = make_byte_positions();

inline uint32_t pack_xy(int32_t x, int32_t y) {
    return static_cast<uint32_t>(x) | static_cast<uint32_t>(y) << 16;
}

inline uint64_t compare_up_to_64(const float *a, const float *b, int64_t count, float threshold) {
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        // Not ">": a NaN difference must count.
        bits |= static_cast<uint64_t>(!(std::fabs(a[i] - b[i]) <= threshold)) << i;
    }
    return bits;
}

// Inlined into each level, where the compiler vectorizes it.
inline void unite_rows(const uint64_t *__restrict from, int64_t distance, int32_t num_rows, int32_t num_words,
                       uint64_t *__restrict to) {
    constexpr int32_t block = 8;
    int32_t x = 0;
    for (; x + block <= num_words; x += block) {
        // The union stays in registers.
        uint64_t any[block] = {};
        for (int32_t row = 0; row < num_rows; row++) {
            for (int32_t i = 0; i < block; i++) {
                any[i] |= from[row * distance + x + i];
            }
        }
        std::copy_n(any, block, to + x);
    }
    for (; x < num_words; x++) {
        uint64_t any = 0;
        for (int32_t row = 0; row < num_rows; row++) {
            any |= from[row * distance + x];
        }
        to[x] = any;
    }
}

}  // namespace distile

#endif
