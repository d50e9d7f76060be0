// Kernels for masks: of bytes, bits and lists, of their tiles, and of other masks.

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

// ---- Lengths of lists -------------------------------------------------------------------------

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
