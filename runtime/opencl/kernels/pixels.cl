// Kernels that move pixels in a UNIT of BYTES, whatever their type.

// Copies the active pixels, if there is a source, and zeros the others, if they shall not stay. One item per unit; an
// image's row per row of the grid. Without words all pixels are active.
__kernel void NAMED(distile_update_pixels, BYTES)(POINTER(words), int words_per_row, POINTER(to), long to_n, long to_h,
                                                  long to_w, POINTER(from), long from_n, long from_h, long from_w,
                                                  int height, int width, uint units, int scale_h, int scale_w,
                                                  int invert, int zero) {
    const uint i = (uint)get_global_id(0), x = i / units, unit = i - x * units;
    const int row = (int)get_global_id(1), image = row / height, y = row - image * height;
    if (x >= (uint)width) {
        return;
    }
    const uint word = words_buffer ? AT(uint, words)[(long)row * words_per_row + x / 32] : ~0u;
    const int active = ((word >> (x % 32) & 1) != 0) != (invert != 0);
    __global UNIT *target = AT(UNIT, to) + image * to_n + y * to_h + x * to_w + unit;
    if (active && from_buffer) {
        *target = AT(UNIT, from)[image * from_n + y / scale_h * from_h + x / (uint)scale_w * from_w + unit];
    } else if (!active && zero) {
        *target = (UNIT)(0);
    }
}

// Copies between the listed pixels of a tensor and the first pixels of a packed one, in the rows of the grid: strides
// are in units. Listed pixels beyond the capacity become 0 with `zero`.
__kernel void NAMED(distile_move_packed, BYTES)(VIEW(pixel), VIEW(packed), POINTER(list), uint pixels, POINTER(count),
                                                uint units, uint height, uint width, uint capacity, int to_packed,
                                                int zero) {
    const uint unit = (uint)get_global_id(0), count = AT(uint, count)[0];
    if (unit >= units) {
        return;
    }
    for (uint i = (uint)get_global_id(1); i < count; i += (uint)get_global_size(1)) {
        __global UNIT *pixel = AT(UNIT, pixel) + LISTED(pixel, i) + unit;
        if (i < capacity) {
            const uint row = i / width, image = row / height;
            __global UNIT *packed = AT(UNIT, packed) + image * packed_n + (row - image * height) * packed_h +
                                    (i - row * width) * packed_w + unit;
            if (to_packed) {
                *packed = *pixel;
            } else {
                *pixel = *packed;
            }
        } else if (zero) {
            *pixel = (UNIT)0;
        }
    }
}

#if BYTES < 16
// NCHW to NHWC, or back. Items lie along the innermost dimension of what is written.
__kernel void NAMED(distile_convert_layout, BYTES)(POINTER(planes), long plane_n, long plane_c, long plane_h,
                                                   POINTER(pixels), long pixel_n, long pixel_h, long pixel_w,
                                                   int height, int width, int channels, int to_planes) {
    const uint i = (uint)get_global_id(0);
    const int row = (int)get_global_id(1), image = row / height, y = row - image * height;
    const uint x = to_planes ? i % (uint)width : i / (uint)channels;
    const uint c = to_planes ? i / (uint)width : i % (uint)channels;
    if (x >= (uint)width || c >= (uint)channels) {
        return;
    }
    __global UNIT *plane = AT(UNIT, planes) + image * plane_n + c * plane_c + y * plane_h + x;
    __global UNIT *pixel = AT(UNIT, pixels) + image * pixel_n + y * pixel_h + x * pixel_w + c;
    if (to_planes) {
        *plane = *pixel;
    } else {
        *pixel = *plane;
    }
}
#endif
