/** \file
 * Vectors of float32 with an element for each channel, as norms and mask units take them.
 */
#ifndef DISTILE_PYTHON_CHANNEL_VECTOR_H
#define DISTILE_PYTHON_CHANNEL_VECTOR_H

#include "python/csrc/tensors.h"

namespace distile::python {

/** One float32 per channel, or null. */
struct ChannelVector {
    ChannelVector(const OptionalTensor &tensor, int64_t channels, const char *name) {
        if (!tensor) {
            return;
        }
        if (tensor->dim() != 1 || tensor->size(0) != channels) {
            fail(std::string(name) + " must have one element for each channel");
        }
        owner = torch::stable::contiguous(
            tensor->scalar_type() == ScalarType::Float ? *tensor : torch::stable::to(*tensor, ScalarType::Float));
        data = static_cast<const float *>(owner->const_data_ptr());
    }
    OptionalTensor owner;
    const float *data = nullptr;
};

/** The type of a tensor that operators without PolyKernels take. Fails if they do not have it. */
inline distile_dtype checked_type(const Tensor &tensor) {
    const std::optional<distile_dtype> type = type_of(tensor);
    if (!type) {
        fail("the tensor has a type other than " + float_type_names());
    }
    return *type;
}

}  // namespace distile::python

#endif
