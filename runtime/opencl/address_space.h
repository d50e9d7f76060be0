/** \file
 * Addresses for buffers: what the C API calls a pointer to memory of an OpenCL device.
 */
#ifndef DISTILE_OPENCL_ADDRESS_SPACE_H
#define DISTILE_OPENCL_ADDRESS_SPACE_H

#include "runtime/opencl/library.h"
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace distile {

/** A byte of a buffer. */
struct Place {
    cl_mem buffer;
    uint64_t offset, bytes;  ///< `bytes` are those of the whole buffer.
};

/** The addresses of the buffers of a cl_context. Each buffer gets a range of the process's addresses that no memory
 * backs. Contexts that share weights share it, and weights may outlive them. Thread-safe. */
class AddressSpace {
public:
    AddressSpace(const OpenClLibrary &loaded, cl_context used);
    ~AddressSpace();
    AddressSpace(const AddressSpace &) = delete;
    AddressSpace &operator=(const AddressSpace &) = delete;

    /** Takes over a reference to a buffer. Throws std::bad_alloc if there are no addresses, and then releases it. */
    void *map(cl_mem buffer, uint64_t bytes);
    /** Gives the reference back. False if no range starts at the address. */
    bool unmap(const void *address);
    std::optional<Place> find(const void *address) const;

    const OpenClLibrary &library;
    cl_context context;

private:
    struct Range {
        cl_mem buffer;
        uint64_t bytes;
    };
    void release(uintptr_t address, const Range &range) const;

    mutable std::mutex mutex_;
    std::map<uintptr_t, Range> ranges_;
};

/** A buffer of our own and its address. */
class OwnedBuffer {
public:
    OwnedBuffer(std::shared_ptr<AddressSpace> space, void *address) : space_(std::move(space)), address_(address) {
    }
    ~OwnedBuffer() {
        space_->unmap(address_);
    }
    OwnedBuffer(const OwnedBuffer &) = delete;
    OwnedBuffer &operator=(const OwnedBuffer &) = delete;

    void *address() const {
        return address_;
    }

private:
    std::shared_ptr<AddressSpace> space_;
    void *address_;
};

}  // namespace distile

#endif
