#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/cuda_device.h"
#include <algorithm>

namespace distile {

DeviceMemory::~DeviceMemory() {
    for (CUdeviceptr block : blocks_) {
        device_.driver.cuMemFree(block);
    }
}

void DeviceMemory::reserve(uint64_t bytes) {
    if (bytes <= bytes_) {
        return;
    }
    device_.refuse_capture("the call needs more GPU memory");
    // Grow geometrically, so the kept memory totals no more than the memory in use.
    const uint64_t room = std::max(bytes, std::min(2 * bytes_, bytes + bytes / 2));
    blocks_.reserve(blocks_.size() + 1);
    CUdeviceptr block = 0;
    device_.check(device_.driver.cuMemAlloc(&block, room), "cuMemAlloc");
    blocks_.push_back(block);
    bytes_ = room;
    total_bytes_ += room;
}

void DeviceMemory::reserve_zeros(uint64_t bytes) {
    reserve(bytes);
    if (address() != zeroed_) {
        // Only zeros outside a graph count: nobody knows when a graph runs.
        const bool capturing = device_.is_capturing();
        device_.check(device_.driver.cuMemsetD8Async(address(), 0, bytes_, device_.caller_stream), "cuMemsetD8Async");
        zeroed_ = capturing ? zeroed_ : address();
    }
}

}  // namespace distile
