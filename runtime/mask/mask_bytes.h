/** \file
 * Where a mask is written as bytes. Kernels of GPUs know it, too.
 */
#ifndef DISTILE_MASK_BYTES_H
#define DISTILE_MASK_BYTES_H

#include <cstdint>

namespace distile {

/** Memory for the bytes of a mask, with the strides of distile_mask_get_bytes. */
struct MaskBytes {
    uint8_t *bytes;  ///< Null: none.
    int64_t stride_n, stride_h;
};

}  // namespace distile

#endif
