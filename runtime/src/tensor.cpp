#include "tensor.h"
#include "context.h"
#include "tensor_buffer.h"
#include <algorithm>

namespace distile {

namespace {

/** Distance between the first and the last element of a tensor, its border included. */
int64_t span_of(const distile_tensor &tensor) {
    return (tensor.batch - 1) * tensor.stride_n +
           (int64_t{tensor.height} - 1 + tensor.border_top + tensor.border_bottom) * tensor.stride_h +
           (int64_t{tensor.width} - 1 + tensor.border_left + tensor.border_right) * tensor.stride_w + tensor.channels -
           1;
}

/** The address of the first element, and the number of bytes to the end of the last one, with the border. */
struct MemoryRange {
    explicit MemoryRange(const distile_tensor &tensor)
        : begin(reinterpret_cast<uintptr_t>(tensor.data) -
                static_cast<uintptr_t>(tensor.border_top * tensor.stride_h + tensor.border_left * tensor.stride_w) *
                    sizeof(float)),
          bytes((static_cast<uintptr_t>(span_of(tensor)) + 1) * sizeof(float)) {
    }
    uintptr_t begin, bytes;
};

}  // namespace

bool overlap(const distile_tensor &a, const distile_tensor &b) {
    const MemoryRange range_a(a), range_b(b);
    const bool a_first = range_a.begin <= range_b.begin;
    const MemoryRange &low = a_first ? range_a : range_b, &high = a_first ? range_b : range_a;
    const uintptr_t distance = high.begin - low.begin;
    if (distance >= low.bytes) {
        return false;
    }
    if (a.stride_w != b.stride_w || a.stride_h != b.stride_h || (a.batch > 1 && a.stride_n != b.stride_n) ||
        a.stride_h % a.stride_w != 0 || (a.batch > 1 && a.stride_n % a.stride_w != 0) ||
        distance % sizeof(float) != 0) {
        return true;
    }
    // Every pixel of either view starts at a multiple of stride_w from its origin: the channels decide.
    const auto channel = static_cast<int64_t>(distance / sizeof(float)) % a.stride_w;
    const int32_t low_channels = a_first ? a.channels : b.channels, high_channels = a_first ? b.channels : a.channels;
    return channel < low_channels || channel + high_channels > a.stride_w;
}

bool overlap(const distile_tensor &tensor, const void *begin, uintptr_t bytes) {
    const MemoryRange range(tensor);
    const auto first = reinterpret_cast<uintptr_t>(begin);
    return first < range.begin ? range.begin - first < bytes : first - range.begin < range.bytes;
}

distile_status check_tensor(distile_context *context, int32_t dtype, const char *call, const distile_tensor *tensor,
                            const char *name, int32_t channels, bool has_border) {
    if (!tensor || !tensor->data) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the %s or its data is null", call, name);
    }
    if (raw(tensor->dtype) != dtype) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the %s has data type %d and must have %d", call, name,
                    raw(tensor->dtype), dtype);
    }
    if (tensor->batch < 1 || tensor->height < 1 || tensor->width < 1 || tensor->batch > largest_extent ||
        tensor->height > largest_extent || tensor->width > largest_extent) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the %s has batch %d, height %d, width %d: each goes from 1 to %d", call, name, tensor->batch,
                    tensor->height, tensor->width, largest_extent);
    }
    if (tensor->channels != channels) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the %s has %d channels and must have %d", call, name,
                    tensor->channels, channels);
    }
    if (has_border) {
        const int32_t borders[] = {tensor->border_top, tensor->border_bottom, tensor->border_left,
                                   tensor->border_right};
        for (int32_t border : borders) {
            if (border < 0 || border > largest_extent) {
                return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the %s has a border of %d pixels", call, name,
                            border);
            }
        }
    }
    const distile_tensor extent = has_border ? *tensor : without_border(*tensor);
    constexpr int64_t largest_stride = largest_span;
    // The border at the end of a row may be the one at the beginning of the next.
    const int64_t columns = int64_t{extent.width} + std::max(extent.border_left, extent.border_right);
    const int64_t rows = int64_t{extent.height} + std::max(extent.border_top, extent.border_bottom);
    if (tensor->stride_w < tensor->channels || tensor->stride_w > largest_stride ||
        tensor->stride_h < tensor->stride_w * columns || tensor->stride_h > largest_stride ||
        (tensor->batch > 1 && (tensor->stride_n < tensor->stride_h * rows || tensor->stride_n > largest_stride))) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the %s has strides n %lld, h %lld, w %lld: each must be at least what it spans, "
                    "and below 2^31 elements",
                    call, name, static_cast<long long>(tensor->stride_n), static_cast<long long>(tensor->stride_h),
                    static_cast<long long>(tensor->stride_w));
    }
    // Halide's limit, which counts whole rows and images: also what lies behind the last pixel of each.
    const int64_t reach =
        std::max({(int64_t{extent.width} + extent.border_left + extent.border_right) * extent.stride_w,
                  (int64_t{extent.height} + extent.border_top + extent.border_bottom) * extent.stride_h,
                  extent.batch > 1 ? extent.batch * extent.stride_n : 0});
    if (reach > largest_span) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the %s spans %lld elements; fewer than 2^31 can be addressed", call, name,
                    static_cast<long long>(reach));
    }
    return DISTILE_OK;
}

}  // namespace distile
