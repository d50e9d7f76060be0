/** \file
 * Shared by the host and difference.cu.
 */
#ifndef DISTILE_CUDA_KERNELS_DIFFERENCE_H
#define DISTILE_CUDA_KERNELS_DIFFERENCE_H

#include "runtime/cuda/kernels/common.h"

namespace distile {

constexpr int32_t compared_lanes = 4;    ///< Elements per vector, whatever their type.
constexpr int32_t most_channels = 4;     ///< The most channels of packed pixels with their own kernel.
constexpr uint32_t pixel_threads = 128;  ///< Its block size, small so that small images use all multiprocessors.

/** Elements of a tensor. */
struct Elements {
    const void *data;
    int64_t stride_n, stride_h, stride_w;
};

/** Two tensors to compare. A team of threads makes one word; a team has 8 threads if pixels are packed. */
struct Comparison {
    Elements a, b;
    Divisor words_per_row, height, channels;
    uint32_t num_words, team;
    int32_t width;
    float threshold;
};

}  // namespace distile

#endif
