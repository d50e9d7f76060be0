/** \file
 * What planners in any memory share: their options, the tensors that they hand out, and what they check.
 */
#ifndef DISTILE_OUTPUT_SPEC_H
#define DISTILE_OUTPUT_SPEC_H

#include "context.h"
#include "mask_checks.h"
#include <distile/planner.h>

namespace distile {

/** Options with the defaults filled in. */
struct PlannerSettings {
    int32_t buffers, clearing;
};

distile_status read_planner_options(distile_context *context, const char *call, const distile_planner_options *options,
                                    PlannerSettings &settings);

/** The tensor of a spec at the beginning of a buffer. */
distile_tensor tensor_of(const distile_output_spec &spec, void *buffer);
/** Bytes of a buffer for it. */
int64_t bytes_of(const distile_output_spec &spec);

/** Bytes of all buffers of a planner. */
template<typename Buffers> int64_t bytes_of_all(const Buffers &buffers) {
    int64_t bytes = 0;
    for (const auto &buffer : buffers) {
        bytes += static_cast<int64_t>(buffer->bytes());
    }
    return bytes;
}

distile_status check_spec(distile_context *context, const char *call, const distile_output_spec &spec,
                          const MaskShape &mask);

/** Checks what is asked of a planner that was made from `owner`. `store` is a number, because a caller's may be no
 * enumerator. */
template<typename Mask> distile_status check_output(distile_context *context, const void *owner, const char *call,
                                                    const distile_output_spec *spec, const Mask *mask, int32_t store,
                                                    const distile_tensor *output) {
    if (!spec || !output) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the spec or the address for the tensor is null", call);
    }
    const distile_status status = check_mask(context, owner, call, mask);
    if (status != DISTILE_OK) {
        return status;
    }
    if (store != DISTILE_STORE_EXACT && store != DISTILE_STORE_TILES) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: there is no way to store %d", call, store);
    }
    return check_spec(context, call, *spec, mask->shape());
}

}  // namespace distile

#endif
