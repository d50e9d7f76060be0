/** \file
 * A CUDA context, as long as anything needs it.
 */
#ifndef DISTILE_CUDA_USED_CONTEXT_H
#define DISTILE_CUDA_USED_CONTEXT_H

#include "driver.h"
#include <optional>

namespace distile {

/** The primary context of a GPU, which is retained, or a context of the caller's, who keeps it. Weights share it with
 * the device that they came from, because they may outlive it. */
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

/** Makes a context current in this thread where destructors need it. One that was lost refuses, and they go on: no
 * handle is left out. */
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
