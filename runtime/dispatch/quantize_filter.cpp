#include "facts/type_names.h"
#include "runtime/base/context.h"
#include "runtime/base/int4.h"
#include "runtime/dispatch/float_filter.h"
#include "runtime/kinds/filter.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <cmath>
#include <distile/quantize.h>
#include <iterator>
#include <limits>

using namespace distile;

namespace {

constexpr const char *quantize_call = "distile_quantize_filter";

/** The range of a type of filters; null for others. */
struct Range {
    distile_dtype dtype;
    float least, most;
};
constexpr Range ranges[] = {{DISTILE_INT8, -127, 127}, {DISTILE_INT4, -8, 7}};

const Range *find_range(distile_dtype dtype) {
    const auto *found = std::find_if(std::begin(ranges), std::end(ranges),
                                     [&](const Range &range) { return range.dtype == raw(dtype); });
    return found == std::end(ranges) ? nullptr : found;
}

distile_status check_source(distile_context *context, const distile_weights_source *source,
                            const distile_filter_extents *extents, distile_dtype dtype, const void *filter,
                            const float *scales, const float *bias) {
    distile_status status = check_float_source(context, quantize_call, source, extents);
    if (status == DISTILE_OK) {
        status = check_pointers(context, quantize_call, {{filter, "filter"}, {scales, "scales"}});
    }
    if (status == DISTILE_OK) {
        status = check_alignment(context, quantize_call,
                                 {{scales, sizeof(float), "the array of scales"}, {bias, sizeof(float), "bias"}});
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (!find_range(dtype)) {
        return fail(context, DISTILE_ERROR_BAD_TYPE,
                    "%s: the quantized filter has the data type %s; the types are int8 and int4", quantize_call,
                    TypeText(raw(dtype)).text);
    }
    return bias || !(source->bn_mean || source->bias)
               ? DISTILE_OK
               : fail_null(context, quantize_call, "bias, which the source has,");
}

}  // namespace

extern "C" distile_status distile_quantize_filter(distile_context *context, const distile_weights_source *source,
                                                  const distile_filter_extents *extents, distile_dtype dtype,
                                                  void *filter, float *scales, float *bias) {
    if (!context) {
        return fail_null(quantize_call, "context");
    }
    const distile_status status = check_source(context, source, extents, dtype, filter, scales, bias);
    return status != DISTILE_OK ? status : guarded(context, quantize_call, [&] {
        try {
            const FilterExtents shape = {extents->out_channels, extents->in_channels, extents->kernel_h,
                                         extents->kernel_w};
            const auto channel_elements = static_cast<size_t>(shape.elements() / shape.out_channels);
            std::vector<float> weights;
            const FloatFilter values(*context, *source, shape.elements());
            std::vector<int8_t> numbers(static_cast<size_t>(shape.elements()));
            const Range range = *find_range(dtype);
            const std::vector<MergedTap> rows = single_taps(shape.kernel_h), columns = single_taps(shape.kernel_w);
            for (int pass = 0; pass < 2; pass++) {
                // The first pass finds what is wrong before anything is written.
                for (int32_t o = 0; o < shape.out_channels; o++) {
                    const float folded = fold_channel(shape, rows, columns, {*source, values.values()}, o, weights);
                    float least = 0, most = 0;  // The range includes 0.
                    for (float weight : weights) {
                        if (!std::isfinite(weight)) {
                            return fail(context, DISTILE_ERROR_BAD_VALUE,
                                        "%s: a weight of output channel %d is not finite", quantize_call, o);
                        }
                        least = std::min(least, weight);
                        most = std::max(most, weight);
                    }
                    if (pass == 0) {
                        continue;
                    }
                    const float scale =
                        least == most
                            ? 1
                            : std::max({least / range.least, most / range.most, std::numeric_limits<float>::min()});
                    scales[o] = scale;
                    if (bias) {
                        bias[o] = folded;
                    }
                    std::transform(weights.begin(), weights.end(), numbers.begin() + o * channel_elements,
                                   [&](float weight) {
                                       return static_cast<int8_t>(
                                           round_to_integer(std::clamp(weight / scale, range.least, range.most)));
                                   });
                }
            }
            if (dtype == DISTILE_INT4) {
                int4_from_bytes(numbers.data(), filter, numbers.size());
            } else {
                std::copy(numbers.begin(), numbers.end(), static_cast<int8_t *>(filter));
            }
            return DISTILE_OK;
        } catch (const SourceError &error) {
            return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %s", quantize_call, error.what());
        }
    });
}
