/** \file
 * The tensor checks that all API functions share.
 */
#ifndef DISTILE_TENSOR_H
#define DISTILE_TENSOR_H

#include <distile/layers.h>
#include <distile/quantize.h>

namespace distile {

/** The most elements that a tensor or a list may span with 32-bit indices. */
constexpr int64_t largest_span = (int64_t{1} << 31) - 1;
/** The largest batch, height or width. */
constexpr int32_t largest_extent = 65535;

/** Checks a caller's tensor, including the alignment of its data to the element size. Messages use its `name` and the
 * API function `call`. Ignores the border unless `has_border`. It spans fewer than 2^span_bits elements. */
distile_status check_tensor(distile_context *context, distile_dtype dtype, const char *call,
                            const distile_tensor *tensor, const char *name, int32_t channels, bool has_border,
                            int32_t span_bits = 31);
/** Checks a caller's tensor of any type in which layers compute and any number of channels, ignoring the border. */
distile_status check_any_tensor(distile_context *context, const char *call, const distile_tensor *tensor,
                                const char *name);

/** Checks the scale and the zero point of a quantized tensor. Messages use its `name`. */
distile_status check_quantized_scale(distile_context *context, const char *call, const distile_scale &scale,
                                     const char *name, distile_dtype dtype);

/** Checks an epsilon that is added to a variance. */
distile_status check_epsilon(distile_context *context, const char *call, float epsilon);

/** Checks a factor, a summand or a statistic that an output must not overlap. Null is allowed. */
distile_status check_vector(distile_context *context, const char *call, const float *vector, const char *name,
                            int64_t count, const distile_tensor &output);

/** Checks that an output has the same batch, height and width as an input. */
distile_status check_same_extents(distile_context *context, const char *call, const distile_tensor &input,
                                  const distile_tensor &output);

/** Checks that each window of a pooling contains a pixel of the input. */
distile_status check_pooled_pixels(distile_context *context, const char *call, const distile_window &window,
                                   const distile_tensor &input, const distile_tensor &output);

/** True if two views may share memory. Exact for views of one tensor, which have equal strides; otherwise compares the
 * address ranges. */
bool overlap(const distile_tensor &a, const distile_tensor &b);
/** True if a tensor's address range overlaps [begin, begin + bytes). */
bool overlap(const distile_tensor &tensor, const void *begin, uintptr_t bytes);

inline distile_tensor without_border(distile_tensor tensor) {
    tensor.border_top = tensor.border_bottom = tensor.border_left = tensor.border_right = 0;
    return tensor;
}

/** The tensor whose images include the borders. */
distile_tensor with_border_inside(const distile_tensor &tensor);

/** True if two views of the same shape are the same memory. */
inline bool same_view(const distile_tensor &a, const distile_tensor &b) {
    return a.data == b.data && a.stride_w == b.stride_w && a.stride_h == b.stride_h &&
           (a.batch == 1 || a.stride_n == b.stride_n);
}

}  // namespace distile

#endif
