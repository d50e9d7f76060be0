/** \file
 * Arrays on an OpenCL device, for programs around the library.
 */
#ifndef DISTILE_OPENCL_ARRAY_H
#define DISTILE_OPENCL_ARRAY_H

#include "runtime/opencl/library.h"
#include <algorithm>
#include <distile/distile.hpp>
#include <distile/opencl.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace distile {

/** Throws std::runtime_error unless a call of OpenCL succeeded. */
inline void check_opencl(cl_int result, const char *function) {
    if (result != CL_SUCCESS) {
        throw std::runtime_error(std::string(function) + " returned " + opencl_name(result));
    }
}

/** The queue of a context. */
class OpenClQueue {
public:
    explicit OpenClQueue(const distile_context *context)
        : queue_(static_cast<cl_command_queue>(distile_opencl_queue(context))) {
        LibraryFailure failure{};
        library_ = load_opencl(failure);
        if (!library_ || !queue_) {
            throw std::runtime_error("there is no OpenCL device: " + failure.message);
        }
    }

    const OpenClLibrary *operator->() const {
        return library_;
    }
    cl_command_queue get() const {
        return queue_;
    }
    /** Waits for all work. */
    void finish() const {
        check_opencl(library_->clFinish(queue_), "clFinish");
    }
    /** The buffer of a context behind an address. */
    static cl_mem buffer_of(distile_context *context, const void *address, size_t &offset) {
        void *buffer = nullptr;
        const distile_status status = distile_opencl_buffer(context, address, &buffer, &offset);
        if (status != DISTILE_OK) {
            throw Error(status, distile_context_message(context));
        }
        return static_cast<cl_mem>(buffer);
    }
    void read(distile_context *context, const void *from, void *to, size_t bytes) const {
        size_t offset = 0;
        cl_mem buffer = buffer_of(context, from, offset);
        finish();
        if (bytes > 0) {
            check_opencl(library_->clEnqueueReadBuffer(queue_, buffer, CL_TRUE, offset, bytes, to, 0, nullptr, nullptr),
                         "clEnqueueReadBuffer");
        }
    }
    void write(distile_context *context, void *to, const void *from, size_t bytes) const {
        size_t offset = 0;
        cl_mem buffer = buffer_of(context, to, offset);
        if (bytes == 0) {
            return;
        }
        // By a copy, because the library itself needs no function that writes.
        cl_int result = CL_SUCCESS;
        cl_mem staged =
            library_->clCreateBuffer(owner(), CL_MEM_COPY_HOST_PTR, bytes, const_cast<void *>(from), &result);
        check_opencl(result, "clCreateBuffer");
        finish();
        result = library_->clEnqueueCopyBuffer(queue_, staged, buffer, 0, offset, bytes, 0, nullptr, nullptr);
        library_->clReleaseMemObject(staged);
        check_opencl(result, "clEnqueueCopyBuffer");
        finish();
    }
    cl_context owner() const {
        cl_context context = nullptr;
        check_opencl(library_->clGetCommandQueueInfo(queue_, CL_QUEUE_CONTEXT, sizeof(cl_context), &context, nullptr),
                     "clGetCommandQueueInfo");
        return context;
    }

private:
    const OpenClLibrary *library_ = nullptr;
    cl_command_queue queue_;
};

/** A context on the first OpenCL device, whose kernels store what they choose in `choice` unless that is null; it must
 * outlive the context. Throws Error. */
inline Context make_opencl_context(distile_choice *choice = nullptr) {
    distile_context_options options{};
    options.trace_user = choice;
    if (choice) {
        options.trace = [](void *user, const distile_choice *made) { *static_cast<distile_choice *>(user) = *made; };
    }
    distile_context *context = nullptr;
    const distile_status status = distile_opencl_context_create(&options, nullptr, &context);
    return take_context(status, context);
}

/** An array in a buffer of its own, with addresses in a context, which must outlive it. */
template<typename T> class OpenClArray {
public:
    OpenClArray(distile_context *context, size_t count) : context_(context), queue_(context), count_(count) {
        cl_int result = CL_SUCCESS;
        cl_mem buffer = queue_->clCreateBuffer(queue_.owner(), CL_MEM_READ_WRITE,
                                               std::max<size_t>(count * sizeof(T), 1), nullptr, &result);
        check_opencl(result, "clCreateBuffer");
        const distile_status status = distile_opencl_map(context, buffer, &address_);
        // The context has a reference.
        queue_->clReleaseMemObject(buffer);
        if (status != DISTILE_OK) {
            throw Error(status, distile_context_message(context));
        }
    }
    OpenClArray(distile_context *context, const std::vector<T> &values) : OpenClArray(context, values.size()) {
        set(values);
    }
    ~OpenClArray() {
        (void)distile_opencl_unmap(context_, address_);
    }
    OpenClArray(const OpenClArray &) = delete;
    OpenClArray &operator=(const OpenClArray &) = delete;

    void set(const std::vector<T> &values) {
        queue_.write(context_, address_, values.data(), values.size() * sizeof(T));
    }
    std::vector<T> get() const {
        std::vector<T> values(count_);
        queue_.read(context_, address_, values.data(), count_ * sizeof(T));
        return values;
    }
    T *data() const {
        return static_cast<T *>(address_);
    }

private:
    distile_context *context_;
    OpenClQueue queue_;
    size_t count_;
    void *address_ = nullptr;
};

}  // namespace distile

#endif
