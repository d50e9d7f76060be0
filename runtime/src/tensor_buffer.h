/** \file
 * Tensors, and buffers as generated code takes them.
 */
#ifndef DISTILE_TENSOR_BUFFER_H
#define DISTILE_TENSOR_BUFFER_H

#include <HalideRuntime.h>
#include <distile/distile.h>

namespace distile {

inline distile_tensor without_border(distile_tensor tensor) {
    tensor.border_top = tensor.border_bottom = tensor.border_left = tensor.border_right = 0;
    return tensor;
}

/** True if two views of the same shape are the same memory. */
inline bool same_view(const distile_tensor &a, const distile_tensor &b) {
    return a.data == b.data && a.stride_w == b.stride_w && a.stride_h == b.stride_h &&
           (a.batch == 1 || a.stride_n == b.stride_n);
}

inline halide_buffer_t make_buffer(void *host, halide_type_t type, int32_t dimensions, halide_dimension_t *dims) {
    halide_buffer_t buffer{};
    buffer.host = static_cast<uint8_t *>(host);
    buffer.type = type;
    buffer.dimensions = dimensions;
    buffer.dim = dims;
    return buffer;
}

/** A tensor as the kernels see it: channel, x, y, n, with the border at negative coordinates. */
struct TensorBuffer {
    explicit TensorBuffer(const distile_tensor &tensor)
        : dims{{0, tensor.channels, 1},
               {-tensor.border_left, tensor.width + tensor.border_left + tensor.border_right,
                static_cast<int32_t>(tensor.stride_w)},
               {-tensor.border_top, tensor.height + tensor.border_top + tensor.border_bottom,
                static_cast<int32_t>(tensor.stride_h)},
               {0, tensor.batch, tensor.batch > 1 ? static_cast<int32_t>(tensor.stride_n) : 0}},
          buffer(make_buffer(static_cast<float *>(tensor.data) - tensor.border_left * tensor.stride_w -
                                 tensor.border_top * tensor.stride_h,
                             halide_type_of<float>(), 4, dims)) {
    }
    TensorBuffer(const TensorBuffer &) = delete;
    TensorBuffer &operator=(const TensorBuffer &) = delete;

    halide_dimension_t dims[4];
    halide_buffer_t buffer;
};

}  // namespace distile

#endif
