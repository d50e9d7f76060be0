/** \file
 * Host memory from the caller's allocator, and containers that use it.
 */
#ifndef DISTILE_HOST_MEMORY_H
#define DISTILE_HOST_MEMORY_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <distile/distile.h>
#include <new>
#include <vector>

namespace distile {

/** The caller's allocator, or the C library's. Copies share the allocator. */
class HostMemory {
public:
    /** The alignment of all memory: enough for any vector load and for cache lines. */
    static constexpr size_t alignment = 64;

    explicit HostMemory(const distile_context_options &options);

    /** Returns null on failure. */
    void *allocate(size_t bytes) const {
        return allocate_(user_, bytes, alignment);
    }
    void free(void *memory) const {
        deallocate_(user_, memory);
    }
    bool operator==(const HostMemory &other) const {
        return allocate_ == other.allocate_ && deallocate_ == other.deallocate_ && user_ == other.user_;
    }

private:
    distile_allocate allocate_;
    distile_deallocate deallocate_;
    void *user_;
};

/** HostMemory for standard containers. */
template<typename T> class HostAllocator {
public:
    using value_type = T;

    // Implicit, so containers can be constructed from a HostMemory.

    // NOLINTBEGIN(google-explicit-constructor)
    HostAllocator(const HostMemory &memory) : memory_(memory) {
    }
    template<typename Other> HostAllocator(const HostAllocator<Other> &other) : memory_(other.memory()) {
    }
    // NOLINTEND(google-explicit-constructor)

    T *allocate(size_t count) {
        void *memory = count <= SIZE_MAX / sizeof(T) ? memory_.allocate(count * sizeof(T)) : nullptr;
        if (!memory) {
            throw std::bad_alloc();
        }
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, size_t) {
        memory_.free(memory);
    }
    const HostMemory &memory() const {
        return memory_;
    }
    template<typename Other> bool operator==(const HostAllocator<Other> &other) const {
        return memory_ == other.memory();
    }
    template<typename Other> bool operator!=(const HostAllocator<Other> &other) const {
        return !(*this == other);
    }

private:
    HostMemory memory_;
};

template<typename T> using HostVector = std::vector<T, HostAllocator<T>>;

}  // namespace distile

#endif
