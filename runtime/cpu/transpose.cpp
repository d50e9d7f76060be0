#include "runtime/cpu/transpose.h"
#include "runtime/cpu/simd/transpose_portable.h"
#include <algorithm>

namespace distile {

namespace {

/** Transposes block by block in a cache-friendly order that is fast even for power-of-two strides. */
template<typename Element, typename Transpose> void transpose_panels(Transpose transpose_block_of, const Element *from,
                                                                     int64_t from_stride, Element *to,
                                                                     int64_t to_stride, int64_t rows, int64_t columns) {
    if ((rows == 1 && to_stride == 1) || (columns == 1 && from_stride == 1)) {
        std::copy_n(from, rows * columns, to);
        return;
    }
    // One axis is the channels. Along it NCHW elements lie far apart, so every channel is a separate stream to read or
    // write. Hardware prefetches only a few streams, and streams a power of two apart evict each other. So handle one
    // cache line of channels at a time for a panel of pixels.
    const bool rows_are_far = from_stride > to_stride;
    const int64_t far = rows_are_far ? rows : columns, near = rows_are_far ? columns : rows;
    // If all writes would map to one set of the L1 cache, write whole rows of a tile at once.
    constexpr int64_t one_set = 4096 / sizeof(Element), few = 4;
    const bool staged = far > few && to_stride % one_set == 0;
    constexpr int64_t tile_rows = 64, tile_columns = transpose_block, tile_stride = tile_rows + transpose_block;
    alignas(64) Element tile[tile_columns * tile_stride];
    // Pixels stay in L1 until all of their channels are written, or in L2 until all are read.
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

void transpose(const SimdLevel &level, const float *from, int64_t from_stride, float *to, int64_t to_stride,
               int64_t rows, int64_t columns) {
    transpose_panels(level.transpose, from, from_stride, to, to_stride, rows, columns);
}

void transpose_elements(const void *from, int64_t from_stride, void *to, int64_t to_stride, int64_t rows,
                        int64_t columns, int64_t bytes) {
    const auto transpose_as = [&](auto transpose_block_of, auto element) {
        using Element = decltype(element);
        transpose_panels(transpose_block_of, static_cast<const Element *>(from), from_stride,
                         static_cast<Element *>(to), to_stride, rows, columns);
    };
    if (bytes == sizeof(float)) {
        transpose_as(supported_simd_levels().best().transpose, float{});
    } else if (bytes == sizeof(uint16_t)) {
        transpose_as(transpose_portable<uint16_t>, uint16_t{});
    } else {
        transpose_as(transpose_portable<uint8_t>, uint8_t{});
    }
}

}  // namespace distile
