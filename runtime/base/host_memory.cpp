#include "runtime/base/host_memory.h"
#include <cstdlib>

namespace distile {

namespace {

// Ownership crosses the API here.

// NOLINTBEGIN(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)
void *default_allocate(void *, size_t bytes, size_t align) {
    return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void default_deallocate(void *, void *memory) {
    std::free(memory);
}
// NOLINTEND(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)

}  // namespace

HostMemory::HostMemory(const distile_context_options &options)
    : allocate_(options.allocate ? options.allocate : default_allocate),
      deallocate_(options.deallocate ? options.deallocate : default_deallocate), user_(options.allocator_user) {
}

}  // namespace distile
