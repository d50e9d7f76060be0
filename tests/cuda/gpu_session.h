/** \file
 * The library on a GPU as its tests use it: a GPU, or the reason why there is none; operators, graphs and streams.
 */
#ifndef DISTILE_TESTS_CUDA_SESSION_H
#define DISTILE_TESTS_CUDA_SESSION_H

#include "autoscheduler/measure/gpu.h"
#include "tests/gpu/tested_gpu.h"
#include <distile/cuda.h>
#include <exception>

/** The PolyKernel of an operator of the tests. */
#define GPU_POLYKERNEL(name) name##_cuda

namespace distile {

/** A context of a GPU, which is current in this thread; or none, and a line that names the test and says why. */
struct Gpu : TestedGpu {
    explicit Gpu(bool chooses = false) {
        distile_context *opened = nullptr;
        distile_context_options options = tracing(*traced);
        distile_cuda_options cuda{};
        cuda.choose_on_device = chooses ? 1 : 0;
        cuda.launch_us = -1;
        // Whatever the kind of operator, so that every PolyKernel of a chain can be taken.
        options.math = DISTILE_MATH_TF32;
        const distile_status status = distile_cuda_context_create(&options, &cuda, &opened);
        take(status, opened);
        if (context) {
            CUdevice device = 0;
            CU(cuDeviceGet, &device, 0);
            CU(cuDevicePrimaryCtxRetain, &current, device);
            CU(cuCtxSetCurrent, current);
        }
    }

    /** Waits for all work. */
    void finish() const {
        CU(cuCtxSynchronize);
    }
    /** The variant that the GPU chose last for a kernel. */
    int32_t last_variant(const Kernel &kernel) const {
        distile_choice choice{};
        check(distile_cuda_last_choice(kernel.get(), &choice));
        return choice.variant_index;
    }
    /** Makes the stream wait for what a planner clears beside it. */
    void join(const Planner &planner) const {
        check(distile_cuda_planner_join(planner.get()));
    }

    CUcontext current = nullptr;
};

inline ListedTiles tiles_of(const distile_tile_list &list) {
    return read_tiles(list, [](const uint32_t *from, size_t count) { return read_device(from, count); });
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
