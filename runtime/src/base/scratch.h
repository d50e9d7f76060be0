/** \file
 * Scratch memory for kernels. Freed blocks are kept, so the steady state allocates nothing.
 */
#ifndef DISTILE_SCRATCH_H
#define DISTILE_SCRATCH_H

#include "host_memory.h"
#include <array>
#include <cstddef>
#include <mutex>

namespace distile {

/** Thread-safe. */
class Scratch {
public:
    explicit Scratch(const HostMemory &memory);
    ~Scratch();
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;

    /** Memory aligned to 64 bytes, readable for another 64 bytes before and after; null on failure. */
    void *take(size_t bytes);
    /** Returns memory from take() for reuse. */
    void give_back(void *memory);
    /** The same for long-lived memory: it comes straight from the allocator and goes back to it. */
    void *make(size_t bytes);
    void free(void *memory);

private:
    /** Precedes the memory that take() returns. */
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
