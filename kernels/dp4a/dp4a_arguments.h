/** \file
 * The arguments of the kernels in dp4a.cu, shared by the host and the device. Addresses are of the device, distances in
 * bytes.
 */
#ifndef DISTILE_CUDA_DP4A_ARGUMENTS_H
#define DISTILE_CUDA_DP4A_ARGUMENTS_H

#include "kernels/cuda_call.h"
#include "kernels/cuda_tensor.h"
#include <cstdint>

namespace distile::dp4a {

/** Output channels of a block of the weights, and the groups of four numbers of a step of the reduction. */
constexpr int32_t block_channels = 16, step_groups = 16;
/** The bytes of a step of a block of the weights: [group][output channel][4]. */
constexpr int32_t weight_step = step_groups * block_channels * 4;

/** The blocks of the kernels distile_dp4a_PIXELS_CHANNELS, in output pixels and channels. */
constexpr int32_t few_pixels = 32, many_pixels = 128, few_channels = 16, many_channels = 64;
/** The threads of a block of distile_dp4a_depthwise, each for `thread_channels` channels of a pixel. */
constexpr int32_t depthwise_threads = 128, thread_channels = 4;

/** The taps of a phase along an axis: output pixel scale * i + phase reads input pixels stride * i + first + t * step.
 */
struct Axis {
    int32_t scale, phase, stride, first, step, taps;
    int32_t begin, end;    ///< The input pixels that may be read; negative ones lie in its border.
    int32_t tile, extent;  ///< The output pixels of a tile and of an image.
    int32_t pixels;        ///< At least as many as a tile has of this phase.
};

/** A launch computes one phase of the operator. */
struct Arguments : CudaCall {
    CudaTensor input, residual, output;  ///< `residual.data` is null if there is none.
    const char *weights;                 ///< The weights of this phase.
    int64_t weight_block;                ///< From one block of output channels to the next.
    const float *bias;
    const char *requantization;  ///< A distile_requantization.
    const int32_t *offsets;      ///< The offsets of this phase.
    const float *multipliers;
    Axis rows, columns;
    int32_t steps;                      ///< Steps of the reduction.
    int32_t in_channels, out_channels;  ///< Channels of the tensors.
    int32_t read_channels;              ///< Input channels that a section of the output channels reads; 0: depthwise.
    int32_t section_channels, padded_section;  ///< Output channels of a section, and those in its blocks.
    int32_t unit;                              ///< Bytes that the input is read in: 1, 4 or 16.
    uint32_t flip;                             ///< Makes unsigned numbers of those that are stored, by exclusive or.
    int32_t output_bytes;                      ///< The bytes of an output number: 1 or 4.
    int32_t output_least;                      ///< The least one of 8 bits.
    int32_t stores_vectors;                    ///< 1: four neighbouring channels may be stored at once.
};
static_assert(sizeof(Arguments) <= 4096);

}  // namespace distile::dp4a

#endif
