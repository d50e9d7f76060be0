/** \file
 * Shared by the host and mask_sources.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_MASK_SOURCES_H
#define DISTILE_CUDA_KERNELS_MASK_SOURCES_H

#include "common.h"

namespace distile {

constexpr uint32_t words_per_warp = 4;  ///< For distile_pack_bytes.

/** Bytes to set a mask from. */
struct BytesSource {
    const uint8_t *bytes;
    int64_t stride_n, stride_h;
    Divisor words_per_row, height;  ///< The mask's.
    uint32_t num_words;
};

/** Bits to set a mask from. */
struct BitsSource {
    const uint32_t *words;
    int64_t stride;         ///< Words per row of the source.
    Divisor words_per_row;  ///< The mask's.
    uint32_t num_words;
    uint32_t last_bits;  ///< The bits of a row's last word that are pixels.
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
