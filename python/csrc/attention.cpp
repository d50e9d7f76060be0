#include "bindings/registry.h"
#include "operators.h"
#include "session.h"
#include <algorithm>

namespace distile::python {

namespace {

/** Tokens [N, heads, T, head_dim] as PyTorch has them, which distile reads in place if the channels of one head follow
 * those of the other: as in a view [N, T, heads, head_dim] with its middle dimensions exchanged. */
std::optional<distile_tensor> tokens_in_place(const Tensor &tensor, distile_dtype type) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    const int64_t channels = sizes[1] * sizes[3];
    const int64_t token = sizes[2] == 1 ? channels : strides[2];
    const bool heads_follow = (sizes[3] == 1 || strides[3] == 1) && (sizes[1] == 1 || strides[1] == sizes[3]);
    if (!heads_follow || token < channels || (sizes[0] > 1 && strides[0] < token * sizes[2]) ||
        std::max({sizes[0], sizes[2], channels}) > INT32_MAX) {
        return std::nullopt;
    }
    distile_tensor view = distile_tokens_make(tensor.mutable_data_ptr(), static_cast<int32_t>(sizes[0]),
                                              static_cast<int32_t>(sizes[2]), static_cast<int32_t>(channels));
    view.dtype = type;
    view.stride_w = token;
    view.stride_h = token * sizes[2];
    view.stride_n = sizes[0] > 1 ? strides[0] : view.stride_h;
    return view;
}

/** [N, heads, T, head_dim] with the memory of [N, T, heads, head_dim], uninitialised. */
Tensor empty_tokens(const Tensor &like) {
    const auto sizes = like.sizes();
    return torch::stable::transpose(empty(like, {sizes[0], sizes[2], sizes[1], sizes[3]}, like.scalar_type()), 1, 2);
}

View view_of_tokens(const Tensor &tensor, distile_dtype type) {
    if (const auto view = tokens_in_place(tensor, type)) {
        return {*view, tensor};
    }
    Tensor copy = empty_tokens(tensor);
    torch::stable::copy_(copy, tensor);
    return {tokens_in_place(copy, type).value(), copy};
}

Tensor run_attention(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask,
                     const OptionalTensor &key_mask, double scale, bool causal, const Tensor *out, bool zero) {
    if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || key.size(1) != query.size(1) ||
        value.size(1) != query.size(1)) {
        fail("queries, keys and values are [N, heads, T, head_dim] with as many heads");
    }
    const ScalarType scalar = query.scalar_type();
    if (key.scalar_type() != scalar || value.scalar_type() != scalar || (out && out->scalar_type() != scalar)) {
        fail("queries, keys, values and `out` must have one type");
    }
    if (out && !(out->sizes() == query.sizes())) {
        fail("`out` has another shape than the queries");
    }
    Session &session = Session::of(query);
    const std::optional<distile_dtype> type = type_of(query);
    const distile_attention attention{static_cast<int32_t>(query.size(1)), static_cast<int32_t>(query.size(3)),
                                      causal ? 1 : 0};
    const distile_polykernel *polykernel =
        type ? bindings::find_polykernel(bindings::OperatorKey(session.device(), *type, attention)) : nullptr;
    if (!polykernel) {
        return call("distile::_dense_attention", "", query, key, value, mask, key_mask, scale, causal, zero,
                    given(out));
    }
    const View queries = view_of_tokens(query, *type), keys = view_of_tokens(key, *type),
               values = view_of_tokens(value, *type);
    const Tensor output = out ? *out : empty_tokens(query);
    const std::optional<distile_tensor> output_tensor = tokens_in_place(output, *type);
    if (!output_tensor) {
        fail("the output is [N, heads, T, head_dim] with the memory of [N, T, heads, head_dim]");
    }
    distile_run_args args{};
    args.input = &queries.view;
    args.key = &keys.view;
    args.value = &values.view;
    args.output = &*output_tensor;
    args.mask = session.mask(mask);
    args.key_mask = key_mask ? session.mask(*key_mask, 1) : nullptr;
    args.scale = static_cast<float>(scale);
    args.inactive = out && !zero ? DISTILE_KEEP : DISTILE_ZERO;
    check(distile_run(session.kernel(*polykernel), &args), session.context());
    return output;
}

}  // namespace

Tensor attention(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask,
                 const OptionalTensor &key_mask, double scale, bool causal) {
    return run_attention(query, key, value, mask, key_mask, scale, causal, nullptr, true);
}

Tensor attention_out(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask,
                     const OptionalTensor &key_mask, double scale, bool causal, bool zero, const Tensor &out) {
    return run_attention(query, key, value, mask, key_mask, scale, causal, &out, zero);
}

}  // namespace distile::python
