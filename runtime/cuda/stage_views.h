/** \file
 * Tensors as kernels of stages take them.
 */
#ifndef DISTILE_CUDA_STAGE_VIEWS_H
#define DISTILE_CUDA_STAGE_VIEWS_H

#include "runtime/cuda/kernels/stage.h"

namespace distile {

/** A tensor's view; that of null has no data. */
inline StageView view_of(const distile_tensor *tensor) {
    if (!tensor) {
        return {};
    }
    return {static_cast<char *>(tensor->data), static_cast<int32_t>(tensor->batch > 1 ? tensor->stride_n : 0),
            static_cast<int32_t>(tensor->stride_h), static_cast<int32_t>(tensor->stride_w)};
}

}  // namespace distile

#endif
