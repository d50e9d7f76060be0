#include "runtime/base/context.h"
#include "runtime/base/types.h"
#include "runtime/tensor/tensor.h"
#include <distile/layout.h>

using namespace distile;

namespace {

distile_status convert(const char *call, distile_context *context, const distile_nchw *planes,
                       const distile_tensor *tensor, bool to_planes) {
    if (!context) {
        return fail_null(call, "context");
    }
    if (!planes) {
        return fail_null(context, call, "NCHW tensor");
    }
    distile_status status = check_pointers(context, call, {{planes->data, "data of the NCHW tensor"}});
    if (status != DISTILE_OK) {
        return status;
    }
    status = check_any_tensor(context, call, tensor, "tensor");
    if (status != DISTILE_OK) {
        return status;
    }
    if (raw(planes->dtype) != tensor->dtype) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the NCHW tensor has data type %s, but the tensor has %s",
                    call, TypeText(raw(planes->dtype)).text, TypeText(tensor->dtype).text);
    }
    if (reinterpret_cast<uintptr_t>(planes->data) % static_cast<uintptr_t>(element_bytes(tensor->dtype)) != 0) {
        return fail(context, DISTILE_ERROR_BAD_ALIGNMENT,
                    "%s: the NCHW tensor's data is not aligned to its element size", call);
    }
    const int64_t height = tensor->height, width = tensor->width, channels = tensor->channels;
    // Compare by division, because products of strides may overflow.
    if (planes->stride_h < width || planes->stride_c < width ||
        (planes->stride_c - width) / planes->stride_h < height - 1 ||
        (tensor->batch > 1 && planes->stride_n / planes->stride_c < channels)) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the NCHW tensor has strides n %lld, c %lld, h %lld; each must be at least the extent it spans",
                    call, static_cast<long long>(planes->stride_n), static_cast<long long>(planes->stride_c),
                    static_cast<long long>(planes->stride_h));
    }
    const int64_t images = tensor->batch;
    // No memory is larger, and later arithmetic cannot overflow.
    constexpr int64_t most_elements = int64_t{1} << 60;
    if (planes->stride_c > most_elements / channels || (images > 1 && planes->stride_n > most_elements / images)) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the NCHW tensor has strides n %lld, c %lld; they span more than any memory", call,
                    static_cast<long long>(planes->stride_n), static_cast<long long>(planes->stride_c));
    }
    const int64_t span = (images > 1 ? (images - 1) * planes->stride_n : 0) + (channels - 1) * planes->stride_c +
                         (height - 1) * planes->stride_h + width;
    if (overlap(without_border(*tensor), planes->data, static_cast<uintptr_t>(span * element_bytes(tensor->dtype)))) {
        return fail(context, DISTILE_ERROR_ALIASING, "%s: the tensors overlap", call);
    }
    return guarded(context, call, [&] {
        context->device->convert_layout(*planes, *tensor, to_planes);
        return DISTILE_OK;
    });
}

}  // namespace

extern "C" {

distile_nchw distile_nchw_make(void *data, int32_t channels, int32_t height, int32_t width) {
    // Unsigned, because illegal extents may overflow; the calls reject them.
    const int64_t plane = int64_t{height} * width;
    return {data, DISTILE_FLOAT32, static_cast<int64_t>(static_cast<uint64_t>(plane) * static_cast<uint64_t>(channels)),
            plane, width};
}

distile_status distile_from_nchw(distile_context *context, const distile_nchw *from, const distile_tensor *to) {
    return convert("distile_from_nchw", context, from, to, false);
}

distile_status distile_to_nchw(distile_context *context, const distile_tensor *from, const distile_nchw *to) {
    return convert("distile_to_nchw", context, to, from, true);
}

}  // extern "C"
