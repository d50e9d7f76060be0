/** \file
 * Checks of the masks that functions read and set.
 */
#ifndef DISTILE_MASK_CHECKS_H
#define DISTILE_MASK_CHECKS_H

#include "runtime/mask/mask.h"
#include <initializer_list>

namespace distile {

/** Checks that a mask holds data and belongs to the context. Messages use its `name`. */
distile_status check_mask(distile_context *context, const char *call, const distile_mask *mask,
                          const char *name = "mask");

/** Checks that a mask has the shape of a tensor, of which messages use the `name`. */
distile_status check_same_shape(distile_context *context, const char *call, const MaskShape &mask,
                                const MaskShape &tensor, const char *name = "output");

/** Does both checks for an output. */
distile_status check_output_mask(distile_context *context, const char *call, const distile_mask *mask,
                                 const distile_tensor &output);

/** Checks the masks that a call reads and the one it sets. */
distile_status check_masks(const char *call, std::initializer_list<const distile_mask *> operands,
                           const distile_mask *result);

/** Checks that a shape is legal for a mask. */
distile_status check_mask_shape(const distile_mask &mask, const char *call, const MaskShape &shape);

/** Checks the strides of bytes for a mask of this shape. */
distile_status check_strides(const distile_mask &mask, const char *call, const MaskShape &shape, int64_t stride_n,
                             int64_t stride_h);

/** Sets a mask to a shape by calling set(), and with it its mirror. */
template<typename Set>
distile_status set_mask(distile_mask &mask, const char *call, const MaskShape &to, const Set &set) {
    const MaskBytes &mirror = mask.mirror;
    const distile_status status =
        mirror.bytes ? check_strides(mask, call, to, mirror.stride_n, mirror.stride_h) : DISTILE_OK;
    return status != DISTILE_OK ? status : guarded(&mask.context, call, [&] {
        mask.set_mirrored(to, set);
        return DISTILE_OK;
    });
}

/** Checks the numbers of a window. */
distile_status check_window(distile_context *context, const char *call, const distile_window *window);

}  // namespace distile

#endif
