// Normalization and packing of tokens on an OpenCL device.
#include "runtime/base/types.h"
#include "runtime/gpu/views.h"
#include "runtime/opencl/kernel_names.h"
#include "runtime/opencl/opencl_mask.h"
#include <algorithm>
#include <utility>

namespace distile {

namespace {

/** The most groups or rows of a grid that loop. */
constexpr int64_t most_groups = 4096;

constexpr KernelNames normalize_rows_names("normalize");

}  // namespace

void OpenClDevice::move_packed(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed,
                               bool to_packed, bool zero) const {
    check_view(tensor, "tensor");
    check_view(packed, "packed tensor");
    const TileList list = mask.list({1, 1}, {});
    const PixelUnit unit = unit_of(tensor, &packed);
    const auto units = static_cast<uint32_t>(tensor.channels / unit.lanes);
    const char *name = unit.bytes == 16  ? "distile_move_packed_16"
                       : unit.bytes == 4 ? "distile_move_packed_4"
                       : unit.bytes == 2 ? "distile_move_packed_2"
                                         : "distile_move_packed_1";
    launch(name, items_for(units, static_cast<uint64_t>(std::min(list.capacity, most_groups))), tensor.data,
           cl_long{tensor.stride_n / unit.lanes}, cl_long{tensor.stride_h / unit.lanes},
           cl_long{tensor.stride_w / unit.lanes}, packed.data, cl_long{packed.stride_n / unit.lanes},
           cl_long{packed.stride_h / unit.lanes}, cl_long{packed.stride_w / unit.lanes}, list.xy,
           static_cast<uint32_t>(list.capacity), list.device_count, units, static_cast<uint32_t>(packed.height),
           static_cast<uint32_t>(packed.width),
           static_cast<uint32_t>(int64_t{packed.batch} * packed.height * packed.width), to_packed ? 1 : 0,
           zero ? 1 : 0);
}

void OpenClDevice::pack(const distile_tensor &tensor, distile_mask &mask, const distile_tensor &packed) {
    move_packed(tensor, mask, packed, true, false);
}

void OpenClDevice::unpack(const distile_tensor &packed, distile_mask &mask, const distile_tensor &tensor, bool zero) {
    move_packed(tensor, mask, packed, false, zero);
    if (zero) {
        update_pixels(&mask, tensor, nullptr, true);
    }
}

void OpenClDevice::normalize(const Normalization &normalization) {
    const distile_tensor &input = normalization.input, &output = normalization.output;
    check_view(input, "input");
    check_view(output, "output");
    const auto channels = static_cast<uint32_t>(output.channels);
    const float *gamma = normalization.gamma, *beta = normalization.beta;
    for (const auto &[vector, name] : {std::pair(gamma, "gamma"), {beta, "beta"}}) {
        if (vector) {
            check_range(vector, uint64_t{channels} * sizeof(float), sizeof(float), name);
        }
    }
    const TileList list = normalization.mask.list({1, 1}, {});
    launch(normalize_rows_names.of(output.dtype),
           items_for(static_cast<uint64_t>(std::min(list.capacity, most_groups)) * group_items), input.data,
           cl_long{input.stride_n}, cl_long{input.stride_h}, cl_long{input.stride_w}, output.data,
           cl_long{output.stride_n}, cl_long{output.stride_h}, cl_long{output.stride_w}, list.xy,
           static_cast<uint32_t>(list.capacity), list.device_count, gamma, gamma ? 1 : 0, beta, beta ? 1 : 0, channels,
           normalization.centred ? 1 : 0, normalization.epsilon);
    if (normalization.zero) {
        update_pixels(&normalization.mask, output, nullptr, true);
    }
}

const int32_t *OpenClMask::cumulative_lengths() {
    const auto images = static_cast<uint32_t>(shape.batch);
    lengths_.reserve((uint64_t{images} + 1) * sizeof(int32_t));
    auto *lengths = lengths_.as<uint32_t>();
    if (!has_lengths_) {
        device_.launch("distile_count_images", items_for(uint64_t{images} * group_items), words_.as<uint32_t>(),
                       static_cast<uint32_t>(shape.height * words_per_row_), lengths);
        device_.launch("distile_add_groups", items_for(1), images, lengths, lengths + images);
        has_lengths_ = true;
    }
    return lengths_.as<const int32_t>();
}

}  // namespace distile
