#include "tests/support/allocations.h"
#include <cstdlib>
#include <new>

Allocations allocations;

bool Allocations::fails() {
    if (!watched) {
        return false;
    }
    const int64_t index = count++;
    const bool failing = index >= first && index <= last;
    failures += failing ? 1 : 0;
    return failing;
}

void *operator new(size_t bytes, const std::nothrow_t &) noexcept {
    if (allocations.watched && bytes > allocations.largest) {
        allocations.largest = bytes;
    }
    return allocations.fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void *operator new(size_t bytes) {
    void *memory = operator new(bytes, std::nothrow);
    if (!memory) {
        throw std::bad_alloc();
    }
    return memory;
}
void *operator new(size_t bytes, std::align_val_t alignment) {
    // No aligned_alloc, which a program may watch, too.
    void *memory = nullptr;
    if (allocations.fails() || posix_memalign(&memory, static_cast<size_t>(alignment), bytes) != 0) {
        throw std::bad_alloc();
    }
    return memory;
}
void operator delete(void *memory) noexcept {
    std::free(memory);
}
void operator delete(void *memory, size_t) noexcept {
    std::free(memory);
}
void operator delete(void *memory, const std::nothrow_t &) noexcept {
    std::free(memory);
}
void operator delete(void *memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void *memory, size_t, std::align_val_t) noexcept {
    std::free(memory);
}
