/** \file
 * Advanced SIMD, which every AArch64 CPU has.
 */
#include "runtime/cpu/simd/channel_loops.h"
#include "runtime/cpu/simd/row_sums.h"
#include "runtime/cpu/simd/simd_files.h"
#include "runtime/cpu/simd/transpose_portable.h"
#include "runtime/cpu/simd/type_loops.h"
#include <arm_neon.h>
#include <cstring>

namespace distile {

namespace {

/** Float32 elements of a vector. */
constexpr int64_t lanes = 4;

/** Bit i is set if byte i, of four vectors whose bytes are 0 or 0xff, is 0xff. */
inline uint64_t bits_of(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    const uint8x16_t place = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    const uint8x16_t ab = vpaddq_u8(vandq_u8(a, place), vandq_u8(b, place));
    const uint8x16_t cd = vpaddq_u8(vandq_u8(c, place), vandq_u8(d, place));
    const uint8x16_t all = vpaddq_u8(ab, cd);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}

inline uint8x16_t is_nonzero(const uint8_t *bytes) {
    const uint8x16_t values = vld1q_u8(bytes);
    return vtstq_u8(values, values);
}

inline uint64_t pack_64(const uint8_t *bytes) {
    return bits_of(is_nonzero(bytes), is_nonzero(bytes + 16), is_nonzero(bytes + 32), is_nonzero(bytes + 48));
}

int64_t pack_row_neon(const uint8_t *bytes, int32_t width, uint64_t *words) {
    int64_t active = 0;
    int32_t x = 0;
    for (; x + 64 <= width; x += 64) {
        const uint64_t word = pack_64(bytes + x);
        *words++ = word;
        active += __builtin_popcountll(word);
    }
    if (x < width) {
        // The row may end at the end of a page, so copy its last bytes to where 64 can be read.
        uint8_t tail[64] = {};
        memcpy(tail, bytes + x, static_cast<size_t>(width - x));
        *words = pack_64(tail);
        active += __builtin_popcountll(*words);
    }
    return active;
}

int64_t count_neon(const TileRows &tiles) {
    uint64x2_t pairs = vdupq_n_u64(0);
    int64_t count = 0;
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words) {
        int32_t i = 0;
        for (; i + 2 <= tiles.num_words; i += 2) {
            const uint64x2_t words = vandq_u64(vld1q_u64(row + i), vld1q_u64(tiles.columns + i));
            const uint8x16_t bytes = vcntq_u8(vreinterpretq_u8_u64(words));
            pairs = vpadalq_u32(pairs, vpaddlq_u16(vpaddlq_u8(bytes)));
        }
        if (i < tiles.num_words) {
            count += __builtin_popcountll(row[i] & tiles.columns[i]);
        }
    }
    return count + static_cast<int64_t>(vaddvq_u64(pairs));
}

uint32_t *list_neon(const TileRows &tiles, int32_t y, int32_t tile_h, uint32_t *xy) {
    const uint64_t *row = tiles.rows;
    for (int32_t r = 0; r < tiles.num_rows; r++, row += tiles.num_words, y += tile_h) {
        for (int32_t i = 0; i < tiles.num_words; i++) {
            uint32x4_t origin = vdupq_n_u32(pack_xy(64 * i, y));
            for (uint64_t word = row[i] & tiles.columns[i]; word != 0; word >>= 8) {
                const uint16x8_t positions = vmovl_u8(vld1_u8(byte_positions.positions[word & 0xff]));
                vst1q_u32(xy, vaddw_u16(origin, vget_low_u16(positions)));
                vst1q_u32(xy + 4, vaddw_high_u16(origin, positions));
                xy += byte_positions.count[word & 0xff];
                origin = vaddq_u32(origin, vdupq_n_u32(8));
            }
        }
    }
    return xy;
}

void fill_neon(uint32_t *begin, const uint32_t *end, uint32_t value) {
    for (; begin < end; begin += lanes) {
        vst1q_u32(begin, vdupq_n_u32(value));
    }
}

// There is no instruction that extracts or deposits bits, so bytes of `places` are looked up: each lane moves a bit.

const int8x8_t lane_numbers = {0, 1, 2, 3, 4, 5, 6, 7};

/** The bits of `byte` at the set bits of `places`, packed together. */
inline uint64_t extract_byte(uint64_t byte, uint64_t places) {
    const int8x8_t positions = vreinterpret_s8_u8(vld1_u8(byte_positions.positions[places]));
    const uint8x8_t bits = vshl_u8(vdup_n_u8(static_cast<uint8_t>(byte)), vneg_s8(positions));
    const uint64_t packed = vaddv_u8(vshl_u8(vand_u8(bits, vdup_n_u8(1)), lane_numbers));
    // The lanes beyond the number of places hold other bits.
    return packed & ((uint64_t{1} << byte_positions.count[places]) - 1);
}

/** The reverse: the lowest bits of `bits` at the set bits of `places`. */
inline uint64_t deposit_byte(uint64_t bits, uint64_t places) {
    const uint64_t used = bits & ((uint64_t{1} << byte_positions.count[places]) - 1);
    const int8x8_t positions = vreinterpret_s8_u8(vld1_u8(byte_positions.positions[places]));
    const uint8x8_t apart = vshl_u8(vdup_n_u8(static_cast<uint8_t>(used)), vneg_s8(lane_numbers));
    return vaddv_u8(vshl_u8(vand_u8(apart, vdup_n_u8(1)), positions));
}

void extract_neon(const uint64_t *row, const uint64_t *places, int32_t num_words, uint64_t *out) {
    uint64_t pending = 0;
    int filled = 0;
    for (int32_t i = 0; i < num_words; i++) {
        uint64_t bits = row[i];
        for (uint64_t rest = places[i]; rest != 0; rest >>= 8, bits >>= 8) {
            const uint64_t found = extract_byte(bits & 0xff, rest & 0xff);
            const int count = byte_positions.count[rest & 0xff];
            pending |= found << filled;
            filled += count;
            if (filled >= 64) {
                *out++ = pending;
                filled -= 64;
                pending = found >> (count - filled);
            }
        }
    }
    if (filled > 0) {
        *out = pending;
    }
}

void deposit_neon(const uint64_t *in, int32_t in_words, const uint64_t *places, int32_t num_words, uint64_t *row) {
    int64_t at = 0;
    for (int32_t i = 0; i < num_words; i++) {
        uint64_t bits = word_at(in, in_words, at), deposited = 0;
        for (int byte = 0; byte < 64; byte += 8) {
            const uint64_t rest = places[i] >> byte & 0xff;
            deposited |= deposit_byte(bits & 0xff, rest) << byte;
            bits >>= byte_positions.count[rest];
        }
        row[i] = deposited;
        at += __builtin_popcountll(places[i]);
    }
}

/** Whether |a - b| <= limit, which it is not for a NaN: all bits of a lane are set or none. */
inline uint32x4_t is_close(const float *a, const float *b, float32x4_t limit) {
    return vcleq_f32(vabdq_f32(vld1q_f32(a), vld1q_f32(b)), limit);
}

/** Whether each of 16 elements differs by more than the limit, a byte each. */
inline uint8x16_t differ_16(const float *a, const float *b, float32x4_t limit) {
    const uint16x8_t low = vcombine_u16(vmovn_u32(is_close(a, b, limit)), vmovn_u32(is_close(a + 4, b + 4, limit)));
    const uint16x8_t high =
        vcombine_u16(vmovn_u32(is_close(a + 8, b + 8, limit)), vmovn_u32(is_close(a + 12, b + 12, limit)));
    return vmvnq_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
}

void compare_neon(const float *a, const float *b, int64_t count, float threshold, uint64_t *bits) {
    const float32x4_t limit = vdupq_n_f32(threshold);
    int64_t i = 0;
    for (; i + 64 <= count; i += 64, a += 64, b += 64) {
        *bits++ = bits_of(differ_16(a, b, limit), differ_16(a + 16, b + 16, limit), differ_16(a + 32, b + 32, limit),
                          differ_16(a + 48, b + 48, limit));
    }
    if (i < count) {
        *bits = compare_up_to_64(a, b, count - i, threshold);
    }
}

inline void transpose_4x4(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    const float32x4_t row0 = vld1q_f32(from), row1 = vld1q_f32(from + from_stride);
    const float32x4_t row2 = vld1q_f32(from + 2 * from_stride), row3 = vld1q_f32(from + 3 * from_stride);
    // Pairs of rows, of which each element is two columns.
    const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(row0, row1));
    const float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(row0, row1));
    const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(row2, row3));
    const float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(row2, row3));
    vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(even01, even23)));
    vst1q_f32(to + to_stride, vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23)));
    vst1q_f32(to + 2 * to_stride, vreinterpretq_f32_f64(vtrn2q_f64(even01, even23)));
    vst1q_f32(to + 3 * to_stride, vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23)));
}

/** A block of up to transpose_block rows and columns. */
void transpose_block_of(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                        int64_t columns) {
    // Finish the side with the larger stride first: its elements may share few cache lines.
    const bool rows_first = from_stride > to_stride;
    const int64_t whole_rows = rows / lanes * lanes, whole_columns = columns / lanes * lanes;
    const int64_t outer = rows_first ? whole_rows : whole_columns, inner = rows_first ? whole_columns : whole_rows;
    for (int64_t i = 0; i < outer; i += lanes) {
        for (int64_t j = 0; j < inner; j += lanes) {
            const int64_t r = rows_first ? i : j, c = rows_first ? j : i;
            transpose_4x4(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
        }
    }
    transpose_portable(from + whole_columns, from_stride, to + whole_columns * to_stride, to_stride, rows,
                       columns - whole_columns);
    transpose_portable(from + whole_rows * from_stride, from_stride, to + whole_rows, to_stride, rows - whole_rows,
                       whole_columns);
}

/** Three or four channels of contiguous pixels are loaded and stored by one instruction. */
template<int channels> struct Pixels;

template<> struct Pixels<3> {
    static void to_planes(const float *from, float *to, int64_t stride) {
        const float32x4x3_t planes = vld3q_f32(from);
        for (int c = 0; c < 3; c++) {
            vst1q_f32(to + c * stride, planes.val[c]);
        }
    }
    static void from_planes(const float *from, int64_t stride, float *to) {
        const float32x4x3_t planes = {vld1q_f32(from), vld1q_f32(from + stride), vld1q_f32(from + 2 * stride)};
        vst3q_f32(to, planes);
    }
};

template<> struct Pixels<4> {
    static void to_planes(const float *from, float *to, int64_t stride) {
        const float32x4x4_t planes = vld4q_f32(from);
        for (int c = 0; c < 4; c++) {
            vst1q_f32(to + c * stride, planes.val[c]);
        }
    }
    static void from_planes(const float *from, int64_t stride, float *to) {
        const float32x4x4_t planes = {vld1q_f32(from), vld1q_f32(from + stride), vld1q_f32(from + 2 * stride),
                                      vld1q_f32(from + 3 * stride)};
        vst4q_f32(to, planes);
    }
};

template<int channels> void to_planes(const float *from, float *to, int64_t stride, int64_t pixels) {
    int64_t x = 0;
    for (; x + lanes <= pixels; x += lanes) {
        Pixels<channels>::to_planes(from + channels * x, to + x, stride);
    }
    transpose_portable(from + channels * x, channels, to + x, stride, pixels - x, channels);
}

template<int channels> void from_planes(const float *from, int64_t stride, float *to, int64_t pixels) {
    int64_t x = 0;
    for (; x + lanes <= pixels; x += lanes) {
        Pixels<channels>::from_planes(from + x, stride, to + channels * x);
    }
    transpose_portable(from + x, stride, to + channels * x, channels, channels, pixels - x);
}

void transpose_neon(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                    int64_t columns) {
    // Few channels in contiguous pixels.
    if (rows == 3 && to_stride == 3) {
        from_planes<3>(from, from_stride, to, columns);
    } else if (rows == 4 && to_stride == 4) {
        from_planes<4>(from, from_stride, to, columns);
    } else if (columns == 3 && from_stride == 3) {
        to_planes<3>(from, to, to_stride, rows);
    } else if (columns == 4 && from_stride == 4) {
        to_planes<4>(from, to, to_stride, rows);
    } else {
        for (int64_t r = 0; r < rows; r += transpose_block) {
            for (int64_t c = 0; c < columns; c += transpose_block) {
                transpose_block_of(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride,
                                   std::min(rows - r, transpose_block), std::min(columns - c, transpose_block));
            }
        }
    }
}

DISTILE_TYPE_LOOPS()

template<> struct TypeLoops<DISTILE_FLOAT16> {
    static void widen(const void *stored, float *to, int64_t count) {
        const auto *const from = static_cast<const uint16_t *>(stored);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
        }
        widen_all<DISTILE_FLOAT16>(from + i, to + i, count - i);
    }
    static void narrow(const float *from, void *stored, int64_t count) {
        auto *const to = static_cast<uint16_t *>(stored);
        const uint32x4_t nan = vdupq_n_u32(0x7fc00000), sign = vdupq_n_u32(0x80000000);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            const float32x4_t values = vld1q_f32(from + i);
            // As portable code does, keep only the sign of a NaN.
            const uint32x4_t quiet = vorrq_u32(vandq_u32(vreinterpretq_u32_f32(values), sign), nan);
            const float32x4_t kept = vbslq_f32(vceqq_f32(values, values), values, vreinterpretq_f32_u32(quiet));
            vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(kept)));
        }
        narrow_all<DISTILE_FLOAT16>(from + i, to + i, count - i);
    }
};

template<> struct TypeLoops<DISTILE_BFLOAT16> {
    static void widen(const void *stored, float *to, int64_t count) {
        const auto *const from = static_cast<const uint16_t *>(stored);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            vst1q_f32(to + i, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from + i), 16)));
        }
        widen_all<DISTILE_BFLOAT16>(from + i, to + i, count - i);
    }
    static void narrow(const float *from, void *stored, int64_t count) {
        auto *const to = static_cast<uint16_t *>(stored);
        const uint32x4_t half = vdupq_n_u32(0x7fff), one = vdupq_n_u32(1), quiet = vdupq_n_u32(0x40);
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) {
            const float32x4_t values = vld1q_f32(from + i);
            const uint32x4_t bits = vreinterpretq_u32_f32(values), upper = vshrq_n_u32(bits, 16);
            const uint32x4_t up = vaddq_u32(half, vandq_u32(upper, one));
            const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, up), 16);
            vst1_u16(to + i, vmovn_u32(vbslq_u32(vceqq_f32(values, values), rounded, vorrq_u32(upper, quiet))));
        }
        narrow_all<DISTILE_BFLOAT16>(from + i, to + i, count - i);
    }
};

DISTILE_CONVERSIONS()

float sum_differences_neon(const float *from, int64_t count, float shift) {
    return sum_differences(from, count, shift);
}

float sum_squares_neon(const float *from, int64_t count, float shift, float mean) {
    return sum_squares(from, count, shift, mean);
}

void normalize_neon(const float *from, int64_t count, const RowNorm &norm, float *to) {
    normalize_row(from, count, norm, to);
}

DISTILE_CHANNEL_LOOPS()

bool is_supported() {
    return true;
}

}  // namespace

const SimdLevel neon_level = {"neon",       is_supported,   pack_row_neon,        count_neon,       list_neon,
                              fill_neon,    extract_neon,   deposit_neon,         unite_rows,       compare_neon,
                              conversions,  transpose_neon, sum_differences_neon, sum_squares_neon, normalize_neon,
                              channel_loops};

}  // namespace distile
