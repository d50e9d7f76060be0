/** \file
 * The library on an OpenCL device as the tests of GPUs use it: a device, or the reason why there is none; arrays on it.
 */
#ifndef DISTILE_TESTS_OPENCL_SESSION_H
#define DISTILE_TESTS_OPENCL_SESSION_H

#include "autoscheduler/measure/opencl_array.h"
#include "tests/gpu/tested_gpu.h"
#include <distile/opencl.h>
#include <functional>
#include <utility>
#include <vector>

/** The PolyKernel of an operator of the tests. */
#define GPU_POLYKERNEL(name) name##_opencl

namespace distile {

/** The context in whose address space the tests' arrays are: that of the Gpu made last. */
inline distile_context *&current_context() {
    static distile_context *current = nullptr;
    return current;
}

inline cl_command_queue current_queue() {
    return static_cast<cl_command_queue>(distile_opencl_queue(current_context()));
}

/** A context of a device, which is current; or none, and a line that names the test and says why. */
struct Gpu : TestedGpu {
    explicit Gpu(const distile_opencl_options &opencl = {}) {
        distile_context *opened = nullptr;
        const distile_context_options options = tracing(*traced);
        const distile_status status = distile_opencl_context_create(&options, &opencl, &opened);
        current_context() = opened;
        take(status, opened);
    }

    /** The host chooses in any case. */
    explicit Gpu(bool /*chooses*/) : Gpu() {
    }

    /** Waits for all work. */
    void finish() const {
        OpenClQueue(context.get()).finish();
    }
    /** The variant of the last call. */
    int32_t last_variant(const Kernel &) const {
        return traced->variant_index;
    }
    void join(const Planner &) const {
    }
};

template<typename T> std::vector<T> read_device(const T *from, size_t count) {
    std::vector<T> values(count);
    OpenClQueue(current_context()).read(current_context(), from, values.data(), count * sizeof(T));
    return values;
}

template<typename T> void write_device(T *to, const std::vector<T> &values) {
    OpenClQueue(current_context()).write(current_context(), to, values.data(), values.size() * sizeof(T));
}

/** An array in a buffer of the test's own. */
template<typename T> class DeviceArray : public OpenClArray<T> {
public:
    explicit DeviceArray(size_t count) : OpenClArray<T>(current_context(), count) {
    }
    explicit DeviceArray(const std::vector<T> &values) : OpenClArray<T>(current_context(), values) {
    }
};

inline ListedTiles tiles_of(const distile_tile_list &list) {
    return read_tiles(list, [](const uint32_t *from, size_t count) { return read_device(from, count); });
}

/** The context's queue, which is its only one. */
class StreamInUse {
public:
    explicit StreamInUse(const Gpu &gpu) : gpu_(gpu) {
    }
    cl_command_queue get() const {
        return current_queue();
    }
    void finish() const {
        gpu_.finish();
    }

private:
    const Gpu &gpu_;
};

/** OpenCL has no graphs: where others are replayed, the calls are made again. */
class Graph {
public:
    Graph(cl_command_queue, std::function<void()> record) : record_(std::move(record)) {
    }
    void launch() const {
        record_();
    }

private:
    std::function<void()> record_;
};

}  // namespace distile

#endif
