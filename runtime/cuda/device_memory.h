/** \file
 * Memory of a GPU.
 */
#ifndef DISTILE_CUDA_DEVICE_MEMORY_H
#define DISTILE_CUDA_DEVICE_MEMORY_H

#include <cstdint>
#include <cuda.h>
#include <vector>

namespace distile {

class CudaDevice;

/** Memory that grows and never moves under a captured graph: what it grew out of is kept. */
class DeviceMemory {
public:
    explicit DeviceMemory(CudaDevice &device) : device_(device) {
    }
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;

    /** Makes room for a number of bytes, whatever they held before. Throws Failure. */
    void reserve(uint64_t bytes);
    template<typename T> T *as() const {
        return reinterpret_cast<T *>(address());
    }
    CUdeviceptr address() const {
        return blocks_.empty() ? 0 : blocks_.back();
    }
    /** Bytes of the memory, and of all that is kept. */
    uint64_t bytes() const {
        return bytes_;
    }
    uint64_t total_bytes() const {
        return total_bytes_;
    }

private:
    CudaDevice &device_;
    std::vector<CUdeviceptr> blocks_;
    uint64_t bytes_ = 0, total_bytes_ = 0;
};

}  // namespace distile

#endif
