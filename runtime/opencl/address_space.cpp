#include "runtime/opencl/address_space.h"
#include <new>
#include <sys/mman.h>

namespace distile {

AddressSpace::AddressSpace(const OpenClLibrary &loaded, cl_context used) : library(loaded), context(used) {
    library.clRetainContext(context);
}

AddressSpace::~AddressSpace() {
    for (const auto &[address, range] : ranges_) {
        release(address, range);
    }
    library.clReleaseContext(context);
}

void AddressSpace::release(uintptr_t address, const Range &range) const {
    munmap(reinterpret_cast<void *>(address), range.bytes);
    library.clReleaseMemObject(range.buffer);
}

void *AddressSpace::map(cl_mem buffer, uint64_t bytes) {
    void *address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        library.clReleaseMemObject(buffer);
        throw std::bad_alloc();
    }
    const Range range{buffer, bytes};
    try {
        const std::lock_guard<std::mutex> lock(mutex_);
        ranges_.emplace(reinterpret_cast<uintptr_t>(address), range);
    } catch (...) {
        release(reinterpret_cast<uintptr_t>(address), range);
        throw;
    }
    return address;
}

bool AddressSpace::unmap(const void *address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find(reinterpret_cast<uintptr_t>(address));
    if (found == ranges_.end()) {
        return false;
    }
    release(found->first, found->second);
    ranges_.erase(found);
    return true;
}

std::optional<Place> AddressSpace::find(const void *address) const {
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound(wanted);
    if (after == ranges_.begin()) {
        return std::nullopt;
    }
    const auto &[first, range] = *--after;
    if (wanted - first >= range.bytes) {
        return std::nullopt;
    }
    return Place{range.buffer, wanted - first, range.bytes};
}

}  // namespace distile
