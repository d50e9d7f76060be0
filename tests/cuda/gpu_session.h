/** \file
 * The library on a GPU as its tests use it: a GPU, or the reason why there is none; operators, graphs and streams.
 */
#ifndef DISTILE_TESTS_GPU_SESSION_H
#define DISTILE_TESTS_GPU_SESSION_H

#include "catch.h"
#include "gpu.h"
#include <distile/cuda.h>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

/** The PolyKernel of an operator of the tests. */
#define GPU_POLYKERNEL(name) name##_cuda

namespace distile {

/** Whether the machine lacks what tests on a GPU need. Whatever else keeps one from being opened is a defect. */
inline bool lacks_gpu(distile_status status) {
    return status == DISTILE_ERROR_NO_DRIVER || status == DISTILE_ERROR_NO_GPU || status == DISTILE_ERROR_OLD_DRIVER;
}

/** A context that writes what a call did. */
inline distile_context_options tracing(distile_choice &traced) {
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    return options;
}

/** A context of a GPU, which is current in this thread; or none, and a line that names the test and says why. */
struct Gpu {
    Gpu() {
        distile_context *opened = nullptr;
        distile_context_options options = tracing(*traced);
        // Whatever the kind of operator, so that every PolyKernel of a chain can be taken.
        options.math = DISTILE_MATH_TF32;
        const distile_status status = distile_cuda_context_create(&options, nullptr, &opened);
        context.reset(opened);
        if (context) {
            CUdevice device = 0;
            CU(cuDeviceGet, &device, 0);
            CU(cuDevicePrimaryCtxRetain, &current, device);
            CU(cuCtxSetCurrent, current);
        } else {
            const std::string reason =
                distile_status_name(status) + std::string(": ") + distile_context_message(nullptr);
            INFO(reason);
            REQUIRE(lacks_gpu(status));
            std::cout << "[SKIP] " << Catch::getResultCapture().getCurrentTestName() << ": " << reason << "\n";
        }
    }

    explicit operator bool() const {
        return context != nullptr;
    }
    void check(distile_status result) const {
        INFO(distile_context_message(context.get()));
        REQUIRE(distile_status_name(result) == std::string("DISTILE_OK"));
    }
    Mask make_mask() const {
        return distile::make_mask(context);
    }
    Kernel make_kernel(const distile_polykernel &polykernel) const {
        return distile::make_kernel(context, polykernel);
    }

    /** Waits for all work. */
    void finish() const {
        CU(cuCtxSynchronize);
    }
    /** Makes the stream wait for what a planner clears beside it. */
    void join(const Planner &planner) const {
        check(distile_cuda_planner_join(planner.get()));
    }

    /** The same for a call on the CPU's context. */
    void check_host(distile_status result) const {
        INFO(distile_context_message(host.get()));
        REQUIRE(distile_status_name(result) == std::string("DISTILE_OK"));
    }

    /** What the last call did. */
    std::unique_ptr<distile_choice> traced = std::make_unique<distile_choice>();
    Context context;
    Context host = make_context();  ///< Of the CPU, for what is to be the same.
    CUcontext current = nullptr;
};

/** The tiles of a list, wherever it is. */
struct ListedTiles {
    std::vector<uint32_t> xy, image;

    bool operator==(const ListedTiles &other) const {
        return xy == other.xy && image == other.image;
    }
};

inline ListedTiles tiles_of(const distile_tile_list &list) {
    if (!list.device_count) {
        return {{list.xy, list.xy + list.count}, {list.image, list.image + list.count}};
    }
    const uint32_t count = read_device(list.device_count, 1)[0];
    return {read_device(list.xy, count), read_device(list.image, count)};
}

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

/** A stream of the test's own, which a context uses as long as this lives. */
class StreamInUse {
public:
    explicit StreamInUse(const Gpu &gpu) : gpu_(gpu) {
        CU(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
        gpu.check(distile_cuda_set_stream(gpu.context.get(), stream_));
    }
    ~StreamInUse() {
        (void)distile_cuda_set_stream(gpu_.context.get(), nullptr);
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
    /** Waits for the work on it. */
    void finish() const {
        CU(cuStreamSynchronize, stream_);
    }

private:
    const Gpu &gpu_;
    CUstream stream_ = nullptr;
};

}  // namespace distile

#endif
