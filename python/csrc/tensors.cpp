#include "python/csrc/tensors.h"
#include <algorithm>
#include <array>

namespace distile::python {

namespace {

/** Sizes and strides as [batch, height, width, channels]. */
struct ImageStrides {
    std::array<int64_t, 4> sizes, strides;
};

std::optional<int64_t> rows_that_divide(int64_t tokens) {
    if (tokens <= largest_extent) {
        return 1;
    }
    for (int64_t rows = (tokens + largest_extent - 1) / largest_extent; rows <= largest_extent; rows++) {
        if (tokens % rows == 0) {
            return rows;
        }
    }
    return std::nullopt;
}

ImageStrides layout_of(const Tensor &tensor) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    ImageStrides layout{};
    if (sizes.size() == 4) {
        layout = {{sizes[0], sizes[2], sizes[3], sizes[1]}, {strides[0], strides[2], strides[3], strides[1]}};
    } else if (sizes.size() == 3) {
        const int64_t rows = rows_of_tokens(sizes[1]), columns = sizes[1] / rows;
        layout = {{sizes[0], rows, columns, sizes[2]}, {strides[0], strides[1] * columns, strides[1], strides[2]}};
    } else {
        fail("a tensor has " + std::to_string(sizes.size()) +
             " dimensions; images have 4, [N, C, H, W], and tokens 3, [N, T, C]");
    }
    // The stride of a dimension of size 1 may be anything, and so may that of tokens' rows.
    int64_t least = 1;
    for (const size_t dimension : {3, 2, 1, 0}) {
        if (layout.sizes[dimension] == 1) {
            layout.strides[dimension] = least;
        }
        least = std::max<int64_t>(layout.strides[dimension], 0) * layout.sizes[dimension];
    }
    return layout;
}

bool fits(const ImageStrides &layout) {
    const auto &[sizes, strides] = layout;
    return strides[3] == 1 && strides[2] >= sizes[3] && strides[1] >= strides[2] * sizes[2] &&
           strides[0] >= strides[1] * sizes[1];
}

distile_tensor make_view(const Tensor &tensor, const ImageStrides &layout, distile_dtype type) {
    if (type_of(tensor) != type) {
        fail("the tensors of a call have different types: convert the others, and `out`, to the type of the input");
    }
    for (const int64_t size : layout.sizes) {
        if (size > INT32_MAX) {
            fail("a tensor has an extent of " + std::to_string(size) + ", which is too large");
        }
    }
    distile_tensor view{};
    view.data = tensor.mutable_data_ptr();
    view.dtype = type;
    view.batch = static_cast<int32_t>(layout.sizes[0]);
    view.height = static_cast<int32_t>(layout.sizes[1]);
    view.width = static_cast<int32_t>(layout.sizes[2]);
    view.channels = static_cast<int32_t>(layout.sizes[3]);
    view.stride_n = layout.strides[0];
    view.stride_h = layout.strides[1];
    view.stride_w = layout.strides[2];
    return view;
}

Tensor empty_strided(const Tensor &like, const Ints &sizes, const Ints &strides, int32_t type) {
    int32_t device_type = 0, device = 0;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device));
    AtenTensorHandle handle = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                           strides.data(), type, device_type, device, &handle));
    return Tensor(handle);
}

/** The name of a type that masks and statistics have. */
const char *name_of(ScalarType type) {
    return type == ScalarType::Bool ? "bool" : type == ScalarType::Int ? "int32" : "float32";
}

template<typename Result> Result ask(const char *name, const Tensor &tensor) {
    StableIValue stack[] = {torch::stable::detail::from(tensor)};
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION));
    return torch::stable::detail::to<Result>(stack[0]);
}

}  // namespace

int64_t version_of(const Tensor &tensor) {
    return ask<int64_t>("aten::_version", tensor);
}

bool is_inference(const Tensor &tensor) {
    return ask<bool>("aten::is_inference", tensor);
}

int64_t rows_of_tokens(int64_t tokens) {
    if (const auto rows = rows_that_divide(tokens)) {
        return *rows;
    }
    fail(std::to_string(tokens) + " tokens are more than " + std::to_string(largest_extent) +
         ", and no product of two such numbers: append an inactive token");
}

std::vector<TokenPart> parts_of(const Tensor &tensor) {
    const int64_t tokens = tensor.size(1);
    if (tensor.dim() != 3 || rows_that_divide(tokens)) {
        return {{0, tokens}};
    }
    const int64_t first = tokens / largest_extent * largest_extent;
    return {{0, first}, {first, tokens - first}};
}

OptionalTensor given(const Tensor *tensor) {
    OptionalTensor copy;
    if (tensor) {
        copy = *tensor;
    }
    return copy;
}

std::optional<distile_dtype> type_of(ScalarType type) {
    switch (type) {
    case ScalarType::Float:
        return DISTILE_FLOAT32;
    case ScalarType::Half:
        return DISTILE_FLOAT16;
    case ScalarType::BFloat16:
        return DISTILE_BFLOAT16;
    case ScalarType::Float8_e4m3fn:
        return DISTILE_FLOAT8_E4M3FN;
    case ScalarType::Float8_e5m2:
        return DISTILE_FLOAT8_E5M2;
    default:
        return std::nullopt;
    }
}

std::optional<distile_dtype> type_of(const Tensor &tensor) {
    return type_of(tensor.scalar_type());
}

bool fits(const Tensor &tensor) {
    return fits(layout_of(tensor));
}

View view_of(const Tensor &tensor, distile_dtype type) {
    const ImageStrides layout = layout_of(tensor);
    if (fits(layout)) {
        return {make_view(tensor, layout, type), tensor};
    }
    const Tensor copy =
        torch::stable::contiguous(tensor, tensor.dim() == 4 ? torch::headeronly::MemoryFormat::ChannelsLast
                                                            : torch::headeronly::MemoryFormat::Contiguous);
    return {make_view(copy, layout_of(copy), type), copy};
}

void check_written_in_place(const Tensor &tensor) {
    if (!fits(tensor)) {
        fail("the output's channels are not innermost in memory: make it with memory_format=torch.channels_last, or "
             "tokens contiguous");
    }
}

distile_tensor output_view(const Tensor &tensor, distile_dtype type) {
    check_written_in_place(tensor);
    return make_view(tensor, layout_of(tensor), type);
}

Tensor empty_result(const Tensor &like, const Ints &sizes) {
    return sizes.size() == 4 ? empty_images(like, sizes[0], sizes[1], sizes[2], sizes[3])
                             : empty(like, sizes, like.scalar_type());
}

Tensor empty_as(const Tensor &like) {
    const auto sizes = like.sizes();
    return empty_result(like, {sizes.begin(), sizes.end()});
}

Tensor zeroed(Tensor tensor) {
    return torch::stable::zero_(tensor);
}

bool is_empty(const Ints &sizes) {
    return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

Tensor empty_images(const Tensor &like, int64_t batch, int64_t channels, int64_t height, int64_t width) {
    int32_t type = 0;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &type));
    return empty_strided(like, {batch, channels, height, width},
                         {height * width * channels, 1, width * channels, channels}, type);
}

Tensor empty(const Tensor &like, const Ints &sizes, ScalarType type) {
    return torch::stable::new_empty(like, sizes, type);
}

bool have_sizes(const Tensor &tensor, const Ints &sizes) {
    const auto have = tensor.sizes();
    return std::equal(sizes.begin(), sizes.end(), have.begin(), have.end());
}

std::string text_of(const Ints &sizes) {
    std::string text;
    for (const int64_t size : sizes) {
        text += (text.empty() ? "[" : ", ") + std::to_string(size);
    }
    return text + "]";
}

Tensor target_of(const Tensor *out, const Tensor &like, const Ints &sizes, ScalarType type) {
    if (!out) {
        return empty(like, sizes, type);
    }
    const bool same_device =
        out->is_cpu() == like.is_cpu() && (like.is_cpu() || out->get_device_index() == like.get_device_index());
    if (!have_sizes(*out, sizes) || !same_device || out->scalar_type() != type || !out->is_contiguous()) {
        fail("`out` must be a contiguous tensor " + text_of(sizes) + " of type " + name_of(type) +
             " on the device of the input");
    }
    return *out;
}

}  // namespace distile::python
