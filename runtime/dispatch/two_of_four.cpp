#include "facts/type_names.h"
#include "runtime/base/context.h"
#include "runtime/dispatch/float_filter.h"
#include "runtime/kinds/two_four_layout.h"
#include <distile/pruned.h>

using namespace distile;

namespace {

constexpr const char *pattern_call = "distile_weights_keep_two_of_four";

}  // namespace

extern "C" distile_status distile_weights_keep_two_of_four(distile_context *context,
                                                           const distile_weights_source *source,
                                                           const distile_filter_extents *extents, distile_dtype dtype,
                                                           int32_t *keep) {
    if (!context) {
        return fail_null(pattern_call, "context");
    }
    const distile_status status = check_float_source(context, pattern_call, source, extents);
    if (status != DISTILE_OK) {
        return status;
    }
    if (!keep) {
        return fail_null(context, pattern_call, "pointer to the answer");
    }
    if (raw(dtype) != DISTILE_FLOAT16 && raw(dtype) != DISTILE_BFLOAT16) {
        return fail(context, DISTILE_ERROR_BAD_TYPE,
                    "%s: sparse tensor cores multiply float16 and bfloat16, and not the data type %s", pattern_call,
                    TypeText(raw(dtype)).text);
    }
    return guarded(context, pattern_call, [&] {
        try {
            const FilterExtents shape = {extents->out_channels, extents->in_channels, extents->kernel_h,
                                         extents->kernel_w};
            const FloatFilter filter(*context, *source, shape.elements());
            *keep = has_two_four(shape, {*source, filter.values(), nullptr, dtype}) ? 1 : 0;
            return DISTILE_OK;
        } catch (const SourceError &error) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %s", pattern_call, error.what());
        }
    });
}
