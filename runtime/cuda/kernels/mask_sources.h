/** \file
 * Shared by the host and mask_sources.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_MASK_SOURCES_H
#define DISTILE_CUDA_KERNELS_MASK_SOURCES_H

#include "runtime/cuda/kernels/common.h"

namespace distile {

constexpr uint32_t words_at_once = 4;  ///< The words whose bytes a warp loads at once.

/** The words of a mask, shared out to warps. */
struct WordGrid {
    Divisor words_per_row, height;
    uint32_t num_words;
    uint32_t words_per_warp;  ///< A multiple of words_at_once, up to most_groups.
};

/** Bytes to set a mask from. */
struct BytesSource {
    const uint8_t *bytes;
    int64_t stride_n, stride_h;
    uint32_t width;
    WordGrid grid;
};

/** Bytes to write a mask to. */
struct BytesTarget {
    MaskBytes to;
    Divisor width, height;
    uint32_t pixels;  ///< In all images.
};

/** Bits to set a mask from. */
struct BitsSource {
    const uint32_t *words;
    int64_t stride;      ///< Words per row of the source.
    uint32_t last_bits;  ///< The bits of a row's last word that are pixels.
    WordGrid grid;
};

/** Pixel lists to set a mask from. */
struct IndicesSource {
    const int32_t *indices, *counts;  ///< Without counts, every list is as long as the stride.
    int64_t stride;
    Divisor width;
    uint32_t pixels;  ///< Per image.
    uint32_t words_per_row, words_per_image;
};

}  // namespace distile

#endif
