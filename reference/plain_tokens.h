/** \file
 * Normalization and packing of tokens as plain loops in double precision.
 */
#ifndef DISTILE_REFERENCE_PLAIN_TOKENS_H
#define DISTILE_REFERENCE_PLAIN_TOKENS_H

#include "reference/conv2d_reference.h"
#include "reference/reference_output.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <distile/tokens.h>
#include <vector>

namespace distile {

/** Calls visit(pixel, n, y, x) for all pixels of images in order. */
template<typename Visit> void for_each_pixel(int32_t batch, int32_t height, int32_t width, const Visit &visit) {
    size_t pixel = 0;
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++) {
                visit(pixel++, n, y, x);
            }
        }
    }
}

template<typename Visit> void for_each_pixel(const distile_tensor &tensor, const Visit &visit) {
    for_each_pixel(tensor.batch, tensor.height, tensor.width, visit);
}

/** The channels of a pixel. */
inline std::vector<float> channels_at(const distile_tensor &tensor, int32_t n, int32_t y, int32_t x) {
    const int64_t first = n * tensor.stride_n + y * tensor.stride_h + x * tensor.stride_w;
    const auto bytes = static_cast<int64_t>(distile_dtype_size(tensor.dtype));
    std::vector<float> values;
    for (int32_t c = 0; c < tensor.channels; c++) {
        values.push_back(load_as(tensor.dtype, static_cast<const char *>(tensor.data) + (first + c) * bytes));
    }
    return values;
}

struct PlainNorm {
    distile_norm norm = DISTILE_LAYER_NORM;
    std::vector<float> gamma, beta; /**< Empty: 1 and 0. */
    float epsilon = 0;
};

/** A pixel's normalized channels, in double precision. */
inline std::vector<double> plain_normalize(const std::vector<float> &values, const PlainNorm &norm) {
    const auto count = static_cast<double>(values.size());
    double mean = 0, squares = 0;
    for (float value : values) {
        mean += value / count;
    }
    mean = norm.norm == DISTILE_LAYER_NORM ? mean : 0;
    for (float value : values) {
        squares += (value - mean) * (value - mean) / count;
    }
    std::vector<double> normalized;
    for (size_t c = 0; c < values.size(); c++) {
        normalized.push_back((values[c] - mean) / std::sqrt(squares + double{norm.epsilon}) *
                                 (norm.gamma.empty() ? 1 : norm.gamma[c]) +
                             (norm.beta.empty() ? 0 : norm.beta[c]));
    }
    return normalized;
}

/** Appends what must become of a pixel. */
inline void append(ReferenceOutput &expected, PixelState state, const std::vector<double> &values,
                   distile_dtype dtype) {
    expected.states.push_back(state);
    for (double value : values) {
        expected.exact.push_back(value);
        expected.values.push_back(round_to(dtype, static_cast<float>(value)));
        expected.largest = std::max(expected.largest, std::abs(value));
    }
}

inline PixelState inactive_state(distile_inactive inactive) {
    return inactive == DISTILE_ZERO ? PixelState::Zeroed : PixelState::Kept;
}

inline ReferenceOutput plain_normalize(const distile_tensor &input, const std::vector<uint8_t> &mask,
                                       const PlainNorm &norm, distile_inactive inactive) {
    ReferenceOutput expected;
    const std::vector<double> zeros(input.channels, 0);
    for_each_pixel(input, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        const bool active = mask[pixel] != 0;
        append(expected, active ? PixelState::Computed : inactive_state(inactive),
               active ? plain_normalize(channels_at(input, n, y, x), norm) : zeros, input.dtype);
    });
    return expected;
}

/** The active pixels of `tensor` at the first pixels of a packed tensor with `capacity` pixels. */
inline ReferenceOutput plain_pack(const distile_tensor &tensor, const std::vector<uint8_t> &mask, size_t capacity) {
    ReferenceOutput expected;
    for_each_pixel(tensor, [&](size_t pixel, int32_t n, int32_t y, int32_t x) {
        if (mask[pixel] != 0 && expected.states.size() < capacity) {
            const std::vector<float> values = channels_at(tensor, n, y, x);
            append(expected, PixelState::Computed, {values.begin(), values.end()}, tensor.dtype);
        }
    });
    while (expected.states.size() < capacity) {
        append(expected, PixelState::Kept, std::vector<double>(tensor.channels, 0), tensor.dtype);
    }
    return expected;
}

/** The first pixels of a packed tensor at the active pixels of a tensor, as far as they go. */
inline ReferenceOutput plain_unpack(const distile_tensor &packed, const std::vector<uint8_t> &mask,
                                    distile_inactive inactive) {
    std::vector<std::vector<float>> pixels;
    for_each_pixel(packed,
                   [&](size_t, int32_t n, int32_t y, int32_t x) { pixels.push_back(channels_at(packed, n, y, x)); });
    ReferenceOutput expected;
    const std::vector<double> zeros(packed.channels, 0);
    size_t next = 0;
    for (uint8_t byte : mask) {
        const bool active = byte != 0 && next < pixels.size();
        const std::vector<float> &values = pixels[active ? next : 0];
        append(expected, active ? PixelState::Computed : inactive_state(inactive),
               active ? std::vector<double>(values.begin(), values.end()) : zeros, packed.dtype);
        next += active ? 1 : 0;
    }
    return expected;
}

inline std::vector<int32_t> plain_lengths(const std::vector<uint8_t> &mask, int32_t batch) {
    std::vector<int32_t> lengths = {0};
    const size_t pixels = mask.size() / static_cast<size_t>(batch);
    for (size_t i = 0; i < mask.size(); i++) {
        if (i % pixels == 0) {
            lengths.push_back(lengths.back());
        }
        lengths.back() += mask[i] != 0 ? 1 : 0;
    }
    return lengths;
}

}  // namespace distile

#endif
