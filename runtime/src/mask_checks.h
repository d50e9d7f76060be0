/** \file
 * What functions check of the masks that they take, and those that make masks from masks of their other arguments, for
 * masks in any memory. A `Mask` has host(), owner(), is_set(), shape() and check_shape().
 */
#ifndef DISTILE_MASK_CHECKS_H
#define DISTILE_MASK_CHECKS_H

#include "bit_rows.h"
#include "context.h"
#include <distile/mask_algebra.h>
#include <initializer_list>

namespace distile {

struct MaskShape {
    int32_t batch, height, width;

    bool operator==(const MaskShape &other) const {
        return batch == other.batch && height == other.height && width == other.width;
    }
};

/** Whether bits go from the outputs of a window to its inputs, or the other way. */
enum class Direction { ToInput, ToOutput };

Window window_of(const distile_window &window);

/** Checks a window between masks of one shape and images of height x width. */
distile_status check_window(distile_context *context, const char *call, const distile_window *window,
                            Direction direction, const MaskShape &from, int32_t height, int32_t width);

/** The window of a dilation. */
distile_status make_dilation(distile_context *context, const char *call, int32_t radius_h, int32_t radius_w,
                             distile_window &window);

/** The window of a pooling, and what becomes of a shape. */
distile_status make_pooling(distile_context *context, const char *call, int32_t factor_h, int32_t factor_w,
                            distile_window &window, MaskShape &shape);

/** Checks tensors that are compared, but not the shape of the mask. */
distile_status check_difference(distile_context *context, const char *call, const distile_tensor *a,
                                const distile_tensor *b, float threshold);

/** Checks that a mask which a call reads holds data and belongs to the context or the GPU `owner`. */
template<typename Mask>
distile_status check_mask(distile_context *context, const void *owner, const char *call, const Mask *mask) {
    if (!mask) {
        // Returned as a constant, so that static analysis sees that nobody goes on with this mask.
        fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the mask is null", call);
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (mask->owner() != owner) {
        return fail(context, DISTILE_ERROR_BAD_MASK, "%s: the mask belongs to another context or GPU", call);
    }
    if (!mask->is_set()) {
        return fail(context, DISTILE_ERROR_BAD_MASK, "%s: the mask was never set", call);
    }
    return DISTILE_OK;
}

/** Checks that a mask has the shape of an output. */
distile_status check_same_shape(distile_context *context, const char *call, const MaskShape &mask,
                                const MaskShape &output);

/** Both. */
template<typename Mask> distile_status check_output_mask(distile_context *context, const void *owner, const char *call,
                                                         const Mask *mask, const distile_tensor &output) {
    const distile_status status = check_mask(context, owner, call, mask);
    return status != DISTILE_OK
               ? status
               : check_same_shape(context, call, mask->shape(), {output.batch, output.height, output.width});
}

/** Checks the masks that a call reads and the one that it sets. */
template<typename Mask>
distile_status check_masks(const char *call, std::initializer_list<const Mask *> operands, const Mask *result) {
    if (!result) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    for (const Mask *mask : operands) {
        const distile_status status = check_mask(result->host(), result->owner(), call, mask);
        if (status != DISTILE_OK) {
            return status;
        }
    }
    return DISTILE_OK;
}

/** Checks the arguments of a call that moves bits through a window. */
template<typename Mask> distile_status check_transfer(const char *call, const Mask *result, const Mask *from,
                                                      const distile_window *window, Direction direction, int32_t height,
                                                      int32_t width) {
    distile_status status = check_masks<Mask>(call, {from}, result);
    if (status == DISTILE_OK) {
        status = check_window(result->host(), call, window, direction, from->shape(), height, width);
    }
    return status == DISTILE_OK ? result->check_shape(call, {from->shape().batch, height, width}) : status;
}

/** Checks two masks that are combined pixel by pixel. */
template<typename Mask>
distile_status check_combination(const char *call, const Mask *result, const Mask *a, const Mask *b) {
    const distile_status status = check_masks<Mask>(call, {a, b}, result);
    if (status != DISTILE_OK || a->shape() == b->shape()) {
        return status;
    }
    const MaskShape left = a->shape(), right = b->shape();
    return fail(result->host(), DISTILE_ERROR_BAD_SHAPE, "%s: masks of %d x %d x %d and of %d x %d x %d", call,
                left.batch, left.height, left.width, right.batch, right.height, right.width);
}

}  // namespace distile

#endif
