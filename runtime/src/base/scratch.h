/** \file
 * Scratch memory for kernels: blocks that are kept when they are freed, so that the steady state allocates
 * nothing.
 */
#ifndef DISTILE_SCRATCH_H
#define DISTILE_SCRATCH_H

#include "host_memory.h"
#include <array>
#include <cstddef>
#include <mutex>

namespace distile {

/** May be used by several threads at once. */
class Scratch {
public:
    explicit Scratch(const HostMemory &memory);
    ~Scratch();
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;

    /** Memory aligned to 64 bytes that may also be read 64 bytes before and after; null if there is none. */
    void *take(size_t bytes);
    /** Returns memory from take(), for whoever takes some next. */
    void give_back(void *memory);
    /** The same for memory that is held for long: it comes from the allocator and goes back to it. */
    void *make(size_t bytes);
    void free(void *memory);

private:
    /** Stands in front of the memory that take() returns. */
    struct alignas(64) Header {
        size_t bytes;
    };

    void release(Header *block);

    HostMemory memory_;
    std::mutex mutex_;
    std::array<Header *, 64> kept_{};
};

}  // namespace distile

#endif
