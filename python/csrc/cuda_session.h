/** \file
 * What a session on an NVIDIA GPU needs. In a library built without the part for GPUs, it fails.
 */
#ifndef DISTILE_PYTHON_CUDA_SESSION_H
#define DISTILE_PYTHON_CUDA_SESSION_H

#include <distile/distile.hpp>

namespace distile::python {

/** A context of PyTorch's GPU with this number, in which the GPU chooses variants, so that no call waits. */
Context make_cuda_context_of(int32_t device_index);

/** Later work of the context goes to PyTorch's current stream of the GPU. */
void follow_stream(distile_context *context, int32_t device_index);

}  // namespace distile::python

#endif
