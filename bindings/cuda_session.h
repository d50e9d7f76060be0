/** \file
 * What a session on an NVIDIA GPU needs. In a library built without the part for GPUs, it fails.
 */
#ifndef DISTILE_BINDINGS_CUDA_SESSION_H
#define DISTILE_BINDINGS_CUDA_SESSION_H

#include <cstdint>
#include <distile/distile.hpp>
#include <memory>

namespace distile::bindings {

/** What chooses variants: the GPU, so that no call waits, or the host. */
enum class Chooser { gpu, host };

/** A context of the GPU with this number and a CUstream, which multiplies float32 as `math` says. */
Context make_cuda_context_of(int32_t device_index, void *stream, distile_math math, Chooser chooser = Chooser::gpu);

/** Later work of the context goes to this CUstream. */
void follow_stream(distile_context *context, void *stream);

/** The number of the capture that a CUstream is in; 0 outside of captures, or if the driver does not tell. */
uint64_t capture_of(void *stream);

/** A switch of captured graphs, whose context must outlive it. Shared, because only the part for GPUs can destroy it.
 */
using SharedSwitch = std::shared_ptr<distile_cuda_switch>;
SharedSwitch make_switch(const Context &context, const distile_cuda_switch_args &args);
void launch_switch(const Context &context, const SharedSwitch &object);
void set_switch(const Context &context, const SharedSwitch &object, int32_t way);
distile_cuda_switch_info info_of(const Context &context, const SharedSwitch &object);

}  // namespace distile::bindings

#endif
