#include "allocations.h"
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> count{0};

}  // namespace

int64_t distile::num_allocations() {
    return count;
}

// NOLINTBEGIN(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory)
void *operator new(size_t bytes, const std::nothrow_t &) noexcept {
    count++;
    return std::malloc(bytes > 0 ? bytes : 1);
}
void *operator new(size_t bytes) {
    void *memory = operator new(bytes, std::nothrow);
    if (!memory) {
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
// NOLINTEND(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory)
