/** \file
 * C++17 ownership for the C API: unique pointers, and an exception instead of status codes. Header only.
 */
#ifndef DISTILE_DISTILE_HPP
#define DISTILE_DISTILE_HPP

#include <distile/cuda.h>
#include <distile/group.h>
#include <distile/planner.h>
#include <memory>
#include <stdexcept>
#include <string>

namespace distile {

/** A call failed: its status was not DISTILE_OK. */
class Error : public std::runtime_error {
public:
    Error(distile_status status, const std::string &message)
        : std::runtime_error(std::string(distile_status_name(status)) + ": " + message), status_(status) {
    }
    distile_status status() const {
        return status_;
    }

private:
    distile_status status_;
};

struct Destroy {
    void operator()(distile_context *context) const {
        distile_context_destroy(context);
    }
    void operator()(distile_mask *mask) const {
        distile_mask_destroy(mask);
    }
    void operator()(distile_kernel *kernel) const {
        distile_kernel_destroy(kernel);
    }
    void operator()(distile_weights *weights) const {
        distile_weights_destroy(weights);
    }
    void operator()(distile_planner *planner) const {
        distile_planner_destroy(planner);
    }
    void operator()(distile_group *group) const {
        distile_group_destroy(group);
    }
    void operator()(distile_chain *chain) const {
        distile_chain_destroy(chain);
    }
    void operator()(distile_cuda_switch *object) const {
        distile_cuda_switch_destroy(object);
    }
};

using Context = std::unique_ptr<distile_context, Destroy>;
using Mask = std::unique_ptr<distile_mask, Destroy>;
using Kernel = std::unique_ptr<distile_kernel, Destroy>;
using Weights = std::unique_ptr<distile_weights, Destroy>;
using Planner = std::unique_ptr<distile_planner, Destroy>;
using Group = std::unique_ptr<distile_group, Destroy>;
using Chain = std::unique_ptr<distile_chain, Destroy>;
using CudaSwitch = std::unique_ptr<distile_cuda_switch, Destroy>;

/** Throws Error with the context's message unless the status is DISTILE_OK. */
inline void check(const Context &context, distile_status status) {
    if (status != DISTILE_OK) {
        throw Error(status, distile_context_message(context.get()));
    }
}

/** Takes ownership of a new context. If it could not be made, the message is the thread's. */
inline Context take_context(distile_status status, distile_context *context) {
    if (status != DISTILE_OK) {
        throw Error(status, distile_context_message(nullptr));
    }
    return Context(context);
}

inline Context make_context(const distile_context_options &options = {}) {
    distile_context *context = nullptr;
    const distile_status status = distile_context_create(&options, &context);
    return take_context(status, context);
}

/** Only programs that use this need the library for GPUs. */
inline Context make_cuda_context(const distile_cuda_options &cuda = {}, const distile_context_options &options = {}) {
    distile_context *context = nullptr;
    const distile_status status = distile_cuda_context_create(&options, &cuda, &context);
    return take_context(status, context);
}

inline Mask make_mask(const Context &context) {
    distile_mask *mask = nullptr;
    check(context, distile_mask_create(context.get(), &mask));
    return Mask(mask);
}

inline Kernel make_kernel(const Context &context, const distile_polykernel &polykernel) {
    distile_kernel *kernel = nullptr;
    check(context, distile_kernel_create(context.get(), &polykernel, &kernel));
    return Kernel(kernel);
}

inline Weights pack_weights(const Context &context, const Kernel &kernel, const distile_weights_source &source) {
    distile_weights *weights = nullptr;
    check(context, distile_weights_pack(kernel.get(), &source, &weights));
    return Weights(weights);
}

inline Planner make_planner(const Context &context, const distile_planner_options &options = {}) {
    distile_planner *planner = nullptr;
    check(context, distile_planner_create(context.get(), &options, &planner));
    return Planner(planner);
}

}  // namespace distile

#endif
