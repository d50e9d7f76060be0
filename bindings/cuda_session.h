/** \file
 * What a session on an NVIDIA GPU needs. In a library built without the part for GPUs, it fails.
 */
#ifndef DISTILE_BINDINGS_CUDA_SESSION_H
#define DISTILE_BINDINGS_CUDA_SESSION_H

#include <cstdint>
#include <distile/distile.hpp>

namespace distile::bindings {

/** What chooses variants: the GPU, so that no call waits, or the host. */
enum class Chooser { gpu, host };

/** A context of the GPU with this number and a CUstream, which multiplies float32 as `math` says. */
Context make_cuda_context_of(int32_t device_index, void *stream, distile_math math, Chooser chooser = Chooser::gpu);

/** Later work of the context goes to this CUstream. */
void follow_stream(distile_context *context, void *stream);

/** The number of the capture that a CUstream is in; 0 outside of captures, or if the driver does not tell. */
uint64_t capture_of(void *stream);

}  // namespace distile::bindings

#endif
