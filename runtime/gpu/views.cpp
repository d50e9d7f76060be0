#include "runtime/gpu/views.h"
#include "runtime/base/types.h"

namespace distile {

bool is_in_units(const distile_tensor &tensor, size_t bytes) {
    const int64_t element = element_bytes(tensor.dtype), unit = static_cast<int64_t>(bytes);
    const auto whole = [&](int64_t elements) { return elements * element % unit == 0; };
    return reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0 && whole(tensor.channels) && whole(tensor.stride_w) &&
           whole(tensor.stride_h) && (tensor.batch == 1 || whole(tensor.stride_n));
}

distile_status check_alignment(distile_context &context, const char *call, const distile_tensor &tensor,
                               const char *name) {
    // The vector size of the PolyKernels' code and of our kernels.
    constexpr size_t vector_bytes = 16;
    const int64_t bytes = element_bytes(tensor.dtype);
    if (tensor.channels * bytes % vector_bytes != 0 || is_in_units(tensor, vector_bytes)) {
        return DISTILE_OK;
    }
    return fail(&context, DISTILE_ERROR_BAD_ALIGNMENT,
                "%s: the %s must be aligned to %zu bytes, and its strides n %lld, h %lld, w %lld must be multiples "
                "of %lld elements, because it has %d channels",
                call, name, vector_bytes, static_cast<long long>(tensor.stride_n),
                static_cast<long long>(tensor.stride_h), static_cast<long long>(tensor.stride_w),
                static_cast<long long>(vector_bytes / bytes), tensor.channels);
}

}  // namespace distile
