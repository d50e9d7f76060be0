#include "python/csrc/mask_bytes.h"
#include "python/csrc/operators.h"
#include <algorithm>
#include <distile/mask_algebra.h>

namespace distile::python {

namespace {

int32_t number(int64_t value) {
    return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(value, INT32_MIN), INT32_MAX));
}

distile_window window_of(const Ints &kernel, const Ints &stride, const Ints &dilation, const Ints &padding,
                         int64_t kind) {
    if (kernel.size() != 2 || stride.size() != 2 || dilation.size() != 2 || padding.size() != 2 || kind < 0 ||
        kind > 2) {
        fail("a window has a kernel, a stride, a dilation and a padding (top and left) of 2 numbers each, and is of "
             "kind 0 (convolution), 1 (transposed) or 2 (after upsampling)");
    }
    return {number(kernel[0]),  number(kernel[1]),   number(stride[0]),
            number(stride[1]),  number(dilation[0]), number(dilation[1]),
            number(padding[0]), number(padding[1]),  static_cast<distile_window_kind>(kind)};
}

void check_image(const Tensor &mask) {
    if (mask.dim() != 3) {
        fail("the mask is [N, H, W]");
    }
}

Tensor dilate(const Tensor &mask, int64_t radius_h, int64_t radius_w, const Tensor *out) {
    check_image(mask);
    if (mask.numel() == 0) {
        return target_of(out, mask, {mask.size(0), mask.size(1), mask.size(2)}, ScalarType::Bool);
    }
    Session &session = Session::of(mask);
    const NewMask result(session, mask, {mask.size(0), mask.size(1), mask.size(2), false}, out);
    return result.bytes_after(
        distile_mask_dilate(result.get(), session.mask(mask), number(radius_h), number(radius_w)));
}

Tensor pool(const Tensor &mask, int64_t factor_h, int64_t factor_w, const Tensor *out) {
    check_image(mask);
    const auto blocks = [](int64_t extent, int64_t factor) { return factor < 1 ? 1 : (extent + factor - 1) / factor; };
    const int64_t height = blocks(mask.size(1), factor_h), width = blocks(mask.size(2), factor_w);
    if (mask.numel() == 0) {
        return target_of(out, mask, {mask.size(0), height, width}, ScalarType::Bool);
    }
    Session &session = Session::of(mask);
    const NewMask result(session, mask, {mask.size(0), height, width, false}, out);
    return result.bytes_after(distile_mask_pool(result.get(), session.mask(mask), number(factor_h), number(factor_w)));
}

/** What the active pixels read, or what reads them. */
Tensor through_window(decltype(&distile_mask_needed_input) algebra, const Tensor &mask, const Ints &size,
                      const distile_window &window, const Tensor *out) {
    check_image(mask);
    if (size.size() != 2) {
        fail("size is 2 numbers: the height and the width of the result");
    }
    if (mask.numel() == 0) {
        return zeroed(target_of(out, mask, {mask.size(0), size[0], size[1]}, ScalarType::Bool));
    }
    Session &session = Session::of(mask);
    const NewMask result(session, mask, {mask.size(0), size[0], size[1], false}, out);
    return result.bytes_after(algebra(result.get(), session.mask(mask), &window, number(size[0]), number(size[1])));
}

Tensor difference(const Tensor &a, const Tensor &b, double threshold, const Tensor *out) {
    const std::optional<distile_dtype> type = type_of(a);
    if (!type || a.scalar_type() != b.scalar_type() || !a.sizes().equals(b.sizes())) {
        fail("the tensors must have the same shape and type: " + float_type_names("or"));
    }
    Session &session = Session::of(a);
    const View first = view_of(a, *type), second = view_of(b, *type);
    const distile_tensor &view = first.view;
    if (a.numel() == 0) {
        const Ints sizes = a.dim() == 3 ? Ints{a.size(0), a.size(1)} : Ints{a.size(0), a.size(2), a.size(3)};
        return zeroed(target_of(out, a, sizes, ScalarType::Bool));
    }
    const NewMask result(session, a, {view.batch, view.height, view.width, a.dim() == 3}, out);
    return result.bytes_after(
        distile_mask_set_difference(result.get(), &first.view, &second.view, static_cast<float>(threshold)));
}

Tensor from_indices(const Tensor &indices, int64_t height, int64_t width, const Tensor *out) {
    if (indices.dim() != 2 || indices.scalar_type() != ScalarType::Int || !indices.is_contiguous()) {
        fail("indices are a contiguous int32 tensor [N, count] of y * width + x");
    }
    if (is_empty({indices.size(0), height, width})) {
        return target_of(out, indices, {indices.size(0), height, width}, ScalarType::Bool);
    }
    Session &session = Session::of(indices);
    const NewMask result(session, indices, {indices.size(0), height, width, false}, out);
    return result.bytes_after(
        distile_mask_set_indices(result.get(), static_cast<const int32_t *>(indices.const_data_ptr()), nullptr,
                                 number(indices.size(0)), number(height), number(width), indices.size(1)));
}

Tensor from_bits(const Tensor &words, int64_t width, const Tensor *out) {
    if (words.dim() != 3 || words.scalar_type() != ScalarType::Int || !words.is_contiguous()) {
        fail("bits are a contiguous int32 tensor [N, H, words of 32 pixels]");
    }
    if (is_empty({words.size(0), words.size(1), width})) {
        return target_of(out, words, {words.size(0), words.size(1), width}, ScalarType::Bool);
    }
    Session &session = Session::of(words);
    const NewMask result(session, words, {words.size(0), words.size(1), width, false}, out);
    return result.bytes_after(distile_mask_set_bits(result.get(), static_cast<const uint32_t *>(words.const_data_ptr()),
                                                    number(words.size(0)), number(words.size(1)), number(width),
                                                    words.size(2)));
}

Tensor to_bits(const Tensor &mask, const Tensor *out) {
    check_image(mask);
    const int64_t rows = mask.size(0) * mask.size(1), used = (mask.size(2) + 31) / 32;
    const Tensor result = target_of(out, mask, {mask.size(0), mask.size(1), used}, ScalarType::Int);
    if (mask.numel() == 0) {
        return result;
    }
    Session &session = Session::of(mask);
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    check(distile_mask_bits(session.mask(mask), &words, &words_per_row), session.context());
    auto *target = static_cast<uint32_t *>(result.mutable_data_ptr());
    for (int64_t row = 0; row < rows; row++) {
        std::copy_n(words + row * words_per_row, used, target + row * used);
    }
    return result;
}

}  // namespace

NewMask::NewMask(Session &session, const Tensor &like, const MaskShape &shape, const Tensor *out)
    : session_(session), bytes_(target_of(out, like,
                                          shape.tokens ? Ints{shape.batch, shape.height * shape.width}
                                                       : Ints{shape.batch, shape.height, shape.width},
                                          ScalarType::Bool)),
      mask_(session.result(shape.batch, shape.height, shape.width)) {
    check(distile_mask_mirror(mask_, static_cast<uint8_t *>(bytes_.mutable_data_ptr()), shape.height * shape.width,
                              shape.width),
          session.context());
}

NewMask::~NewMask() {
    distile_mask_mirror(mask_, nullptr, 0, 0);
}

Tensor NewMask::bytes_after(distile_status status) const {
    check(status, session_.context());
    session_.take_result(bytes_);
    return bytes_;
}

Tensor mask_dilate(const Tensor &mask, int64_t radius_h, int64_t radius_w) {
    return dilate(mask, radius_h, radius_w, nullptr);
}

Tensor mask_dilate_out(const Tensor &mask, int64_t radius_h, int64_t radius_w, const Tensor &out) {
    return dilate(mask, radius_h, radius_w, &out);
}

Tensor mask_pool(const Tensor &mask, int64_t factor_h, int64_t factor_w) {
    return pool(mask, factor_h, factor_w, nullptr);
}

Tensor mask_pool_out(const Tensor &mask, int64_t factor_h, int64_t factor_w, const Tensor &out) {
    return pool(mask, factor_h, factor_w, &out);
}

Tensor mask_needed_input(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                         const Ints &dilation, const Ints &padding, int64_t kind) {
    return through_window(distile_mask_needed_input, mask, size, window_of(kernel, stride, dilation, padding, kind),
                          nullptr);
}

Tensor mask_needed_input_out(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                             const Ints &dilation, const Ints &padding, int64_t kind, const Tensor &out) {
    return through_window(distile_mask_needed_input, mask, size, window_of(kernel, stride, dilation, padding, kind),
                          &out);
}

Tensor mask_affected_output(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                            const Ints &dilation, const Ints &padding, int64_t kind) {
    return through_window(distile_mask_affected_output, mask, size, window_of(kernel, stride, dilation, padding, kind),
                          nullptr);
}

Tensor mask_affected_output_out(const Tensor &mask, const Ints &size, const Ints &kernel, const Ints &stride,
                                const Ints &dilation, const Ints &padding, int64_t kind, const Tensor &out) {
    return through_window(distile_mask_affected_output, mask, size, window_of(kernel, stride, dilation, padding, kind),
                          &out);
}

Tensor mask_difference(const Tensor &a, const Tensor &b, double threshold) {
    return difference(a, b, threshold, nullptr);
}

Tensor mask_difference_out(const Tensor &a, const Tensor &b, double threshold, const Tensor &out) {
    return difference(a, b, threshold, &out);
}

Tensor mask_from_indices(const Tensor &indices, int64_t height, int64_t width) {
    return from_indices(indices, height, width, nullptr);
}

Tensor mask_from_indices_out(const Tensor &indices, int64_t height, int64_t width, const Tensor &out) {
    return from_indices(indices, height, width, &out);
}

Tensor mask_from_bits(const Tensor &words, int64_t width) {
    return from_bits(words, width, nullptr);
}

Tensor mask_from_bits_out(const Tensor &words, int64_t width, const Tensor &out) {
    return from_bits(words, width, &out);
}

Tensor mask_to_bits(const Tensor &mask) {
    return to_bits(mask, nullptr);
}

Tensor mask_to_bits_out(const Tensor &mask, const Tensor &out) {
    return to_bits(mask, &out);
}

}  // namespace distile::python
