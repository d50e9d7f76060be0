#include "facts/activations.h"

// The library's own kernels, in OpenCL C 1.2. A pointer comes as a buffer and the byte in it.
#define POINTER(name) __global uchar *name##_buffer, ulong name##_byte
#define AT(type, name) ((__global type *)(name##_buffer + name##_byte))

#define GROUP_ITEMS 64

// ---- Masks from bytes, bits and lists --------------------------------------------------------

// One item per word.
__kernel void distile_pack_bytes(POINTER(bytes), long stride_n, long stride_h, int height, int width, int words_per_row,
                                 int rows, POINTER(words)) {
    const int word = (int)get_global_id(0), row = (int)get_global_id(1);
    if (word >= words_per_row || row >= rows) {
        return;
    }
    const int image = row / height, y = row - image * height;
    const __global uchar *from = AT(uchar, bytes) + image * stride_n + y * stride_h + word * 32;
    const int pixels = min(32, width - word * 32);
    uint bits = 0;
    for (int i = 0; i < pixels; i++) {
        bits |= (from[i] != 0 ? 1u : 0u) << i;
    }
    AT(uint, words)[(long)row * words_per_row + word] = bits;
}

// One item per pixel of a row.
__kernel void distile_unpack_bytes(POINTER(words), int words_per_row, int height, int width, int rows, POINTER(bytes),
                                   long stride_n, long stride_h) {
    const int x = (int)get_global_id(0), row = (int)get_global_id(1);
    if (x < width && row < rows) {
        const int image = row / height, y = row - image * height;
        const uint word = AT(uint, words)[(long)row * words_per_row + x / 32];
        AT(uchar, bytes)[image * stride_n + y * stride_h + x] = word >> (x % 32) & 1;
    }
}

// The source may be the mask's own words. Bits beyond the width become 0.
__kernel void distile_copy_bits(POINTER(from), long stride, int words_per_row, int rows, uint last_bits,
                                POINTER(words)) {
    const int word = (int)get_global_id(0), row = (int)get_global_id(1);
    if (word < words_per_row && row < rows) {
        const uint bits = AT(uint, from)[row * stride + word];
        AT(uint, words)[(long)row * words_per_row + word] = word == words_per_row - 1 ? bits & last_bits : bits;
    }
}

// Sets the bits of the listed pixels in zeroed words, one image per row of the grid.
__kernel void distile_set_indices(POINTER(indices), POINTER(counts), int has_counts, long stride, int height, int width,
                                  int words_per_row, POINTER(words)) {
    const long i = (long)get_global_id(0), image = (long)get_global_id(1);
    const long count = has_counts ? min((long)AT(int, counts)[image], stride) : stride;
    if (i >= count) {
        return;
    }
    // As unsigned, negative indices are beyond the image too.
    const uint pixel = (uint)AT(int, indices)[image * stride + i];
    if (pixel < (uint)height * (uint)width) {
        const uint y = pixel / (uint)width, x = pixel - y * (uint)width;
        atomic_or((volatile __global uint *)AT(uint, words) + (image * height + y) * words_per_row + x / 32,
                  1u << (x % 32));
    }
}

// ---- Counts and lists of tiles ---------------------------------------------------------------

typedef struct {
    int height, width, words_per_row;
    int tile_h, tile_w, tile_rows, tile_columns;
    uint tiles;
} Tiles;

typedef struct {
    int x, y, image;
} Origin;

Origin origin_of(const Tiles *of, uint tile) {
    const uint row = tile / (uint)of->tile_columns, image = row / (uint)of->tile_rows;
    const Origin origin = {(int)(tile - row * (uint)of->tile_columns) * of->tile_w,
                           (int)(row - image * (uint)of->tile_rows) * of->tile_h, (int)image};
    return origin;
}

// 1 if a tile has an active pixel. Bits beyond the width are 0.
uint is_active(const Tiles *of, const __global uint *words, uint tile) {
    if (tile >= of->tiles) {
        return 0;
    }
    const Origin at = origin_of(of, tile);
    const int end_x = min(at.x + of->tile_w, of->width), end_y = min(at.y + of->tile_h, of->height);
    const int first = at.x / 32, last = (end_x - 1) / 32;
    const uint first_bits = ~0u << (at.x % 32), last_bits = ~0u >> (31 - (end_x - 1) % 32);
    const __global uint *row = words + ((long)at.image * of->height + at.y) * of->words_per_row;
    for (int y = at.y; y < end_y; y++, row += of->words_per_row) {
        for (int i = first; i <= last; i++) {
            if ((row[i] & (i == first ? first_bits : ~0u) & (i == last ? last_bits : ~0u)) != 0) {
                return 1;
            }
        }
    }
    return 0;
}

// The sum of the values of the items before this one; `all` gets that of the group.
uint sum_before(uint value, __local uint *sums, uint *all) {
    const uint item = (uint)get_local_id(0);
    sums[item] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = 1; step < GROUP_ITEMS; step *= 2) {
        const uint more = item >= step ? sums[item - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[item] += more;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    *all = sums[GROUP_ITEMS - 1];
    const uint before = sums[item] - value;
    barrier(CLK_LOCAL_MEM_FENCE);
    return before;
}

// Counts the active tiles of each group.
__kernel void distile_count_tiles(Tiles of, POINTER(words), POINTER(groups)) {
    __local uint sums[GROUP_ITEMS];
    uint all;
    sum_before(is_active(&of, AT(uint, words), (uint)get_global_id(0)), sums, &all);
    if (get_local_id(0) == 0) {
        AT(uint, groups)[get_group_id(0)] = all;
    }
}

// Replaces the count of each group with the sum of those before it, and stores the sum of all. One group.
__kernel void distile_add_groups(uint num_groups, POINTER(groups), POINTER(count)) {
    __local uint sums[GROUP_ITEMS];
    __global uint *counts = AT(uint, groups);
    const uint share = (num_groups + GROUP_ITEMS - 1) / GROUP_ITEMS;
    const uint first = (uint)get_local_id(0) * share, last = min(first + share, num_groups);
    uint own = 0, all;
    for (uint i = first; i < last; i++) {
        own += counts[i];
    }
    uint before = sum_before(own, sums, &all);
    for (uint i = first; i < last; i++) {
        const uint one = counts[i];
        counts[i] = before;
        before += one;
    }
    if (get_local_id(0) == 0) {
        AT(uint, count)[0] = all;
    }
}

// Lists the active tiles in order.
__kernel void distile_list_tiles(Tiles of, POINTER(words), POINTER(groups), POINTER(list)) {
    __local uint sums[GROUP_ITEMS];
    const uint tile = (uint)get_global_id(0), active = is_active(&of, AT(uint, words), tile);
    uint all;
    const uint at = AT(uint, groups)[get_group_id(0)] + sum_before(active, sums, &all);
    if (active) {
        const Origin origin = origin_of(&of, tile);
        AT(uint, list)[at] = (uint)origin.x | (uint)origin.y << 16;
        AT(uint, list)[of.tiles + at] = (uint)origin.image;
    }
}

// ---- Masks from masks ------------------------------------------------------------------------

// As in gpu/divisor.h and gpu/bit_transfer.h.
typedef struct {
    uint value, multiplier, shift;
} Divisor;

typedef struct {
    int taps, dilation, scale, start, before, behind;
    Divisor divisor;
} BitColumn;

typedef struct {
    int from_bits, to_bits, words, spread, shift, take, num_up, num_down;
    int up[16], down[16];
} BitRow;

typedef struct {
    BitColumn column;
    BitRow row;
} BitSteps;

// The 32 bits of a row from `bit` on, which may be negative; 0 outside the row.
uint word_at(const __local uint *row, int words, int bit) {
    const int word = bit >> 5, by = bit & 31;
    const uint low = word >= 0 && word < words ? row[word] : 0;
    const uint high = word + 1 >= 0 && word + 1 < words ? row[word + 1] : 0;
    return by == 0 ? low : low >> by | high << (32 - by);
}

uint bit_at(const __local uint *row, int bit) {
    return row[bit / 32] >> (bit % 32) & 1;
}

// Word i of the union of the rows that row y of the result unites.
uint united_word(const BitColumn *column, const __global uint *words, int height, int words_per_row, long y, int i) {
    const long divisor = column->divisor.value;
    uint any = 0;
    for (int tap = 0; tap < column->taps; tap++) {
        const long at = y * column->scale + column->start + (long)tap * column->dilation;
        if (at + column->behind < 0) {
            continue;
        }
        const long first = at <= column->before ? 0 : (at - column->before + divisor - 1) / divisor;
        if (first >= height) {
            break;
        }
        const long last = min((at + column->behind) / divisor, (long)height - 1);
        for (long row = first; row <= last; row++) {
            any |= words[row * words_per_row + i];
        }
    }
    return any;
}

// One group per row of the result. The local memory holds a row in progress twice.
__kernel void distile_transfer_bits(BitSteps steps, POINTER(from), int from_height, int from_words, int height,
                                    int words_per_row, POINTER(to), __local uint *space) {
    const BitColumn column = steps.column;
    const BitRow row = steps.row;
    const int item = (int)get_local_id(0), to_row = (int)get_group_id(0);
    const int image = to_row / height, y = to_row - image * height;
    const __global uint *words = AT(uint, from) + (long)image * from_height * from_words;
    __local uint *now = space, *next = space + row.words;
// Replaces every word i of the row.
#define STEP(value)                                                                                                    \
    for (int i = item; i < row.words; i += GROUP_ITEMS) {                                                              \
        next[i] = value;                                                                                               \
    }                                                                                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
    {                                                                                                                  \
        __local uint *const before = now;                                                                              \
        now = next;                                                                                                    \
        next = before;                                                                                                 \
    }
    STEP(i * 32 < row.from_bits ? united_word(&column, words, from_height, from_words, y, i) : 0)
    if (row.spread > 1) {
        for (int i = item; i < row.words; i += GROUP_ITEMS) {
            uint word = 0;
            const int first = (32 * i + row.spread - 1) / row.spread;
            for (int bit = first, at = first * row.spread - 32 * i; at < 32 && bit < row.from_bits;
                 bit++, at += row.spread) {
                word |= bit_at(now, bit) << at;
            }
            next[i] = word;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        __local uint *const before = now;
        now = next;
        next = before;
    }
    for (int s = 0; s < row.num_up; s++) {
        STEP(now[i] | word_at(now, row.words, 32 * i - row.up[s]))
    }
    if (row.shift != 0) {
        STEP(word_at(now, row.words, 32 * i - row.shift))
    }
    for (int s = 0; s < row.num_down; s++) {
        STEP(now[i] | word_at(now, row.words, 32 * i + row.down[s]))
    }
    for (int i = item; i < words_per_row; i += GROUP_ITEMS) {
        uint word = 0;
        const int bits = min(row.to_bits - 32 * i, 32);
        if (row.take == 1) {
            word = bits > 0 ? now[i] & ~0u >> (32 - bits) : 0;
        } else {
            for (int bit = 0; bit < bits; bit++) {
                word |= bit_at(now, (32 * i + bit) * row.take) << bit;
            }
        }
        AT(uint, to)[(long)to_row * words_per_row + i] = word;
    }
}

// One item per word. The result may be one of the operands. How: 0 unites, 1 intersects, 2 subtracts, 3 inverts.
__kernel void distile_combine_bits(POINTER(a), POINTER(b), int how, uint num_words, uint words_per_row, uint last_bits,
                                   POINTER(to)) {
    const uint i = (uint)get_global_id(0);
    if (i < num_words) {
        const uint one = AT(uint, a)[i], other = AT(uint, b)[i];
        const uint kept = i % words_per_row == words_per_row - 1 ? last_bits : ~0u;
        AT(uint, to)[i] = how == 0 ? one | other : how == 1 ? one & other : how == 2 ? one & ~other : ~one & kept;
    }
}

// ---- Masks from tensors ----------------------------------------------------------------------

float from_float32(const __global uchar *from, long i) {
    return ((const __global float *)from)[i];
}

float from_float16(const __global uchar *from, long i) {
    return vload_half(i, (const __global half *)from);
}

float from_bfloat16(const __global uchar *from, long i) {
    return as_float((uint)((const __global ushort *)from)[i] << 16);
}

// The pixels at which two tensors differ, one item per pixel of a row.
#define COMPARE(type)                                                                                                  \
    __kernel void distile_compare_##type(POINTER(a), long a_n, long a_h, long a_w, POINTER(b), long b_n, long b_h,     \
                                         long b_w, int height, int width, int channels, float threshold,               \
                                         int words_per_row, POINTER(to)) {                                             \
        __local uint found[GROUP_ITEMS / 32];                                                                          \
        const int item = (int)get_local_id(0), x = (int)get_global_id(0), row = (int)get_global_id(1);                 \
        const int image = row / height, y = row - image * height;                                                      \
        if (item % 32 == 0) {                                                                                          \
            found[item / 32] = 0;                                                                                      \
        }                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        if (x < width) {                                                                                               \
            const long at_a = image * a_n + y * a_h + x * a_w, at_b = image * b_n + y * b_h + x * b_w;                 \
            int same = 1;                                                                                              \
            for (int c = 0; c < channels && same; c++) {                                                               \
                /* Not ">": a NaN difference must count. */                                                            \
                same = fabs(from_##type(AT(uchar, a), at_a + c) - from_##type(AT(uchar, b), at_b + c)) <= threshold;   \
            }                                                                                                          \
            if (!same) {                                                                                               \
                atomic_or(&found[item / 32], 1u << (item % 32));                                                       \
            }                                                                                                          \
        }                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        if (item % 32 == 0 && x < width) {                                                                             \
            AT(uint, to)[(long)row * words_per_row + x / 32] = found[item / 32];                                       \
        }                                                                                                              \
    }
COMPARE(float32)
COMPARE(float16)
COMPARE(bfloat16)

// ---- Pixels of tensors -----------------------------------------------------------------------

// Copies the active pixels, if there is a source, and zeros the others, if they shall not stay. One item per unit; an
// image's row per row of the grid. Without words all pixels are active.
#define UPDATE(bytes, Unit)                                                                                            \
    __kernel void distile_update_pixels_##bytes(POINTER(words), int words_per_row, POINTER(to), long to_n, long to_h,  \
                                                long to_w, POINTER(from), long from_n, long from_h, long from_w,       \
                                                int height, int width, uint units, int scale_h, int scale_w,           \
                                                int invert, int zero) {                                                \
        const uint i = (uint)get_global_id(0), x = i / units, unit = i - x * units;                                    \
        const int row = (int)get_global_id(1), image = row / height, y = row - image * height;                         \
        if (x >= (uint)width) {                                                                                        \
            return;                                                                                                    \
        }                                                                                                              \
        const uint word = words_buffer ? AT(uint, words)[(long)row * words_per_row + x / 32] : ~0u;                    \
        const int active = ((word >> (x % 32) & 1) != 0) != (invert != 0);                                             \
        __global Unit *target = AT(Unit, to) + image * to_n + y * to_h + x * to_w + unit;                              \
        if (active && from_buffer) {                                                                                   \
            *target = AT(Unit, from)[image * from_n + y / scale_h * from_h + x / (uint)scale_w * from_w + unit];       \
        } else if (!active && zero) {                                                                                  \
            *target = (Unit)(0);                                                                                       \
        }                                                                                                              \
    }
UPDATE(2, ushort)
UPDATE(4, uint)
UPDATE(16, uint4)

// NCHW to NHWC, or back. Items lie along the innermost dimension of what is written.
#define CONVERT(bytes, Unit)                                                                                           \
    __kernel void distile_convert_layout_##bytes(POINTER(planes), long plane_n, long plane_c, long plane_h,            \
                                                 POINTER(pixels), long pixel_n, long pixel_h, long pixel_w,            \
                                                 int height, int width, int channels, int to_planes) {                 \
        const uint i = (uint)get_global_id(0);                                                                         \
        const int row = (int)get_global_id(1), image = row / height, y = row - image * height;                         \
        const uint x = to_planes ? i % (uint)width : i / (uint)channels;                                               \
        const uint c = to_planes ? i / (uint)width : i % (uint)channels;                                               \
        if (x >= (uint)width || c >= (uint)channels) {                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        __global Unit *plane = AT(Unit, planes) + image * plane_n + c * plane_c + y * plane_h + x;                     \
        __global Unit *pixel = AT(Unit, pixels) + image * pixel_n + y * pixel_h + x * pixel_w + c;                     \
        if (to_planes) {                                                                                               \
            *plane = *pixel;                                                                                           \
        } else {                                                                                                       \
            *pixel = *plane;                                                                                           \
        }                                                                                                              \
    }
CONVERT(2, ushort)
CONVERT(4, uint)

// ---- Tokens ----------------------------------------------------------------------------------

#define VIEW(name) POINTER(name), long name##_n, long name##_h, long name##_w
// The listed pixel `place`, of a list whose images begin after `pixels` entries.
#define LISTED(name, place)                                                                                            \
    (AT(uint, list)[pixels + place] * name##_n + (AT(uint, list)[place] >> 16) * name##_h +                            \
     (AT(uint, list)[place] & 0xffff) * name##_w)

// Copies between the listed pixels of a tensor and the first pixels of a packed one, in the rows of the grid: strides
// are in units. Listed pixels beyond the capacity become 0 with `zero`.
#define MOVE_PACKED(bytes, Unit)                                                                                       \
    __kernel void distile_move_packed_##bytes(VIEW(pixel), VIEW(packed), POINTER(list), uint pixels, POINTER(count),   \
                                              uint units, uint height, uint width, uint capacity, int to_packed,       \
                                              int zero) {                                                              \
        const uint unit = (uint)get_global_id(0), count = AT(uint, count)[0];                                          \
        if (unit >= units) {                                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        for (uint i = (uint)get_global_id(1); i < count; i += (uint)get_global_size(1)) {                              \
            __global Unit *pixel = AT(Unit, pixel) + LISTED(pixel, i) + unit;                                          \
            if (i < capacity) {                                                                                        \
                const uint row = i / width, image = row / height;                                                      \
                __global Unit *packed = AT(Unit, packed) + image * packed_n + (row - image * height) * packed_h +      \
                                        (i - row * width) * packed_w + unit;                                           \
                if (to_packed) {                                                                                       \
                    *packed = *pixel;                                                                                  \
                } else {                                                                                               \
                    *pixel = *packed;                                                                                  \
                }                                                                                                      \
            } else if (zero) {                                                                                         \
                *pixel = (Unit)0;                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
MOVE_PACKED(2, ushort)
MOVE_PACKED(4, uint)
MOVE_PACKED(16, uint4)

// Counts the active pixels of every image, one group per image.
__kernel void distile_count_images(POINTER(words), uint words_per_image, POINTER(counts)) {
    __local uint sums[GROUP_ITEMS];
    const __global uint *words = AT(uint, words) + (long)get_group_id(0) * words_per_image;
    uint own = 0, all;
    for (uint word = (uint)get_local_id(0); word < words_per_image; word += GROUP_ITEMS) {
        own += popcount(words[word]);
    }
    sum_before(own, sums, &all);
    if (get_local_id(0) == 0) {
        AT(uint, counts)[get_group_id(0)] = all;
    }
}

void to_float32(float value, __global uchar *to, long i) {
    ((__global float *)to)[i] = value;
}

void to_float16(float value, __global uchar *to, long i) {
    vstore_half_rte(value, i, (__global half *)to);
}

void to_bfloat16(float value, __global uchar *to, long i) {
    const uint bits = as_uint(value);
    ((__global ushort *)to)[i] =
        (ushort)(isnan(value) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The sum of the values of the group's items, in all of them.
float sum_of_group(float value, __local float *sums) {
    const uint item = (uint)get_local_id(0);
    sums[item] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_of = GROUP_ITEMS / 2; half_of > 0; half_of /= 2) {
        if (item < half_of) {
            sums[item] += sums[item + half_of];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sum = sums[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

// Layer norm or RMS norm of the listed pixels, one per group at once. The output may be the input.
#define NORMALIZE(type)                                                                                                \
    __kernel void distile_normalize_##type(VIEW(from), VIEW(to), POINTER(list), uint pixels, POINTER(count),           \
                                           POINTER(gamma), int has_gamma, POINTER(beta), int has_beta, uint channels,  \
                                           int centred, float epsilon) {                                               \
        __local float sums[GROUP_ITEMS];                                                                               \
        const uint item = (uint)get_local_id(0), count = AT(uint, count)[0];                                           \
        for (uint place = (uint)get_group_id(0); place < count; place += (uint)get_num_groups(0)) {                    \
            const long from = LISTED(from, place), to = LISTED(to, place);                                             \
            const float shift = centred ? from_##type(AT(uchar, from), from) : 0;                                      \
            float sum = 0, squares = 0;                                                                                \
            for (uint c = item; c < channels && centred; c += GROUP_ITEMS) {                                           \
                sum += from_##type(AT(uchar, from), from + c) - shift;                                                 \
            }                                                                                                          \
            const float mean = sum_of_group(sum, sums) / channels;                                                     \
            for (uint c = item; c < channels; c += GROUP_ITEMS) {                                                      \
                const float deviation = from_##type(AT(uchar, from), from + c) - shift - mean;                         \
                squares += deviation * deviation;                                                                      \
            }                                                                                                          \
            const float factor = 1 / sqrt(sum_of_group(squares, sums) / channels + epsilon);                           \
            for (uint c = item; c < channels; c += GROUP_ITEMS) {                                                      \
                const float value = (from_##type(AT(uchar, from), from + c) - shift - mean) * factor;                  \
                to_##type(value * (has_gamma ? AT(float, gamma)[c] : 1) + (has_beta ? AT(float, beta)[c] : 0),         \
                          AT(uchar, to), to + c);                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
NORMALIZE(float32)
NORMALIZE(float16)
NORMALIZE(bfloat16)

// ---- Layers ----------------------------------------------------------------------------------

// NaN if either is.
float larger(float a, float b) {
    return a > b || isnan(a) ? a : b;
}

#define AT_LEAST(x, low) at_least(x, low)
#define LIMIT(x, low, high) at_most(at_least(x, low), high)
#define ONE_PLUS_EXP_MINUS(x) (1 + exp(-(x)))
#define ERF(x) erf(x)
#define TANH(x) tanh(x)
#define KEEP_NAN(x, value) (value)
#define CHOOSE(condition, value, other) ((condition) ? (value) : (other))
#define ROW(number, name, NAME, value, gradient)                                                                       \
    case number:                                                                                                       \
        return value;

float at_least(float x, float low) {
    return x < low ? low : x;
}

float at_most(float x, float high) {
    return x > high ? high : x;
}

// By its number. NaN stays NaN.
float activate(float x, int activation, float slope) {
    switch (activation) { DISTILE_ACTIVATIONS(ROW) }
    return x;
}

// The window of a pooling, and the input's extents.
typedef struct {
    int height, width;
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
    int largest, count_padding;
} Window;

// Pools the windows of the listed pixels, in the rows of the grid, one item per channel.
#define POOL(type)                                                                                                     \
    __kernel void distile_pool_##type(VIEW(from), VIEW(to), POINTER(list), uint pixels, POINTER(count), uint channels, \
                                      Window window) {                                                                 \
        const uint c = (uint)get_global_id(0), count = AT(uint, count)[0];                                             \
        if (c >= channels) {                                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        for (uint place = (uint)get_global_id(1); place < count; place += (uint)get_global_size(1)) {                  \
            const uint xy = AT(uint, list)[place];                                                                     \
            const long image = AT(uint, list)[pixels + place] * from_n + c;                                            \
            float value = 0;                                                                                           \
            int taps = 0;                                                                                              \
            int y = (int)(xy >> 16) * window.stride_h - window.pad_top;                                                \
            for (int i = 0; i < window.kernel_h && y < window.height; i++, y += window.dilation_h) {                   \
                int x = (int)(xy & 0xffff) * window.stride_w - window.pad_left;                                        \
                for (int j = 0; j < window.kernel_w && x < window.width && y >= 0; j++, x += window.dilation_w) {      \
                    if (x >= 0) {                                                                                      \
                        const float tap = from_##type(AT(uchar, from), image + y * from_h + x * from_w);               \
                        value = taps == 0 ? tap : window.largest ? larger(value, tap) : value + tap;                   \
                        taps++;                                                                                        \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            if (!window.largest) {                                                                                     \
                value /= window.count_padding ? (float)((long)window.kernel_h * window.kernel_w) : (float)taps;        \
            }                                                                                                          \
            to_##type(value, AT(uchar, to), LISTED(to, place) + c);                                                    \
        }                                                                                                              \
    }
POOL(float32)
POOL(float16)
POOL(bfloat16)

// Combines the listed pixels of two tensors, in the rows of the grid, one item per channel. How: 0 copies the first, 1
// adds, 2 multiplies. The output may be either.
#define COMBINE(type)                                                                                                  \
    __kernel void distile_combine_##type(VIEW(from), VIEW(other), VIEW(to), POINTER(list), uint pixels,                \
                                         POINTER(count), uint channels, int how, int other_activation,                 \
                                         float other_slope, int activation, float slope) {                             \
        const uint c = (uint)get_global_id(0), count = AT(uint, count)[0];                                             \
        if (c >= channels) {                                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        for (uint place = (uint)get_global_id(1); place < count; place += (uint)get_global_size(1)) {                  \
            float value = from_##type(AT(uchar, from), LISTED(from, place) + c);                                       \
            if (how != 0) {                                                                                            \
                const float other =                                                                                    \
                    activate(from_##type(AT(uchar, other), LISTED(other, place) + c), other_activation, other_slope);  \
                value = how == 1 ? value + other : value * other;                                                      \
            }                                                                                                          \
            to_##type(activate(value, activation, slope), AT(uchar, to), LISTED(to, place) + c);                       \
        }                                                                                                              \
    }
COMBINE(float32)
COMBINE(float16)
COMBINE(bfloat16)

// What is known of some values: their number, mean, and sum of squared deviations; or instead of the mean their maximum.
typedef struct {
    float count, mean, squares;
} Moments;

Moments merge(Moments a, Moments b, int largest) {
    if (a.count == 0 || b.count == 0) {
        return a.count == 0 ? b : a;
    }
    const float count = a.count + b.count, difference = b.mean - a.mean, share = b.count / count;
    Moments both = {count, larger(a.mean, b.mean), 0};
    if (!largest) {
        // An infinite mean must not become NaN.
        both.mean = a.mean * (a.count / count) + b.mean * share;
        both.squares = a.squares + b.squares + difference * difference * a.count * share;
    }
    return both;
}

// Sums a channel in each item, over every blocks-th active pixel of an image: block and image are the other dimensions of
// the grid. Sums are of differences from the first pixel, so a large mean cancels nothing. Without a list all pixels are
// active.
#define SUM(type)                                                                                                      \
    __kernel void distile_sum_pixels_##type(VIEW(from), POINTER(list), POINTER(lengths), uint pixels, uint width,      \
                                            uint channels, int largest, POINTER(moments)) {                            \
        const uint c = (uint)get_global_id(0), blocks = (uint)get_global_size(1), image = (uint)get_global_id(2);      \
        if (c >= channels) {                                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        const uint first = list_buffer ? AT(uint, lengths)[image] : 0;                                                 \
        const uint count = list_buffer ? AT(uint, lengths)[image + 1] - first : pixels;                                \
        float shift = 0, sum = 0, squares = 0, found = 0;                                                              \
        for (uint i = (uint)get_global_id(1); i < count; i += blocks) {                                                \
            const uint y = list_buffer ? AT(uint, list)[first + i] >> 16 : i / width;                                  \
            const uint x = list_buffer ? AT(uint, list)[first + i] & 0xffff : i - y * width;                           \
            const float value = from_##type(AT(uchar, from), image * from_n + y * from_h + x * from_w + c);            \
            if (largest) {                                                                                             \
                shift = found == 0 ? value : larger(shift, value);                                                     \
            } else {                                                                                                   \
                shift = found == 0 && isfinite(value) ? value : shift;                                                 \
                sum += value - shift;                                                                                  \
                squares += (value - shift) * (value - shift);                                                          \
            }                                                                                                          \
            found++;                                                                                                   \
        }                                                                                                              \
        Moments all = {found, shift, 0};                                                                               \
        if (found != 0 && !largest) {                                                                                  \
            all.mean = shift + sum / found;                                                                            \
            all.squares = squares - sum * (sum / found);                                                               \
        }                                                                                                              \
        AT(Moments, moments)[((long)image * blocks + get_global_id(1)) * channels + c] = all;                          \
    }
SUM(float32)
SUM(float16)
SUM(bfloat16)

// The means, or maxima, of all blocks of an image, one item per channel and one image per row of the grid.
#define MERGE(type)                                                                                                    \
    __kernel void distile_merge_pixels_##type(POINTER(moments), uint blocks, uint channels, int largest, POINTER(to),  \
                                              long to_n) {                                                             \
        const uint c = (uint)get_global_id(0);                                                                         \
        const long image = (long)get_global_id(1);                                                                     \
        if (c < channels) {                                                                                            \
            Moments all = {0, 0, 0};                                                                                   \
            for (uint block = 0; block < blocks; block++) {                                                            \
                all = merge(all, AT(Moments, moments)[(image * blocks + block) * channels + c], largest);              \
            }                                                                                                          \
            to_##type(all.mean, AT(uchar, to), image * to_n + c);                                                      \
        }                                                                                                              \
    }
MERGE(float32)
MERGE(float16)
MERGE(bfloat16)

// The statistics of a group of channels of an image in each group of items: the groups of channels, and the images, are
// the dimensions of the grid.
__kernel void distile_merge_groups(POINTER(moments), uint blocks, uint channels, uint size, POINTER(mean),
                                   POINTER(variance)) {
    __local Moments parts[GROUP_ITEMS];
    const uint item = (uint)get_local_id(0), group = (uint)get_group_id(0);
    const long image = (long)get_global_id(1);
    Moments all = {0, 0, 0};
    for (uint i = item; i < blocks * size; i += GROUP_ITEMS) {
        const uint block = i / size, c = group * size + i % size;
        all = merge(all, AT(Moments, moments)[(image * blocks + block) * channels + c], 0);
    }
    parts[item] = all;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_of = GROUP_ITEMS / 2; half_of > 0; half_of /= 2) {
        if (item < half_of) {
            parts[item] = merge(parts[item], parts[item + half_of], 0);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0) {
        const long at = image * get_num_groups(0) + group;
        AT(float, mean)[at] = parts[0].mean;
        // Rounding may leave less than 0; NaN stays.
        AT(float, variance)[at] = parts[0].count == 0 || parts[0].squares < 0 ? 0 : parts[0].squares / parts[0].count;
    }
}

// Group norm of the listed pixels, in the rows of the grid, one item per channel. The output may be the input.
#define NORMALIZE_GROUPS(type)                                                                                         \
    __kernel void distile_normalize_groups_##type(VIEW(from), VIEW(to), POINTER(list), uint pixels, POINTER(count),    \
                                                  uint channels, POINTER(mean), POINTER(variance), uint stride,        \
                                                  uint size, POINTER(gamma), POINTER(beta), float epsilon,             \
                                                  int activation, float slope) {                                       \
        const uint c = (uint)get_global_id(0), count = AT(uint, count)[0];                                             \
        if (c >= channels) {                                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        const float gamma = gamma_buffer ? AT(float, gamma)[c] : 1, beta = beta_buffer ? AT(float, beta)[c] : 0;       \
        for (uint place = (uint)get_global_id(1); place < count; place += (uint)get_global_size(1)) {                  \
            const long at = (long)AT(uint, list)[pixels + place] * stride + c / size;                                  \
            const float value = from_##type(AT(uchar, from), LISTED(from, place) + c) - AT(float, mean)[at];           \
            const float factor = gamma / sqrt(AT(float, variance)[at] + epsilon);                                      \
            to_##type(activate(value * factor + beta, activation, slope), AT(uchar, to), LISTED(to, place) + c);       \
        }                                                                                                              \
    }
NORMALIZE_GROUPS(float32)
NORMALIZE_GROUPS(float16)
NORMALIZE_GROUPS(bfloat16)

// The pixels whose scores are above a threshold, one item per pixel of a row.
#define SCORES(type)                                                                                                   \
    __kernel void distile_score_pixels_##type(VIEW(from), int height, int width, int channels, POINTER(weights),       \
                                              float bias, float threshold, int words_per_row, POINTER(to)) {           \
        __local uint found[GROUP_ITEMS / 32];                                                                          \
        const int item = (int)get_local_id(0), x = (int)get_global_id(0), row = (int)get_global_id(1);                 \
        const int image = row / height, y = row - image * height;                                                      \
        if (item % 32 == 0) {                                                                                          \
            found[item / 32] = 0;                                                                                      \
        }                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        if (x < width) {                                                                                               \
            const long first = image * from_n + y * from_h + x * from_w;                                               \
            float sum = 0;                                                                                             \
            for (int c = 0; c < channels; c++) {                                                                       \
                sum += from_##type(AT(uchar, from), first + c) * (weights_buffer ? AT(float, weights)[c] : 1);         \
            }                                                                                                          \
            if (sum + bias > threshold) {                                                                              \
                atomic_or(&found[item / 32], 1u << (item % 32));                                                       \
            }                                                                                                          \
        }                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        if (item % 32 == 0 && x < width) {                                                                             \
            AT(uint, to)[(long)row * words_per_row + x / 32] = found[item / 32];                                       \
        }                                                                                                              \
    }
SCORES(float32)
SCORES(float16)
SCORES(bfloat16)
