/** \file
 * A shared CUDA context.
 */
#ifndef DISTILE_CUDA_USED_CONTEXT_H
#define DISTILE_CUDA_USED_CONTEXT_H

#include "runtime/cuda/driver.h"
#include <optional>

namespace distile {

/** The retained primary context of a GPU, or the caller's context, which the caller keeps alive. Weights share it with
 * their device, because they may outlive the device. */
struct UsedContext {
    UsedContext(const Driver &loaded, CUcontext given) : driver(loaded), handle(given) {
    }
    ~UsedContext() {
        if (retained) {
            driver.cuDevicePrimaryCtxRelease(*retained);
        }
    }
    UsedContext(const UsedContext &) = delete;
    UsedContext &operator=(const UsedContext &) = delete;

    const Driver &driver;
    CUcontext handle;
    std::optional<CUdevice> retained;  ///< The GPU, if its primary context was retained.
};

/** Makes a context current in this thread for destructors. A lost context refuses, but destructors go on and release
 * every handle. */
class CurrentForCleanup {
public:
    explicit CurrentForCleanup(const UsedContext &context)
        : driver_(context.driver), succeeded_(driver_.cuCtxPushCurrent(context.handle) == CUDA_SUCCESS) {
    }
    ~CurrentForCleanup() {
        if (succeeded_) {
            CUcontext popped = nullptr;
            driver_.cuCtxPopCurrent(&popped);
        }
    }
    CurrentForCleanup(const CurrentForCleanup &) = delete;
    CurrentForCleanup &operator=(const CurrentForCleanup &) = delete;

    bool succeeded() const {
        return succeeded_;
    }

private:
    const Driver &driver_;
    bool succeeded_;
};

}  // namespace distile

#endif
