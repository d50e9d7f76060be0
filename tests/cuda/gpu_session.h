/** \file
 * The library on a GPU as its tests use it: ownership, and a GPU or the reason why there is none.
 */
#ifndef DISTILE_TESTS_GPU_SESSION_H
#define DISTILE_TESTS_GPU_SESSION_H

#include "catch.h"
#include "gpu.h"
#include <distile/cuda.h>
#include <distile/distile.hpp>
#include <iostream>
#include <memory>
#include <string>

namespace distile {

template<typename Object> using Owned = std::unique_ptr<Object, Destroy>;

/** A context that writes what a call did. */
inline distile_context_options tracing(distile_choice &traced) {
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    return options;
}

/** Whether the machine lacks what tests on a GPU need. Whatever else keeps one from being opened is a defect. */
inline bool lacks_gpu(distile_status status) {
    return status == DISTILE_ERROR_NO_DRIVER || status == DISTILE_ERROR_NO_GPU || status == DISTILE_ERROR_OLD_DRIVER;
}

/** A context with a GPU, which is current in this thread; or none, and a line that names the test and says why. */
struct Gpu {
    Gpu() : context(make_context(tracing(*traced))) {
        distile_cuda *opened = nullptr;
        status = distile_cuda_create(context.get(), nullptr, &opened);
        cuda.reset(opened);
        if (cuda) {
            CUdevice device = 0;
            CU(cuDeviceGet, &device, 0);
            CU(cuDevicePrimaryCtxRetain, &current, device);
            CU(cuCtxSetCurrent, current);
        } else {
            const std::string reason =
                distile_status_name(status) + std::string(": ") + distile_context_message(context.get());
            INFO(reason);
            REQUIRE(lacks_gpu(status));
            std::cout << "[SKIP] " << Catch::getResultCapture().getCurrentTestName() << ": " << reason << "\n";
        }
    }

    void check(distile_status result) const {
        INFO(distile_context_message(context.get()));
        REQUIRE(distile_status_name(result) == std::string("DISTILE_OK"));
    }
    Owned<distile_cuda_mask> make_mask() const {
        distile_cuda_mask *mask = nullptr;
        check(distile_cuda_mask_create(cuda.get(), &mask));
        return Owned<distile_cuda_mask>(mask);
    }
    Owned<distile_cuda_kernel> make_kernel(const distile_polykernel *polykernel) const {
        distile_cuda_kernel *kernel = nullptr;
        check(distile_cuda_kernel_create(cuda.get(), polykernel, &kernel));
        return Owned<distile_cuda_kernel>(kernel);
    }

    /** What the last call did. */
    std::unique_ptr<distile_choice> traced = std::make_unique<distile_choice>();
    Context context;
    distile_status status = DISTILE_OK;
    Owned<distile_cuda> cuda;
    CUcontext current = nullptr;
};

/** Work that is recorded on a stream and can be replayed. */
class Graph {
public:
    template<typename Record> Graph(CUstream stream, const Record &record) : stream_(stream) {
        CU(cuStreamSynchronize, stream);
        CU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        record();
        CU(cuStreamEndCapture, stream, &graph_);
        CU(cuGraphInstantiate, &executable_, graph_, 0ULL);
    }
    ~Graph() {
        try {
            CU(cuStreamSynchronize, stream_);
            CU(cuGraphExecDestroy, executable_);
            CU(cuGraphDestroy, graph_);
        } catch (const std::exception &) {
            // The test has failed before.
        }
    }
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;

    void launch() const {
        CU(cuGraphLaunch, executable_, stream_);
    }

private:
    CUstream stream_;
    CUgraph graph_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

/** A stream of the test's own, which a GPU uses as long as this lives. */
class StreamInUse {
public:
    explicit StreamInUse(const Gpu &gpu) : gpu_(gpu) {
        CU(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
        gpu.check(distile_cuda_set_stream(gpu.cuda.get(), stream_));
    }
    ~StreamInUse() {
        (void)distile_cuda_set_stream(gpu_.cuda.get(), nullptr);
        try {
            CU(cuStreamDestroy, stream_);
        } catch (const std::exception &) {
            // The context may have been lost.
        }
    }
    StreamInUse(const StreamInUse &) = delete;
    StreamInUse &operator=(const StreamInUse &) = delete;

    CUstream get() const {
        return stream_;
    }

private:
    const Gpu &gpu_;
    CUstream stream_ = nullptr;
};

}  // namespace distile

#endif
