/** \file
 * The planner object, whose buffers are in the memory of its device.
 */
#ifndef DISTILE_PLANNER_OBJECT_H
#define DISTILE_PLANNER_OBJECT_H

#include "mask.h"
#include <distile/planner.h>

namespace distile {

/** Options with the defaults filled in. */
struct PlannerSettings {
    int32_t buffers, clearing;
};

/** The tensor of a spec at the beginning of a buffer. */
distile_tensor tensor_of(const distile_output_spec &spec, void *buffer);
/** Bytes of a buffer for it. */
int64_t bytes_of(const distile_output_spec &spec);

}  // namespace distile

/** A device derives its own. */
struct distile_planner {
    explicit distile_planner(distile_context &given) : context(given) {
    }
    virtual ~distile_planner() = default;
    distile_planner(const distile_planner &) = delete;
    distile_planner &operator=(const distile_planner &) = delete;

    /** The next tensor; with `whole` the caller may write all of it, else the pixels of the mask. Where it throws, no
     * buffer was taken. */
    virtual distile_tensor next(const distile_output_spec &spec, distile_mask &mask, bool whole) = 0;
    virtual int64_t bytes() const = 0;

    distile_context &context;
};

#endif
