/** \file
 * What every function of the API checks of a tensor.
 */
#ifndef DISTILE_TENSOR_H
#define DISTILE_TENSOR_H

#include <distile/distile.h>

namespace distile {

/** The most elements that a tensor or a list may span: what 32-bit indices reach. */
constexpr int64_t largest_span = (int64_t{1} << 31) - 1;
/** The most images, rows or columns that anything has. */
constexpr int32_t largest_extent = 65535;

/** Checks a tensor of the caller's, which messages call the `name` of the API function `call`: also that its data is
 * aligned to its elements. A border counts only where it is said to have one. */
distile_status check_tensor(distile_context *context, distile_dtype dtype, const char *call,
                            const distile_tensor *tensor, const char *name, int32_t channels, bool has_border);
/** The same for a tensor of any type and any number of channels, without a border. */
distile_status check_any_tensor(distile_context *context, const char *call, const distile_tensor *tensor,
                                const char *name);

/** True if two views may share memory. Exact for views of one tensor, which have equal strides; otherwise true whenever
 * the address ranges meet. */
bool overlap(const distile_tensor &a, const distile_tensor &b);
/** True if the addresses from the first to the last element of a tensor meet some others. */
bool overlap(const distile_tensor &tensor, const void *begin, uintptr_t bytes);

inline distile_tensor without_border(distile_tensor tensor) {
    tensor.border_top = tensor.border_bottom = tensor.border_left = tensor.border_right = 0;
    return tensor;
}

/** True if two views of the same shape are the same memory. */
inline bool same_view(const distile_tensor &a, const distile_tensor &b) {
    return a.data == b.data && a.stride_w == b.stride_w && a.stride_h == b.stride_h &&
           (a.batch == 1 || a.stride_n == b.stride_n);
}

}  // namespace distile

#endif
