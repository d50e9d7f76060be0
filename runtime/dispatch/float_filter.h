/** \file
 * The filter of a source of weights, in float32.
 */
#ifndef DISTILE_FLOAT_FILTER_H
#define DISTILE_FLOAT_FILTER_H

#include "runtime/base/context.h"
#include <distile/quantize.h>

namespace distile {

/** Checks that the arrays of a source are aligned to their elements. Its type is known. */
distile_status check_source_alignment(distile_context *context, const char *call, const distile_weights_source &source);

/** Checks a source of a floating-point type that no kernel packs, and its extents. */
distile_status check_float_source(distile_context *context, const char *call, const distile_weights_source *source,
                                  const distile_filter_extents *extents);

/** The filter of a source, with its number of elements. It refers to the source if that is of float32. */
class FloatFilter {
public:
    FloatFilter(const distile_context &context, const distile_weights_source &source, int64_t elements);

    const float *values() const {
        return values_;
    }

private:
    const float *values_;
    HostVector<float> converted_;
};

}  // namespace distile

#endif
