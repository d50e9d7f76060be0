/** \file
 * Memory of an OpenCL device that grows.
 */
#ifndef DISTILE_OPENCL_GROWING_BUFFER_H
#define DISTILE_OPENCL_GROWING_BUFFER_H

#include "runtime/opencl/address_space.h"
#include <memory>

namespace distile {

class OpenClDevice;

class GrowingBuffer {
public:
    explicit GrowingBuffer(const OpenClDevice &device) : device_(device) {
    }

    /** Ensures a size in bytes; does not keep the contents. Work that was enqueued keeps the memory that it uses.
     * Throws Failure. Returns whether the memory is new. */
    bool reserve(uint64_t bytes);
    template<typename T> T *as() const {
        return static_cast<T *>(buffer_ ? buffer_->address() : nullptr);
    }
    uint64_t bytes() const {
        return bytes_;
    }

private:
    const OpenClDevice &device_;
    std::unique_ptr<OwnedBuffer> buffer_;
    uint64_t bytes_ = 0;
};

}  // namespace distile

#endif
