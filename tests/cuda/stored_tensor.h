/** \file
 * Tensors of the tests in the types that operators store, on a device or on the host.
 */
#ifndef DISTILE_TESTS_STORED_TENSOR_H
#define DISTILE_TESTS_STORED_TENSOR_H

#include "gpu.h"
#include "test_tensor.h"
#include "types.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace distile {

/** Values that a type can hold: those nearest to some others. */
inline void round_to(distile_dtype dtype, float *values, size_t count) {
    const Type &type = *find_type(dtype);
    std::vector<unsigned char> stored(count * type.bytes);
    type.from_float(values, stored.data(), count);
    type.to_float(stored.data(), values, count);
}

inline void round_to(distile_dtype dtype, const TestTensor &tensor) {
    const distile_tensor &view = tensor.view();
    for (int32_t n = 0; n < view.batch; n++) {
        for (int32_t y = 0; y < view.height; y++) {
            for (int32_t x = 0; x < view.width; x++) {
                round_to(dtype, &tensor.at(n, y, x, 0), view.channels);
            }
        }
    }
}

/** A tensor of the tests, whose values a type can hold, as the bytes of that type. With a guard it lies between others
 * that must stay as they are, and begins at an address that is no better aligned than it must be. */
class StoredTensor {
public:
    StoredTensor(TestTensor &host, distile_dtype dtype, bool guarded)
        : host_(host), type_(*find_type(dtype)), view_(host.view()), guard_(guarded ? guard_bytes() : 0) {
        view_.dtype = dtype;
    }

    /** The view, whose memory begins at an address. */
    distile_tensor view_at(void *memory) const {
        distile_tensor view = view_;
        const auto first = static_cast<uint32_t *>(host_.view().data) - host_.own_words();
        view.data = static_cast<unsigned char *>(memory) + guard_ + first * type_.bytes;
        return view;
    }
    /** What the memory must hold. */
    const std::vector<unsigned char> &encode() {
        const size_t count = host_.num_own_words();
        stored_.resize(2 * guard_ + count * type_.bytes);
        for (size_t i = 0; i < stored_.size(); i++) {
            stored_[i] = static_cast<unsigned char>(i * 37 + 11);
        }
        std::vector<float> values(count);
        std::memcpy(values.data(), host_.own_words(), count * sizeof(float));
        type_.from_float(values.data(), stored_.data() + guard_, count);
        return stored_;
    }
    /** Brings what changed into the tensor, and returns whether the guard is what it was. */
    bool decode(const std::vector<unsigned char> &now) const {
        for (size_t i = 0; i < host_.num_own_words(); i++) {
            const size_t at = guard_ + i * type_.bytes;
            if (std::memcmp(&now[at], &stored_[at], type_.bytes) != 0) {
                float value = 0;
                type_.to_float(&now[at], &value, 1);
                std::memcpy(host_.own_words() + i, &value, sizeof(value));
            }
        }
        const auto guard = static_cast<std::ptrdiff_t>(guard_);
        return std::equal(now.begin(), now.begin() + guard, stored_.begin()) &&
               std::equal(now.end() - guard, now.end(), stored_.end() - guard);
    }

private:
    size_t guard_bytes() const {
        constexpr size_t unit = 16, units = 257;
        return unit * units + (view_.channels * type_.bytes % unit == 0 ? 0 : type_.bytes);
    }

    TestTensor &host_;
    const Type &type_;
    distile_tensor view_;
    size_t guard_;
    std::vector<unsigned char> stored_;
};

/** One on the device, in an allocation of its own. Without a guard that is exactly as large as the tensor, so that
 * compute-sanitizer sees every access beside it. */
class DeviceTensor {
public:
    DeviceTensor(TestTensor &host, distile_dtype dtype, bool guarded)
        : stored_(host, dtype, guarded), memory_(stored_.encode()), view_(stored_.view_at(memory_.data())) {
    }

    const distile_tensor &view() const {
        return view_;
    }
    void upload() {
        memory_.set(stored_.encode());
    }
    /** Brings the tensor back into that of the host, and returns whether its guard is what it was. */
    bool download() const {
        return stored_.decode(memory_.get());
    }

private:
    StoredTensor stored_;
    DeviceArray<unsigned char> memory_;
    distile_tensor view_;
};

/** One on the host. */
class HostTensor {
public:
    HostTensor(TestTensor &host, distile_dtype dtype)
        : stored_(host, dtype, false), memory_(stored_.encode()), view_(stored_.view_at(memory_.data())) {
    }

    const distile_tensor &view() const {
        return view_;
    }
    void download() const {
        stored_.decode(memory_);
    }

private:
    StoredTensor stored_;
    std::vector<unsigned char> memory_;
    distile_tensor view_;
};

}  // namespace distile

#endif
