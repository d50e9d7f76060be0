#include "runtime/base/scratch.h"
#include "runtime/base/library_threads.h"
#include <algorithm>
#include <new>
#include <utility>

namespace distile {

bool Scratch::Slot::hold() {
    return !held.load(std::memory_order_relaxed) && !held.exchange(true, std::memory_order_acquire);
}

void Scratch::Slot::leave() {
    held.store(false, std::memory_order_release);
}

void Scratch::Slot::put(Header *kept) {
    block = kept;
    bytes.store(kept ? kept->bytes : 0, std::memory_order_relaxed);
    if (kept) {
        kept->slot = this;
    }
}

bool Scratch::Slot::may_fit(size_t wanted) const {
    return bytes.load(std::memory_order_relaxed) >= wanted && !held.load(std::memory_order_relaxed);
}

Scratch::Scratch(const HostMemory &memory) : memory_(memory) {
}

Scratch::~Scratch() {
    for (Core &core : cores_) {
        for (Slot &slot : core.slots) {
            release(slot.block);
        }
    }
}

void Scratch::release(Header *block) {
    if (block) {
        memory_.free(block);
    }
}

Scratch::Slot *Scratch::hold_empty(Core &core) {
    for (Slot &slot : core.slots) {
        if (slot.bytes.load(std::memory_order_relaxed) == 0 && slot.hold()) {
            if (!slot.block) {
                return &slot;
            }
            slot.leave();
        }
    }
    return nullptr;
}

Scratch::Slot *Scratch::hold_fitting(Core &own, size_t bytes) {
    const auto smallest_of = [bytes](Core &core, Slot *before) {
        Slot *smallest = before;
        for (Slot &slot : core.slots) {
            const size_t size = slot.bytes.load(std::memory_order_relaxed);
            if (slot.may_fit(bytes) && (!smallest || size < smallest->bytes.load(std::memory_order_relaxed))) {
                smallest = &slot;
            }
        }
        return smallest;
    };
    for (;;) {
        Slot *smallest = smallest_of(own, nullptr);
        const bool is_own = smallest != nullptr;
        for (Core &core : cores_) {
            smallest = is_own ? smallest : smallest_of(core, smallest);
        }
        if (!smallest) {
            return nullptr;
        }
        if (!smallest->hold()) {
            continue;
        }
        if (!smallest->block || smallest->block->bytes < bytes) {
            smallest->leave();
            continue;
        }
        // The block moves to the core that uses it.
        Slot *const empty = is_own ? nullptr : hold_empty(own);
        if (!empty) {
            return smallest;
        }
        empty->put(smallest->block);
        smallest->put(nullptr);
        smallest->leave();
        return empty;
    }
}

Scratch::Slot *Scratch::hold_replaceable(Core &own) {
    // Replace the largest block, so that the kept blocks converge to what is needed at once, whatever the order of the
    // requests.
    Slot *largest = nullptr;
    for (Core &core : cores_) {
        for (Slot &slot : core.slots) {
            const size_t size = slot.bytes.load(std::memory_order_relaxed);
            if (slot.may_fit(1) && (!largest || size > largest->bytes.load(std::memory_order_relaxed))) {
                largest = &slot;
            }
        }
    }
    if (largest && largest->hold()) {
        return largest;
    }
    if (Slot *const empty = hold_empty(own)) {
        return empty;
    }
    for (Core &core : cores_) {
        if (Slot *const empty = hold_empty(core)) {
            return empty;
        }
    }
    return nullptr;
}

void *Scratch::take(size_t bytes) {
    bytes = std::max<size_t>(bytes, 1);
    Core &own = cores_[static_cast<size_t>(std::max(current_core(), 0)) % cores_.size()];
    if (Slot *const slot = hold_fitting(own, bytes)) {
        return slot->block + 1;
    }
    Slot *const slot = hold_replaceable(own);
    if (slot) {
        release(std::exchange(slot->block, nullptr));
        slot->put(nullptr);
    }
    void *const memory = make(bytes);
    if (slot && memory) {
        slot->put(static_cast<Header *>(memory) - 1);
    } else if (slot) {
        slot->leave();
    }
    return memory;
}

void *Scratch::make(size_t bytes) {
    if (bytes > SIZE_MAX - 2 * sizeof(Header)) {
        return nullptr;
    }
    void *memory = memory_.allocate(sizeof(Header) + bytes + sizeof(Header));
    return memory ? new (memory) Header{bytes, nullptr} + 1 : nullptr;
}

void Scratch::free(void *memory) {
    release(static_cast<Header *>(memory) - 1);
}

void Scratch::give_back(void *memory) {
    Header *const block = static_cast<Header *>(memory) - 1;
    if (block->slot) {
        block->slot->leave();
    } else {
        release(block);
    }
}

}  // namespace distile
