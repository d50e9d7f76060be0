#include "autoscheduler/measure/host_tensor.h"
#include "runtime/base/types.h"
#include <cstring>

namespace distile {

namespace {

/** A cache line, which vector<char> does not promise: what is compared gets the same alignment. */
constexpr size_t alignment = 64;

}  // namespace

std::vector<char> store_as(const DataType &type, const std::vector<float> &values) {
    std::vector<char> stored(values.size() * type.bytes);
    find_type(type.dtype)->from_float(values.data(), stored.data(), values.size());
    return stored;
}

std::vector<float> read_as(const DataType &type, const void *stored, size_t count) {
    std::vector<float> values(count);
    find_type(type.dtype)->to_float(stored, values.data(), count);
    return values;
}

void round_to(const DataType &type, std::vector<float> &values) {
    values = read_as(type, store_as(type, values).data(), values.size());
}

distile_tensor make_tensor(const DataType &type, void *data, int batch, const Extents &extents, int channels) {
    distile_tensor tensor = distile_tensor_make(data, batch, extents.height, extents.width, channels);
    tensor.dtype = type.dtype;
    return tensor;
}

HostTensor::HostTensor(const DataType &type, int batch, const Extents &extents, int channels,
                       const distile_border &border)
    : type_(type), memory_(size_t{1} * batch * (extents.height + border.top + border.bottom) *
                               (extents.width + border.left + border.right) * channels * type.bytes +
                           alignment),
      view_(make_tensor(type, nullptr, batch, extents, channels)) {
    view_.stride_h = int64_t{extents.width + border.left + border.right} * channels;
    view_.stride_n = int64_t{extents.height + border.top + border.bottom} * view_.stride_h;
    const size_t beyond = reinterpret_cast<uintptr_t>(memory_.data()) % alignment;
    view_.data = memory_.data() + (beyond == 0 ? 0 : alignment - beyond) +
                 (border.top * view_.stride_h + border.left * view_.stride_w) * type.bytes;
    view_.border_top = border.top;
    view_.border_bottom = border.bottom;
    view_.border_left = border.left;
    view_.border_right = border.right;
}

void HostTensor::set(const std::vector<float> &values) {
    const std::vector<char> stored = store_as(type_, values);
    const char *from = stored.data();
    const int64_t row = int64_t{view_.width} * view_.channels * type_.bytes;
    for (int n = 0; n < view_.batch; n++) {
        for (int y = 0; y < view_.height; y++, from += row) {
            std::memcpy(static_cast<char *>(view_.data) + (n * view_.stride_n + y * view_.stride_h) * type_.bytes, from,
                        row);
        }
    }
}

std::vector<float> HostTensor::get() const {
    return read_as(type_, view_.data, static_cast<size_t>(view_.batch * view_.stride_n));
}

}  // namespace distile
