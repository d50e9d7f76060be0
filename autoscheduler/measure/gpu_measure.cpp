#include "autoscheduler/measure/gpu_measure.h"
#include "autoscheduler/measure/gpu.h"
#include <algorithm>

namespace distile {

namespace {

/** A replay should take this long, where no more calls than this are needed for that. */
constexpr double replay_us = 400;
constexpr int most_calls = 20;
/** In a replay of more than this, the launch of the graph does not show. */
constexpr double long_replay_us = 1500;

/** Undoes something in a destructor. What the driver refuses there is lost with the context. */
template<typename Undo> void quietly(const Undo &undo) {
    try {
        undo();
    } catch (const std::exception &) {
        // There is nobody to tell.
    }
}

/** Some calls on a stream as an executable graph. */
CUgraphExec capture(CUstream stream, int calls, const std::function<void()> &call) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    try {
        for (int i = 0; i < calls; i++) {
            call();
        }
    } catch (...) {
        // What cannot be captured must not leave the stream in this state.
        quietly([&] { CU(cuStreamEndCapture, stream, &graph); });
        throw;
    }
    CU(cuStreamEndCapture, stream, &graph);
    CU(cuGraphInstantiate, &executable, graph, 0ULL);
    CU(cuGraphDestroy, graph);
    return executable;
}

void keep_choice(void *user, const distile_choice *choice) {
    *static_cast<distile_choice *>(user) = *choice;
}

}  // namespace

struct GpuSlice::Handles {
    explicit Handles(int wanted) {
        CU(cuInit, 0u);
        CU(cuDeviceGet, &device, 0);
        CU(cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
        if (wanted < 0 || wanted > multiprocessors) {
            throw std::runtime_error("this GPU has " + std::to_string(multiprocessors) + " multiprocessors, not " +
                                     std::to_string(wanted));
        }
        CU(cuDevicePrimaryCtxRetain, &context, device);
        CU(cuCtxSetCurrent, context);
        if (wanted > 0 && wanted < multiprocessors) {
            make_green(static_cast<unsigned int>(wanted));
        } else {
            CU(cuStreamCreate, &stream, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
        }
    }

    void make_green(unsigned int wanted) {
        CUdevResource whole{}, part{}, rest{};
        unsigned int groups = 1;
        CU(cuDeviceGetDevResource, device, &whole, CU_DEV_RESOURCE_TYPE_SM);
        CU(cuDevSmResourceSplitByCount, &part, &groups, static_cast<const CUdevResource *>(&whole), &rest, 0u, wanted);
        CUdevResourceDesc description = nullptr;
        CU(cuDevResourceGenerateDesc, &description, &part, 1u);
        CU(cuGreenCtxCreate, &green, description, device, static_cast<unsigned int>(CU_GREEN_CTX_DEFAULT_STREAM));
        CU(cuCtxFromGreenCtx, &context, green);
        CU(cuCtxSetCurrent, context);
        CU(cuGreenCtxStreamCreate, &stream, green, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING), 0);
        multiprocessors = static_cast<int>(part.sm.smCount);
    }

    ~Handles() {
        quietly([&] { CU(cuStreamDestroy, stream); });
        quietly([] { CU(cuCtxSetCurrent, CUcontext{nullptr}); });
        if (green) {
            quietly([&] { CU(cuGreenCtxDestroy, green); });
        }
        quietly([&] { CU(cuDevicePrimaryCtxRelease, device); });
    }
    Handles(const Handles &) = delete;
    Handles &operator=(const Handles &) = delete;

    CUdevice device = 0;
    CUcontext context = nullptr;
    CUgreenCtx green = nullptr;
    CUstream stream = nullptr;
    int multiprocessors = 0;
};

GpuSlice::GpuSlice(int multiprocessors) : handles_(std::make_unique<Handles>(multiprocessors)) {
}

GpuSlice::~GpuSlice() = default;

void *GpuSlice::context() const {
    return handles_->context;
}

void *GpuSlice::stream() const {
    return handles_->stream;
}

void GpuSlice::synchronise() const {
    CU(cuStreamSynchronize, handles_->stream);
}

int GpuSlice::multiprocessors() const {
    return handles_->multiprocessors;
}

std::string GpuSlice::device() const {
    char text[128] = "";
    CU(cuDeviceGetName, &text[0], static_cast<int>(sizeof(text)), handles_->device);
    return text;
}

Context make_context(const GpuSlice &slice, distile_choice *choice, distile_math math) {
    distile_cuda_options cuda{};
    cuda.context = slice.context();
    cuda.stream = slice.stream();
    distile_context_options options{};
    options.threads = 1;
    options.math = math;
    if (choice) {
        options.trace = &keep_choice;
        options.trace_user = choice;
    }
    return make_cuda_context(cuda, options);
}

GpuMemory::GpuMemory(const void *values, size_t bytes) {
    CUdeviceptr address = 0;
    CU(cuMemAlloc, &address, bytes);
    data_ = reinterpret_cast<void *>(address);
    CU(cuMemcpyHtoD, address, values, bytes);
    CU(cuCtxSynchronize);
}

GpuMemory::~GpuMemory() {
    quietly([&] { CU(cuMemFree, reinterpret_cast<CUdeviceptr>(data_)); });
}

struct GpuGraph::Handles {
    Handles(CUstream stream, const std::function<void()> &call) : stream(stream) {
        CU(cuEventCreate, &begin, 0u);
        CU(cuEventCreate, &end, 0u);
        call();
        CU(cuStreamSynchronize, stream);
        executable = capture(stream, 1, call);
        replay();
        const double estimate = time();
        calls = std::clamp(static_cast<int>(replay_us / std::max(estimate, 1.0)), 1, most_calls);
        if (calls > 1) {
            CU(cuGraphExecDestroy, executable);
            executable = nullptr;
            executable = capture(stream, calls, call);
            replay();
        }
        hide_launch = estimate * calls < long_replay_us;
    }
    ~Handles() {
        quietly([&] { CU(cuStreamSynchronize, stream); });
        quietly([&] { CU(cuGraphExecDestroy, executable); });
        quietly([&] { CU(cuEventDestroy, begin); });
        quietly([&] { CU(cuEventDestroy, end); });
    }
    Handles(const Handles &) = delete;
    Handles &operator=(const Handles &) = delete;

    void replay() const {
        CU(cuGraphLaunch, executable, stream);
    }
    double time() const {
        if (hide_launch) {
            replay();
        }
        CU(cuEventRecord, begin, stream);
        replay();
        CU(cuEventRecord, end, stream);
        CU(cuEventSynchronize, end);
        float milliseconds = 0;
        CU(cuEventElapsedTime, &milliseconds, begin, end);
        return 1000.0 * milliseconds / calls;
    }

    CUstream stream;
    int calls = 1;
    bool hide_launch = true;  // The time of launching a graph shows in one as short as this.
    CUgraphExec executable = nullptr;
    CUevent begin = nullptr, end = nullptr;
};

GpuGraph::GpuGraph(const GpuSlice &slice, const std::function<void()> &call)
    : handles_(std::make_unique<Handles>(static_cast<CUstream>(slice.stream()), call)) {
}

GpuGraph::~GpuGraph() = default;

double GpuGraph::time() const {
    return handles_->time();
}

void GpuGraph::replay() const {
    handles_->replay();
}

}  // namespace distile
