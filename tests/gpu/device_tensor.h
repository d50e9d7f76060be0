/** \file
 * Tensors of the tests on a device.
 */
#ifndef DISTILE_TESTS_DEVICE_TENSOR_H
#define DISTILE_TESTS_DEVICE_TENSOR_H

#include "tests/gpu/gpu_session.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace distile {

/** Sets a mask to bytes of the device. */
inline void set_mask(const Gpu &gpu, const Mask &mask, const DeviceArray<uint8_t> &bytes, int32_t batch, int32_t height,
                     int32_t width) {
    gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
}

/** A tensor on the device, in an allocation of its own. Without a guard that is exactly as large as the tensor, so that
 * compute-sanitizer sees every access beside it. With one the tensor lies between bytes that must stay as they are, and
 * begins at an address that is no better aligned than it must be. */
class DeviceTensor {
public:
    DeviceTensor(TestTensor &host, bool guarded)
        : host_(host), view_(host.view()), bytes_(host.num_own_words() * element_bytes()),
          guard_(guarded ? guard_bytes() : 0), memory_(2 * guard_ + bytes_) {
        const auto first = static_cast<char *>(host.view().data) - reinterpret_cast<char *>(host.own_words());
        view_.data = memory_.data() + guard_ + first;
        upload();
    }

    const distile_tensor &view() const {
        return view_;
    }
    void upload() {
        std::vector<unsigned char> bytes = guarded_bytes();
        std::memcpy(bytes.data() + guard_, host_.own_words(), bytes_);
        memory_.set(bytes);
    }
    /** Brings the tensor back into that of the host, and returns whether its guard is what it was. */
    bool download() {
        std::vector<unsigned char> now = memory_.get();
        std::memcpy(host_.own_words(), now.data() + guard_, bytes_);
        std::vector<unsigned char> due = guarded_bytes();
        std::memcpy(now.data() + guard_, due.data() + guard_, bytes_);
        return now == due;
    }

private:
    size_t element_bytes() const {
        return distile_dtype_size(view_.dtype);
    }
    size_t guard_bytes() const {
        constexpr size_t unit = 16, units = 257;
        return unit * units + (view_.channels * element_bytes() % unit == 0 ? 0 : element_bytes());
    }
    std::vector<unsigned char> guarded_bytes() const {
        std::vector<unsigned char> bytes(2 * guard_ + bytes_);
        for (size_t i = 0; i < bytes.size(); i++) {
            bytes[i] = static_cast<unsigned char>(i * 37 + 11);
        }
        return bytes;
    }

    TestTensor &host_;
    distile_tensor view_;
    size_t bytes_, guard_;
    DeviceArray<unsigned char> memory_;
};

}  // namespace distile

#endif
