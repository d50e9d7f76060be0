#include "scratch.h"
#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

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
    for (Header *block : kept_) {
        release(block);
    }
}

void Scratch::release(Header *block) {
    if (block) {
        deallocate_(user_, block);
    }
}

void *Scratch::take(size_t bytes) {
    Header *outgrown = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        // The smallest that is large enough; otherwise the largest makes way, so that what is kept comes to hold
        // what is needed at once, whatever the order in which sizes are asked for.
        Header **fit = nullptr, **largest = nullptr;
        for (Header *&block : kept_) {
            if (block && block->bytes >= bytes) {
                fit = !fit || block->bytes < (*fit)->bytes ? &block : fit;
            } else if (block) {
                largest = !largest || block->bytes > (*largest)->bytes ? &block : largest;
            }
        }
        if (fit) {
            return std::exchange(*fit, nullptr) + 1;
        }
        if (largest) {
            outgrown = std::exchange(*largest, nullptr);
        }
    }
    release(outgrown);
    return make(bytes);
}

void *Scratch::make(size_t bytes) {
    if (bytes > SIZE_MAX - 2 * sizeof(Header)) {
        return nullptr;
    }
    void *memory = allocate_(user_, sizeof(Header) + bytes + sizeof(Header), alignment);
    return memory ? new (memory) Header{bytes} + 1 : nullptr;
}

void Scratch::free(void *memory) {
    release(static_cast<Header *>(memory) - 1);
}

void Scratch::give_back(void *memory) {
    Header *block = static_cast<Header *>(memory) - 1;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto empty = std::find(kept_.begin(), kept_.end(), nullptr);
        if (empty != kept_.end()) {
            *empty = block;
            return;
        }
    }
    release(block);
}

}  // namespace distile
