/** \file
 * Shared by the host and pixels.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_PIXELS_H
#define DISTILE_CUDA_KERNELS_PIXELS_H

#include "runtime/cuda/kernels/common.h"

namespace distile {

constexpr uint32_t pixels_per_warp = 8;  ///< Pixels that an update visits at once; they share a word of the mask.

/** Pixels of a tensor in units, the bytes read and written at once. */
struct PixelView {
    void *data;
    int64_t stride_n, stride_h, stride_w;
};

/** Pixels to write. */
struct PixelUpdate {
    PixelView to;
    /** The source of active pixels, each copied to scale_h x scale_w pixels; null data: they stay. */
    PixelView from;
    Divisor scale_h, scale_w;
    Divisor runs, height;  ///< Runs of pixels_per_warp pixels per row, and rows per image.
    uint32_t num_runs;     ///< In all images.
    int32_t width, units;  ///< Pixels per row, and units per pixel.
    uint32_t team;         ///< Lanes per pixel: a power of two up to 32.
    int32_t unit;          ///< Bytes: 1, 2, 4 or 16.
    int32_t zero;          ///< 1: inactive pixels become 0; 0: they stay.
    uint32_t zeros;        ///< Four times the byte of their zeros.
};

/** Pixels of a buffer that will be written: the active ones, or all without words. */
struct WrittenPixels {
    DeviceBits bits;
    PixelUpdate update;
};

/** The pixels last written to a buffer, recorded on the device so a graph replay finds what the previous replay wrote.
 * One slot is read while the other is written. All 0: nothing. */
struct BufferRecord {
    WrittenPixels slots[2];
    uint32_t current, blocks_done;
};

/** A buffer to hand out. */
struct HandOut {
    BufferRecord *record;
    int32_t clear;  ///< 1: zero what was last written.
    int32_t keep;   ///< 1: record what will be written, with its bits copied to one of `kept`.
    WrittenPixels written;
    uint32_t num_words;
    uint32_t *kept[2];
};

}  // namespace distile

#endif
