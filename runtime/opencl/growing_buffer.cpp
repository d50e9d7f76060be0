#include "runtime/opencl/growing_buffer.h"
#include "runtime/opencl/opencl_device.h"
#include <algorithm>

namespace distile {

bool GrowingBuffer::reserve(uint64_t bytes) {
    if (bytes <= bytes_) {
        return false;
    }
    const uint64_t room = std::max(bytes, std::min(2 * bytes_, bytes + bytes / 2));
    // The old memory goes first, so that both need not fit.
    buffer_.reset();
    bytes_ = 0;
    buffer_ = device_.make_buffer(room);
    bytes_ = room;
    return true;
}

}  // namespace distile
