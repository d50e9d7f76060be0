/** \file
 * One masked call on a GPU, repeated.
 */
#ifndef DISTILE_BENCH_MASKED_CALL_H
#define DISTILE_BENCH_MASKED_CALL_H

#include "workbench.h"

namespace distile::bench {

class MaskedCall {
public:
    /** Both must live as long as this. */
    MaskedCall(const GpuWorkbench &bench, const ByteMask &mask, bool bordered = false, bool zero = false);
    MaskedCall(const MaskedCall &) = delete;
    MaskedCall &operator=(const MaskedCall &) = delete;

    void set(const Mask &mask) const;
    /** `variant` is null to let the dispatcher choose. */
    void run(const Mask &mask, const char *variant) const;
    /** Calls both on the workbench's mask. */
    void set_and_run(const char *variant) const;
    /** The same, and returns the error. Throws where it is too large. */
    double checked(const char *variant) const;

private:
    const GpuWorkbench &bench_;
    const ByteMask &bytes_;
    DeviceArray<uint8_t> device_bytes_;
    bool zero_;
    distile_tensor input_;
    std::optional<distile_tensor> residual_;
    distile_tensor output_;
};

}  // namespace distile::bench

#endif
