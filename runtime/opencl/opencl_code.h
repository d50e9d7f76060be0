/** \file
 * The OpenCL code of a PolyKernel, with the callbacks that it needs.
 */
#ifndef DISTILE_OPENCL_CODE_H
#define DISTILE_OPENCL_CODE_H

#include "kernels/call.h"
#include "runtime/base/device.h"
#include "runtime/opencl/growing_buffer.h"
#include "runtime/opencl/program.h"
#include <map>
#include <memory>
#include <vector>

namespace distile {

class OpenClCode : public LoadedCode {
public:
    explicit OpenClCode(OpenClDevice &device) : device_(device) {
    }

    /** Calls a variant. A rehearsal makes the code build its programs and find its kernels, but launches and allocates
     * nothing. */
    RunResult run(const distile_variant &variant, distile_kernel_call &call, bool rehearsal);

    /** The callbacks for the code. */
    static const distile_gpu_hooks hooks;

private:
    template<typename Body> static int guarded_hook(distile_hooks *hooks, const Body &body);
    Program &program(const char *source, size_t bytes);
    void launch(const distile_gpu_launch &launch);
    void *allocate(uint64_t bytes);

    OpenClDevice &device_;
    std::map<const char *, std::unique_ptr<Program>> programs_;
    // One per allocation of a variant. Calls run in order, so they can share it.
    std::vector<std::unique_ptr<GrowingBuffer>> scratch_;
    // State of the current call.
    bool rehearsal_ = false;
    Program *program_ = nullptr;
    size_t scratch_used_ = 0;
    distile_status status_ = DISTILE_OK;  ///< The status of a failure, whose message is stored.
};

}  // namespace distile

#endif
