#include "scratch.h"
#include <cstdlib>
#include <new>

namespace distile {

namespace {

constexpr size_t alignment = 64;

// These two are the boundary where ownership is handed over.
// NOLINTBEGIN(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)
void *default_allocate(void *, size_t bytes, size_t align) {
    return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void default_deallocate(void *, void *memory) {
    std::free(memory);
}
// NOLINTEND(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)

}  // namespace

Scratch::Scratch(distile_allocate allocate, distile_deallocate deallocate, void *user)
    : allocate_(allocate ? allocate : default_allocate), deallocate_(deallocate ? deallocate : default_deallocate),
      user_(user) {
}

Scratch::~Scratch() {
    for (std::atomic<Header *> &slot : kept_) {
        release(slot.load(std::memory_order_acquire));
    }
}

void Scratch::release(Header *block) {
    if (block) {
        deallocate_(user_, block);
    }
}

void *Scratch::take(size_t bytes) {
    for (std::atomic<Header *> &slot : kept_) {
        if (!slot.load(std::memory_order_relaxed)) {
            continue;
        }
        Header *block = slot.exchange(nullptr, std::memory_order_acquire);
        if (block && block->bytes >= bytes) {
            return block + 1;
        }
        // Too small: it will not serve the sizes that are in use now.
        release(block);
    }
    if (bytes > SIZE_MAX - 2 * sizeof(Header)) {
        return nullptr;
    }
    void *memory = allocate_(user_, sizeof(Header) + bytes + sizeof(Header), alignment);
    return memory ? new (memory) Header{bytes} + 1 : nullptr;
}

void Scratch::give_back(void *memory) {
    Header *block = static_cast<Header *>(memory) - 1;
    for (std::atomic<Header *> &slot : kept_) {
        Header *empty = nullptr;
        if (slot.compare_exchange_strong(empty, block, std::memory_order_release, std::memory_order_relaxed)) {
            return;
        }
    }
    release(block);
}

}  // namespace distile
