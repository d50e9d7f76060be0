/** \file
 * One masked call on a GPU, repeated.
 */
#ifndef DISTILE_BENCH_MASKED_CALL_H
#define DISTILE_BENCH_MASKED_CALL_H

#include "bench/gpu/workbench.h"
#include <functional>

namespace distile::bench {

/** What a call does besides its operator. */
struct CallModes {
    bool bordered = false;                     /**< The input has a border. */
    bool zero = false;                         /**< Mode "zero", not "keep". */
    distile_kernel *kernel = nullptr;          /**< Null: the workbench's. */
    const Context *context = nullptr;          /**< The context of the kernel and the masks; null: the workbench's. */
    distile_store store = DISTILE_STORE_EXACT; /**< Whole tiles are right only if the mask covers them. */
};

class MaskedCall {
public:
    /** The workbench and the mask must live as long as this. */
    MaskedCall(const GpuWorkbench &bench, const ByteMask &mask, const CallModes &modes = {});
    MaskedCall(const MaskedCall &) = delete;
    MaskedCall &operator=(const MaskedCall &) = delete;

    void set(const Mask &mask) const;
    /** `variant` is null to let the dispatcher choose. */
    void run(const Mask &mask, const char *variant) const;
    /** Calls both on the workbench's mask. */
    void set_and_run(const char *variant) const;
    /** The error of what `call` writes. Throws where it is too large. */
    double checked(const std::function<void()> &call, bool has_epilogue = true) const;
    /** The error of what set_and_run() writes. Throws where it is too large. */
    double checked(const char *variant) const;

private:
    const GpuWorkbench &bench_;
    const ByteMask &bytes_;
    DeviceArray<uint8_t> device_bytes_;
    CallModes modes_;
    distile_tensor input_;
    std::optional<distile_tensor> residual_;
    distile_tensor output_;
};

}  // namespace distile::bench

#endif
