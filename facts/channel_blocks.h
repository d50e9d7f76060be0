/** \file
 * The blocks of output channels in packed weights.
 */
#ifndef DISTILE_FACTS_CHANNEL_BLOCKS_H
#define DISTILE_FACTS_CHANNEL_BLOCKS_H

/** Output channels per block of the weight layouts "cpu-o16", "cuda-o32" and "opencl-o32". */
#define DISTILE_CPU_CHANNEL_BLOCK 16
#define DISTILE_CUDA_CHANNEL_BLOCK 32
#define DISTILE_OPENCL_CHANNEL_BLOCK 32

#endif
