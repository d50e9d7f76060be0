#include "python/csrc/dense.h"
#include "python/csrc/operators.h"
#include "python/csrc/session.h"
#include "python/csrc/twins.h"
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

/** Whichever code computes it. */
void check_attention(const Session &session, const AttentionCall &call) {
    const auto &[query, key, value, mask, key_mask, scale, causal, out, zero] = call;
    if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 ||
        !have_sizes(key, {query.size(0), query.size(1), key.size(2), query.size(3)}) ||
        !have_sizes(value, {query.size(0), query.size(1), key.size(2), query.size(3)})) {
        fail("queries, keys and values are [N, heads, T, head_dim] with as many images, heads and channels, and there "
             "are as many values as keys");
    }
    const ScalarType scalar = query.scalar_type();
    if (key.scalar_type() != scalar || value.scalar_type() != scalar || (out && out->scalar_type() != scalar)) {
        fail("queries, keys, values and `out` must have one type");
    }
    const Ints rows{query.size(0), query.size(2)}, keys{key.size(0), key.size(2)};
    session.check_mask(mask, &rows);
    if (key_mask) {
        session.check_mask(*key_mask, &keys);
    }
    if (out && !out->sizes().equals(query.sizes())) {
        fail("`out` has another shape than the queries");
    }
    if (out && !tokens_in_place(*out, DISTILE_FLOAT32)) {
        fail("the output is [N, heads, T, head_dim] with the memory of [N, T, heads, head_dim]");
    }
}

/** Rows without a key are 0, and so are those that are not active. */
Tensor without_keys(const AttentionCall &call) {
    Tensor zeros = empty_tokens(call.query);
    torch::stable::zero_(zeros);
    if (!call.out) {
        return zeros;
    }
    Tensor output = *call.out;
    const Tensor active = torch::stable::to(call.mask, ScalarType::Bool);
    const Tensor rows = torch::stable::unsqueeze(torch::stable::unsqueeze(active, 1), 3);
    return torch::stable::copy_(output, call.zero ? zeros : python::call("aten::where", "self", rows, zeros, output));
}

Tensor run_attention(const AttentionCall &call) {
    const auto &[query, key, value, mask, key_mask, scale, causal, out, zero] = call;
    Session &session = Session::of(query);
    check_attention(session, call);
    if (query.numel() == 0 || key.numel() == 0) {
        return without_keys(call);
    }
    const std::optional<distile_dtype> type = type_of(query);
    const distile_attention attention{static_cast<int32_t>(query.size(1)), static_cast<int32_t>(query.size(3)),
                                      causal ? 1 : 0};
    const distile_polykernel *polykernel =
        type ? polykernel_of(bindings::OperatorKey(session.device(), *type, attention)) : nullptr;
    // The twin takes more tokens: it packs the active ones.
    if (!polykernel || std::max(query.size(2), key.size(2)) > largest_extent) {
        const auto dense = [&] { return dense_attention(call); };
        return without_polykernel("attention", dense, query, key, value, mask, key_mask, scale, causal, zero,
                                  given(out));
    }
    const View queries = view_of_tokens(query, *type), keys = view_of_tokens(key, *type),
               values = view_of_tokens(value, *type);
    const Tensor output = out ? *out : empty_tokens(query);
    const distile_tensor output_tensor = tokens_in_place(output, *type).value();
    distile_run_args args{};
    args.input = &queries.view;
    args.key = &keys.view;
    args.value = &values.view;
    args.output = &output_tensor;
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
    return run_attention({query, key, value, mask, key_mask, scale, causal, nullptr, true});
}

Tensor attention_out(const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &mask,
                     const OptionalTensor &key_mask, double scale, bool causal, bool zero, const Tensor &out) {
    return run_attention({query, key, value, mask, key_mask, scale, causal, &out, zero});
}

}  // namespace distile::python
