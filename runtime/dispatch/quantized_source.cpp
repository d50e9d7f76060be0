#include "runtime/dispatch/quantized_source.h"
#include "runtime/base/types.h"
#include "runtime/tensor/tensor.h"
#include <cmath>
#include <distile/quantize.h>

namespace distile {

namespace {

distile_status check_scale(distile_context *context, const char *call, const distile_scale &scale, const char *name,
                           distile_dtype dtype) {
    if (!is_quantized(dtype)) {
        return scale.scale == 0 && scale.zero_point == 0
                   ? DISTILE_OK
                   : fail(context, DISTILE_ERROR_BAD_VALUE,
                          "%s: the %s is not quantized; its scale and zero point must be 0", call, name);
    }
    return check_quantized_scale(context, call, scale, name, dtype);
}

}  // namespace

distile_status check_quantization(distile_context *context, const char *call, const std::string &name,
                                  const distile_weights_source &source, const QuantizedNumbers &of) {
    if (!source.quantization || !source.quantization->filter_scales) {
        return fail_null(context, call, source.quantization ? "filter's scales" : "source's quantization");
    }
    if (raw(source.dtype) != DISTILE_INT8 && raw(source.dtype) != DISTILE_INT4) {
        return fail(context, DISTILE_ERROR_BAD_TYPE,
                    "%s: %s is quantized and takes a filter of int8 or int4: make one with distile_quantize_filter",
                    call, name.c_str());
    }
    if (source.bn_mean) {
        return fail(context, DISTILE_ERROR_BAD_VALUE,
                    "%s: batch normalisation cannot be folded into a quantized filter: fold it with "
                    "distile_quantize_filter",
                    call);
    }
    const distile_quantization &quantization = *source.quantization;
    if (!is_reserved_zero(quantization.reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: a reserved field of the quantization is not 0", call);
    }
    distile_status status =
        check_alignment(context, call,
                        {{quantization.filter_scales, sizeof(float), "the array of the filter's scales"},
                         {quantization.bias, sizeof(int32_t), "the bias of the quantization"}});
    if (status == DISTILE_OK) {
        status = check_scale(context, call, quantization.input, "input", of.input);
    }
    if (status == DISTILE_OK) {
        status = check_scale(context, call, quantization.output, "output", of.output);
    }
    if (status == DISTILE_OK) {
        status = check_scale(context, call, quantization.residual, "residual", of.residual);
    }
    for (int32_t o = 0; status == DISTILE_OK && o < of.out_channels; o++) {
        const float scale = quantization.filter_scales[o];
        if (!(scale > 0) || std::isinf(scale)) {
            return fail(context, DISTILE_ERROR_BAD_VALUE,
                        "%s: the filter's scale of output channel %d is %g; it must be above 0 and finite", call, o,
                        static_cast<double>(scale));
        }
    }
    return status;
}

}  // namespace distile
