#include "scratch.h"
#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace distile {

Scratch::Scratch(const HostMemory &memory) : memory_(memory) {
}

Scratch::~Scratch() {
    for (Header *block : kept_) {
        release(block);
    }
}

void Scratch::release(Header *block) {
    if (block) {
        memory_.free(block);
    }
}

void *Scratch::take(size_t bytes) {
    Header *outgrown = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        // Take the smallest block that fits. If none fits, replace the largest, so that the kept blocks converge to
        // what is needed at once, whatever the order of the requests.
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
    void *memory = memory_.allocate(sizeof(Header) + bytes + sizeof(Header));
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
