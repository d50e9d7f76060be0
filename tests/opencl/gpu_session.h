/** \file
 * The library on an OpenCL device as the tests of GPUs use it: a device, or the reason why there is none; arrays on it.
 */
#ifndef DISTILE_TESTS_OPENCL_SESSION_H
#define DISTILE_TESTS_OPENCL_SESSION_H

#include "catch.h"
#include "opencl_array.h"
#include <distile/distile.hpp>
#include <distile/opencl.h>
#include <distile/polykernel.h>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/** The PolyKernel of an operator of the tests. */
#define GPU_POLYKERNEL(name) name##_opencl

namespace distile {

/** Whether the machine lacks what tests on a device need. Whatever else keeps one from being opened is a defect. */
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

/** The context in whose address space the tests' arrays are: that of the Gpu made last. */
inline distile_context *&current_context() {
    static distile_context *current = nullptr;
    return current;
}

inline cl_command_queue current_queue() {
    return static_cast<cl_command_queue>(distile_opencl_queue(current_context()));
}

/** A context of a device, which is current; or none, and a line that names the test and says why. */
struct Gpu {
    explicit Gpu(const distile_opencl_options &opencl = {}) {
        distile_context *opened = nullptr;
        const distile_context_options options = tracing(*traced);
        const distile_status status = distile_opencl_context_create(&options, &opencl, &opened);
        context.reset(opened);
        current_context() = opened;
        if (!context) {
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
        OpenClQueue(context.get()).finish();
    }
    void join(const Planner &) const {
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
