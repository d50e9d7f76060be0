#include "runtime/dispatch/float_filter.h"
#include "facts/type_names.h"
#include "runtime/base/enumerators.h"
#include "runtime/base/int4.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>

namespace distile {

distile_status check_source_alignment(distile_context *context, const char *call,
                                      const distile_weights_source &source) {
    const Type *const type = find_type(raw(source.dtype));
    // Two weights of int4 share a byte.
    const size_t bytes = raw(source.dtype) == 0 ? sizeof(float) : type ? static_cast<size_t>(type->bytes) : 1;
    return check_alignment(context, call,
                           {{source.filter, bytes, "the filter"},
                            {source.bias, sizeof(float), "the bias"},
                            {source.bn_gamma, sizeof(float), "bn_gamma"},
                            {source.bn_beta, sizeof(float), "bn_beta"},
                            {source.bn_mean, sizeof(float), "bn_mean"},
                            {source.bn_variance, sizeof(float), "bn_variance"},
                            {source.slope, sizeof(float), "the slope"}});
}

distile_status check_float_source(distile_context *context, const char *call, const distile_weights_source *source,
                                  const distile_filter_extents *extents) {
    distile_status status = check_pointers(context, call, {{source, "source"}, {extents, "extents"}});
    if (status == DISTILE_OK) {
        status = check_pointers(context, call, {{source->filter, "source's filter"}});
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (raw(source->dtype) != 0 && !find_float_type(raw(source->dtype))) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the filter has the data type %s; the types are %s", call,
                    TypeText(raw(source->dtype)).text, float_type_names().c_str());
    }
    status = check_source_alignment(context, call, *source);
    if (status == DISTILE_OK) {
        status = check_enumerator(context, call, "order", source->order);
    }
    if (status != DISTILE_OK) {
        return status;
    }
    if (source->quantization || !is_reserved_zero(source->reserved)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the source has a %s", call,
                    source->quantization ? "quantization, which is for packing" : "reserved field that is not 0");
    }
    const bool normalised = source->bn_mean && source->bn_variance;
    if (!normalised && (source->bn_mean || source->bn_variance || source->bn_gamma || source->bn_beta)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: batch normalisation needs both mean and variance", call);
    }
    const int32_t least = std::min({extents->out_channels, extents->in_channels, extents->kernel_h, extents->kernel_w});
    const double elements = static_cast<double>(extents->out_channels) * extents->in_channels * extents->kernel_h *
                            static_cast<double>(extents->kernel_w);
    return least >= 1 && elements < 0x1p31
               ? DISTILE_OK
               : fail(context, DISTILE_ERROR_BAD_SHAPE,
                      "%s: the filter has %d x %d x %d x %d elements (output channels, input channels, rows, columns); "
                      "each must be at least 1, and all fewer than 2^31",
                      call, extents->out_channels, extents->in_channels, extents->kernel_h, extents->kernel_w);
}

FloatFilter::FloatFilter(const distile_context &context, const distile_weights_source &source, int64_t elements)
    : values_(static_cast<const float *>(source.filter)), converted_(HostAllocator<float>(context.memory)) {
    if (raw(source.dtype) == 0 || source.dtype == DISTILE_FLOAT32) {
        return;
    }
    converted_.resize(static_cast<size_t>(elements));
    if (source.dtype == DISTILE_INT4) {
        int4_to_float(source.filter, converted_.data(), converted_.size());
    } else {
        find_type(source.dtype)->to_float(source.filter, converted_.data(), converted_.size());
    }
    values_ = converted_.data();
}

}  // namespace distile
