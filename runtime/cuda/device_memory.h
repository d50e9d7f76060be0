/** \file
 * GPU memory.
 */
#ifndef DISTILE_CUDA_DEVICE_MEMORY_H
#define DISTILE_CUDA_DEVICE_MEMORY_H

#include <cstdint>
#include <cuda.h>
#include <vector>

namespace distile {

class CudaDevice;

/** Growable memory that is safe for captured graphs: it keeps outgrown blocks. */
class DeviceMemory {
public:
    explicit DeviceMemory(CudaDevice &device) : device_(device) {
    }
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;

    /** Ensures a size in bytes; does not keep the contents. Throws Failure. */
    void reserve(uint64_t bytes);
    /** reserve() for memory that begins as zeros, which the device's stream writes. */
    void reserve_zeros(uint64_t bytes);
    template<typename T> T *as() const {
        return reinterpret_cast<T *>(address());
    }
    CUdeviceptr address() const {
        return blocks_.empty() ? 0 : blocks_.back();
    }
    /** The bytes of the current memory, and of all kept blocks. */
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
    CUdeviceptr zeroed_ = 0;  // The block that is known to have begun as zeros.
};

}  // namespace distile

#endif
