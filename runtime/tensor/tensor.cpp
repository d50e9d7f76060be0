#include "runtime/tensor/tensor.h"
#include "facts/activations.h"
#include "facts/type_names.h"
#include "runtime/base/context.h"
#include "runtime/base/types.h"
#include <algorithm>
#include <cmath>

namespace distile {

namespace {

// The header repeats the table for its readers.
#define ROW(number, name, NAME, value, gradient) static_assert(DISTILE_ACTIVATION_##NAME == (number));
DISTILE_ACTIVATIONS(ROW)
#undef ROW

/** The distance from the first to the last element of a tensor, including its border. */
int64_t span_of(const distile_tensor &tensor) {
    return (tensor.batch - 1) * tensor.stride_n +
           (int64_t{tensor.height} - 1 + tensor.border_top + tensor.border_bottom) * tensor.stride_h +
           (int64_t{tensor.width} - 1 + tensor.border_left + tensor.border_right) * tensor.stride_w + tensor.channels -
           1;
}

/** The first element's address and the bytes to the end of the last element, including the border. */
struct MemoryRange {
    explicit MemoryRange(const distile_tensor &tensor)
        : begin(reinterpret_cast<uintptr_t>(tensor.data) -
                static_cast<uintptr_t>(tensor.border_top * tensor.stride_h + tensor.border_left * tensor.stride_w) *
                    static_cast<uintptr_t>(element_bytes(tensor.dtype))),
          bytes((static_cast<uintptr_t>(span_of(tensor)) + 1) * static_cast<uintptr_t>(element_bytes(tensor.dtype))) {
    }
    uintptr_t begin, bytes;
};

/** The extents of two views of one tensor, including their borders, and the strides: images, rows, columns,
 * channels. */
struct Box {
    Box(const distile_tensor &a, const distile_tensor &b)
        : strides{a.batch > 1 ? a.stride_n : b.stride_n, a.stride_h, a.stride_w, 1} {
        const distile_tensor *views[] = {&a, &b};
        for (size_t i = 0; i < 2; i++) {
            const distile_tensor &view = *views[i];
            extents[i][0] = view.batch;
            extents[i][1] = int64_t{view.height} + view.border_top + view.border_bottom;
            extents[i][2] = int64_t{view.width} + view.border_left + view.border_right;
            extents[i][3] = view.channels;
        }
    }
    int64_t strides[4];
    int64_t extents[2][4];
};

/** True if the two boxes share an element when the second starts `distance` elements after the first: some index
 * differences within the extents, times the strides, must add up to the distance. */
bool boxes_meet(const Box &box, int64_t distance, int dimension = 0) {
    if (dimension == 4) {
        return distance == 0;
    }
    const int64_t least = 1 - box.extents[1][dimension], most = box.extents[0][dimension] - 1;
    if (least == 0 && most == 0) {
        return boxes_meet(box, distance, dimension + 1);
    }
    // The inner dimensions span less than two strides, so only a few differences are possible.
    const int64_t stride = box.strides[dimension], nearest = distance / stride;
    for (int64_t i = std::max(least, nearest - 2); i <= std::min(most, nearest + 2); i++) {
        if (boxes_meet(box, distance - i * stride, dimension + 1)) {
            return true;
        }
    }
    return false;
}

}  // namespace

distile_tensor with_border_inside(const distile_tensor &tensor) {
    distile_tensor whole = without_border(tensor);
    const int64_t origin = tensor.border_top * tensor.stride_h + tensor.border_left * tensor.stride_w;
    whole.data = static_cast<char *>(tensor.data) - origin * element_bytes(tensor.dtype);
    whole.height += tensor.border_top + tensor.border_bottom;
    whole.width += tensor.border_left + tensor.border_right;
    return whole;
}

bool overlap(const distile_tensor &a, const distile_tensor &b) {
    const MemoryRange range_a(a), range_b(b);
    const bool a_first = range_a.begin <= range_b.begin;
    const uintptr_t distance = a_first ? range_b.begin - range_a.begin : range_a.begin - range_b.begin;
    if (distance >= (a_first ? range_a : range_b).bytes) {
        return false;
    }
    const auto bytes = static_cast<uintptr_t>(element_bytes(a.dtype));
    if (a.dtype != b.dtype || a.stride_w != b.stride_w || a.stride_h != b.stride_h ||
        (a.batch > 1 && b.batch > 1 && a.stride_n != b.stride_n) || distance % bytes != 0) {
        return true;
    }
    const auto elements = static_cast<int64_t>(distance / bytes);
    return boxes_meet(Box(a, b), a_first ? elements : -elements);
}

bool overlap(const distile_tensor &tensor, const void *begin, uintptr_t bytes) {
    const MemoryRange range(tensor);
    const auto first = reinterpret_cast<uintptr_t>(begin);
    return first < range.begin ? range.begin - first < bytes : first - range.begin < range.bytes;
}

distile_status check_tensor(distile_context *context, distile_dtype dtype, const char *call,
                            const distile_tensor *tensor, const char *name, int32_t channels, bool has_border,
                            int32_t span_bits) {
    if (!tensor) {
        return fail_null(context, call, name);
    }
    if (!tensor->data) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "%s: the data of the %s is null", call, name);
    }
    if (raw(tensor->dtype) != dtype) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the %s has data type %s; it must have %s", call, name,
                    TypeText(raw(tensor->dtype)).text, find_type(dtype)->name);
    }
    if (reinterpret_cast<uintptr_t>(tensor->data) % static_cast<uintptr_t>(element_bytes(dtype)) != 0) {
        return fail(context, DISTILE_ERROR_BAD_ALIGNMENT,
                    "%s: the data of the %s is not aligned to its element size of %d bytes", call, name,
                    static_cast<int>(element_bytes(dtype)));
    }
    if (tensor->batch < 1 || tensor->height < 1 || tensor->width < 1 || tensor->batch > largest_extent ||
        tensor->height > largest_extent || tensor->width > largest_extent) {
        return fail(context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the %s has batch %d, height %d, width %d; each must be 1 to %d", call, name, tensor->batch,
                    tensor->height, tensor->width, largest_extent);
    }
    if (tensor->channels != channels) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the %s has %d channels; it must have %d", call, name,
                    tensor->channels, channels);
    }
    if (has_border) {
        const int32_t borders[] = {tensor->border_top, tensor->border_bottom, tensor->border_left,
                                   tensor->border_right};
        for (int32_t border : borders) {
            if (border < 0 || border > largest_extent) {
                return fail(context, DISTILE_ERROR_BAD_VALUE,
                            "%s: the %s has a border of %d rows or columns; it must be 0 to %d", call, name, border,
                            largest_extent);
            }
        }
    }
    const distile_tensor extent = has_border ? *tensor : without_border(*tensor);
    const int64_t most_elements = (int64_t{1} << span_bits) - 1;
    // The border at the end of a row may double as the start border of the next row.
    const int64_t columns = int64_t{extent.width} + std::max(extent.border_left, extent.border_right);
    const int64_t rows = int64_t{extent.height} + std::max(extent.border_top, extent.border_bottom);
    // Whether the strides span a number of rows and columns.
    const auto spans = [&](int64_t width, int64_t height) {
        return tensor->stride_w >= tensor->channels && tensor->stride_w <= most_elements &&
               tensor->stride_h >= tensor->stride_w * width && tensor->stride_h <= most_elements &&
               (tensor->batch == 1 ||
                (tensor->stride_n >= tensor->stride_h * height && tensor->stride_n <= most_elements));
    };
    if (!spans(columns, rows)) {
        if (spans(extent.width, extent.height)) {
            const bool narrow = tensor->stride_h < tensor->stride_w * columns;
            return fail(
                context, DISTILE_ERROR_BAD_STRIDE,
                "%s: the %s has a border of %d/%d/%d/%d rows and columns (top/bottom/left/right) but no room for "
                "it: stride_%s is %lld and must be at least %lld. Allocate the border with the tensor, or set "
                "it to 0",
                call, name, extent.border_top, extent.border_bottom, extent.border_left, extent.border_right,
                narrow ? "h" : "n", static_cast<long long>(narrow ? tensor->stride_h : tensor->stride_n),
                static_cast<long long>(narrow ? tensor->stride_w * columns : tensor->stride_h * rows));
        }
        return fail(context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: the %s has strides n %lld, h %lld, w %lld; each must be at least the extent it spans "
                    "and below 2^%d elements",
                    call, name, static_cast<long long>(tensor->stride_n), static_cast<long long>(tensor->stride_h),
                    static_cast<long long>(tensor->stride_w), span_bits);
    }
    // Halide's limit counts whole rows and images, including what lies behind their last pixel.
    const int64_t reach =
        std::max({(int64_t{extent.width} + extent.border_left + extent.border_right) * extent.stride_w,
                  (int64_t{extent.height} + extent.border_top + extent.border_bottom) * extent.stride_h,
                  extent.batch > 1 ? extent.batch * extent.stride_n : 0});
    if (reach > most_elements) {
        return fail(context, DISTILE_ERROR_BAD_STRIDE, "%s: the %s spans %lld elements; it must span fewer than 2^%d",
                    call, name, static_cast<long long>(reach), span_bits);
    }
    return DISTILE_OK;
}

distile_status check_any_tensor(distile_context *context, const char *call, const distile_tensor *tensor,
                                const char *name) {
    const distile_tensor none{};
    const distile_tensor &given = tensor ? *tensor : none;
    if (tensor && given.channels < 1) {
        return fail(context, DISTILE_ERROR_BAD_CHANNELS, "%s: the %s has %d channels", call, name, given.channels);
    }
    if (tensor && !find_float_type(raw(given.dtype))) {
        return fail(context, DISTILE_ERROR_BAD_TYPE, "%s: the %s has data type %s; the types are %s", call, name,
                    TypeText(raw(given.dtype)).text, float_type_names().c_str());
    }
    const distile_dtype dtype = tensor ? given.dtype : DISTILE_FLOAT32;
    return check_tensor(context, dtype, call, tensor, name, given.channels, false);
}

distile_status check_quantized_scale(distile_context *context, const char *call, const distile_scale &scale,
                                     const char *name, distile_dtype dtype) {
    const int32_t least = facts_of_type(dtype).least, most = least + 255;
    if (!(scale.scale > 0) || std::isinf(scale.scale)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the scale of the %s is %g; it must be above 0 and finite",
                    call, name, static_cast<double>(scale.scale));
    }
    return scale.zero_point >= least && scale.zero_point <= most
               ? DISTILE_OK
               : fail(context, DISTILE_ERROR_BAD_VALUE, "%s: the zero point of the %s is %d; in %s it is %d to %d",
                      call, name, scale.zero_point, find_type(dtype)->name, least, most);
}

distile_status check_epsilon(distile_context *context, const char *call, float epsilon) {
    return epsilon >= 0 && !std::isinf(epsilon)
               ? DISTILE_OK
               : fail(context, DISTILE_ERROR_BAD_VALUE, "%s: epsilon is %g; it must be finite and at least 0", call,
                      static_cast<double>(epsilon));
}

distile_status check_vector(distile_context *context, const char *call, const float *vector, const char *name,
                            int64_t count, const distile_tensor &output) {
    const distile_status status = check_alignment(context, call, {{vector, sizeof(float), name}});
    if (status != DISTILE_OK) {
        return status;
    }
    return vector && overlap(without_border(output), vector, static_cast<uintptr_t>(count) * sizeof(float))
               ? fail(context, DISTILE_ERROR_ALIASING, "%s: %s overlaps the output", call, name)
               : DISTILE_OK;
}

distile_status check_same_extents(distile_context *context, const char *call, const distile_tensor &input,
                                  const distile_tensor &output) {
    if (output.batch == input.batch && output.height == input.height && output.width == input.width) {
        return DISTILE_OK;
    }
    return fail(context, DISTILE_ERROR_BAD_SHAPE,
                "%s: the output is %d x %d x %d (batch, height, width), but the input is %d x %d x %d", call,
                output.batch, output.height, output.width, input.batch, input.height, input.width);
}

}  // namespace distile

extern "C" {

distile_tensor distile_tensor_make(void *data, int32_t batch, int32_t height, int32_t width, int32_t channels) {
    distile_tensor tensor{};
    tensor.data = data;
    tensor.dtype = DISTILE_FLOAT32;
    tensor.batch = batch;
    tensor.height = height;
    tensor.width = width;
    tensor.channels = channels;
    tensor.stride_w = channels;
    tensor.stride_h = int64_t{width} * channels;
    // Unsigned, because illegal extents may overflow; the calls reject them.
    tensor.stride_n = static_cast<int64_t>(static_cast<uint64_t>(tensor.stride_h) * static_cast<uint64_t>(height));
    return tensor;
}

distile_tensor distile_tokens_make(void *data, int32_t batch, int32_t tokens, int32_t channels) {
    return distile_tensor_make(data, batch, 1, tokens, channels);
}

}  // extern "C"
