#include "bench/harness/typed_tensor.h"
#include "reference/conv2d_reference.h"
#include "reference/error_bounds.h"
#include "runtime/base/types.h"
#include <cstring>

namespace distile::bench {

size_t bytes_of(distile_dtype dtype, size_t elements) {
    return elements * static_cast<size_t>(element_bytes(dtype));
}

std::vector<float> to_floats(distile_dtype dtype, const void *from, size_t elements) {
    std::vector<float> values(elements);
    find_type(dtype)->to_float(from, values.data(), elements);
    return values;
}

std::vector<uint8_t> from_floats(distile_dtype dtype, const std::vector<float> &values) {
    std::vector<uint8_t> bytes(bytes_of(dtype, values.size()));
    find_type(dtype)->from_float(values.data(), bytes.data(), values.size());
    return bytes;
}

uint32_t word_of(distile_dtype dtype, float value) {
    uint32_t word = 0;
    const size_t bytes = bytes_of(dtype, 1);
    for (size_t at = 0; at < sizeof(word); at += bytes) {
        store_as(dtype, value, reinterpret_cast<char *>(&word) + at);
    }
    return word;
}

double tolerance_of(distile_dtype dtype) {
    constexpr double of_sums = 1e-4;
    return of_sums + error_bound(dtype, 1, 0);
}

TypedTensor::TypedTensor(const BorderedTensor &values, distile_dtype dtype)
    : bytes_(bytes_of(dtype, values.memory().size())), memory_((bytes_ + sizeof(float) - 1) / sizeof(float)),
      view_(values.view()) {
    find_type(dtype)->from_float(values.memory().data(), memory_.data(), values.memory().size());
    const size_t border = static_cast<const float *>(view_.data) - values.memory().data();
    view_.data = reinterpret_cast<char *>(memory_.data()) + bytes_of(dtype, border);
    view_.dtype = dtype;
}

}  // namespace distile::bench
