/** \file
 * The pattern of the zeros in weights, by which calls take PolyKernels.
 */
#ifndef DISTILE_BINDINGS_WEIGHT_PATTERN_H
#define DISTILE_BINDINGS_WEIGHT_PATTERN_H

#include <distile/quantize.h>

namespace distile::bindings {

/** A filter of a floating-point type, contiguous in host memory. */
struct Filter {
    const void *values;
    distile_dtype dtype;
    distile_weights_order order;
    distile_filter_extents extents;
};

/** Whether a filter has the pattern 2:4 for an operator whose input has this type (distile/pruned.h). False for types
 * whose zeros no code skips so. Any thread may call. */
bool keeps_two_of_four(const Filter &filter, distile_dtype input);

}  // namespace distile::bindings

#endif
