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

/** Checks a tensor of the caller's, which messages call the `name` of the API function `call`. A border counts only
 * where it is said to have one. */
distile_status check_tensor(distile_context *context, int32_t dtype, const char *call, const distile_tensor *tensor,
                            const char *name, int32_t channels, bool has_border);

/** True if two views may share an element. False for disjoint channels of one tensor (equal strides); otherwise true
 * whenever the address ranges meet. */
bool overlap(const distile_tensor &a, const distile_tensor &b);
/** True if the addresses from the first to the last element of a tensor meet some others. */
bool overlap(const distile_tensor &tensor, const void *begin, uintptr_t bytes);

}  // namespace distile

#endif
