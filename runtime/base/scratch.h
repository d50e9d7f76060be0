/** \file
 * Scratch memory for kernels. Freed blocks are kept, so the steady state allocates nothing.
 */
#ifndef DISTILE_SCRATCH_H
#define DISTILE_SCRATCH_H

#include "runtime/base/host_memory.h"
#include <array>
#include <atomic>
#include <cstddef>

namespace distile {

/** Thread-safe. A thread prefers blocks that its core used last, which lie in its caches, and rarely waits for others.
 */
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
    /** Long-lived memory, aligned as that of take(): it comes straight from the allocator and goes back to it. */
    void *make(size_t bytes);
    void free(void *memory);

private:
    struct Slot;

    /** Precedes the memory that take() returns. */
    struct alignas(64) Header {
        size_t bytes;
        Slot *slot; /**< The slot that keeps the block; null if none does. */
    };

    /** Keeps a block. Whoever holds the slot may use and replace the block. */
    struct Slot {
        std::atomic<bool> held{false};
        std::atomic<size_t> bytes{0}; /**< The block's size, 0 without one. Any thread may read it at any time. */
        Header *block = nullptr;

        bool hold();
        void leave();
        void put(Header *kept);
        bool may_fit(size_t wanted) const;
    };
    struct alignas(64) Core {
        std::array<Slot, 4> slots;
    };

    /** Holds a slot with the smallest block that fits; null if there is none. */
    Slot *hold_fitting(Core &own, size_t bytes);
    /** Holds a slot for a new block; null if there is none. */
    Slot *hold_replaceable(Core &own);
    static Slot *hold_empty(Core &core);
    void release(Header *block);

    HostMemory memory_;
    std::array<Core, 64> cores_;
};

}  // namespace distile

#endif
