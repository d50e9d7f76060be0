#include "reference/tensors.h"
#include "runtime/kinds/polyphase.h"
#include <algorithm>
#include <memory>

namespace distile {

namespace {

constexpr size_t cache_line = 64;

}  // namespace

AlignedFloats::AlignedFloats(size_t count) : count_(count), memory_(count + cache_line / sizeof(float)) {
    void *begin = memory_.data();
    size_t space = memory_.size() * sizeof(float);
    data_ = static_cast<float *>(std::align(cache_line, count * sizeof(float), begin, space));
}

Border padding_of(const distile_conv2d &conv, distile_operator_kind kind) {
    if (const std::optional<Polyphase> phases = polyphase_of(kind, conv)) {
        return {phases->rows.border_before(), phases->rows.border_after(), phases->columns.border_before(),
                phases->columns.border_after()};
    }
    return {conv.pad_top, conv.pad_bottom, conv.pad_left, conv.pad_right};
}

BorderedTensor::BorderedTensor(int32_t batch, int32_t height, int32_t width, int32_t channels, const Border &border)
    : memory_(static_cast<size_t>(batch) * (height + border.top + border.bottom) *
              (width + border.left + border.right) * channels),
      view_(distile_tensor_make(memory_.data(), batch, height, width, channels)) {
    view_.stride_h = int64_t{width + border.left + border.right} * channels;
    view_.stride_n = int64_t{height + border.top + border.bottom} * view_.stride_h;
    view_.data = memory_.data() + border.top * view_.stride_h + border.left * view_.stride_w;
    view_.border_top = border.top;
    view_.border_bottom = border.bottom;
    view_.border_left = border.left;
    view_.border_right = border.right;
}

void BorderedTensor::set(const float *values) const {
    const int64_t row = int64_t{view_.width} * view_.channels;
    for (int32_t n = 0; n < view_.batch; n++) {
        for (int32_t y = 0; y < view_.height; y++, values += row) {
            std::copy_n(values, row, static_cast<float *>(view_.data) + n * view_.stride_n + y * view_.stride_h);
        }
    }
}

}  // namespace distile
