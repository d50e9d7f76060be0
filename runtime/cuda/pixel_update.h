/** \file
 * Zeros into pixels of a tensor on a GPU, and masked copies.
 */
#ifndef DISTILE_CUDA_PIXEL_UPDATE_H
#define DISTILE_CUDA_PIXEL_UPDATE_H

#include "device.h"
#include "mask_kernels.h"

namespace distile {

/** What can be read and written at once: data and strides are multiples of as many elements where the channels are. */
constexpr int32_t vector_lanes = 4;

/** The elements of a vector that pixels of a tensor come in. */
int32_t lanes_of(const distile_tensor &tensor);

/** An update of a tensor's pixels: copies from a contiguous tensor, unless that is null, and zeros if asked for. */
PixelUpdate make_update(const distile_tensor &output, const void *from, bool zero);

/** The blocks of a launch for an update. */
uint32_t blocks_for(const distile_cuda &cuda, const PixelUpdate &update);

/** Writes pixels of an output: active ones from a contiguous tensor, unless that is null, and zeros into the others. */
void update_pixels(const distile_cuda &cuda, CUstream stream, const DeviceBits &bits, const distile_tensor &output,
                   const void *from, bool zero);

}  // namespace distile

#endif
