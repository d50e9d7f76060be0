/** \file
 * The planner object. Its buffers live in device memory.
 */
#ifndef DISTILE_PLANNER_OBJECT_H
#define DISTILE_PLANNER_OBJECT_H

#include "runtime/mask/mask.h"
#include <distile/planner.h>

namespace distile {

/** Options with defaults filled in. */
struct PlannerSettings {
    int32_t buffers, clearing;
};

/** The spec's tensor, at the start of a buffer. */
distile_tensor tensor_of(const distile_output_spec &spec, void *buffer);
/** The buffer size in bytes that the spec needs. */
int64_t bytes_of(const distile_output_spec &spec);

}  // namespace distile

/** The base class of each device's planners. */
struct distile_planner {
    explicit distile_planner(distile_context &given) : context(given) {
    }
    virtual ~distile_planner() = default;
    distile_planner(const distile_planner &) = delete;
    distile_planner &operator=(const distile_planner &) = delete;

    /** The next tensor; with `whole` the caller may write all of it, otherwise only the mask's pixels. Takes no buffer
     * if it throws. */
    virtual distile_tensor next(const distile_output_spec &spec, distile_mask &mask, bool whole) = 0;
    virtual int64_t bytes() const = 0;

    distile_context &context;
};

#endif
