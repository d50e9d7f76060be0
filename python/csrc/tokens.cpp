#include "python/csrc/channel_vector.h"
#include "python/csrc/operators.h"
#include "python/csrc/session.h"
#include <algorithm>
#include <distile/tokens.h>

namespace distile::python {

namespace {

Tensor normalize(const Tensor &input, const Tensor &mask, const OptionalTensor &gamma, const OptionalTensor &beta,
                 double epsilon, distile_norm norm, const Tensor *out, bool zero) {
    if (const auto parts = parts_of(input); parts.size() > 1) {
        const Tensor output = out ? *out : empty_as(input);
        for (const TokenPart &part : parts) {
            const Tensor target = part.of(output);
            normalize(part.of(input), part.of(mask), gamma, beta, epsilon, norm, &target, zero);
        }
        return output;
    }
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    const Tensor output = out ? *out : empty_as(input);
    const distile_tensor output_tensor = output_view(output, type);
    const ChannelVector factors(gamma, source.view.channels, "the weight"),
        summands(beta, source.view.channels, "the bias");
    if (output.numel() == 0) {
        return output;
    }
    distile_normalize_args args{};
    args.input = &source.view;
    args.output = &output_tensor;
    args.mask = session.mask(mask);
    args.gamma = factors.data;
    args.beta = summands.data;
    args.norm = norm;
    args.epsilon = static_cast<float>(epsilon);
    args.inactive = out && !zero ? DISTILE_KEEP : DISTILE_ZERO;
    check(distile_normalize(session.context(), &args), session.context());
    return output;
}

/** Packed tokens [capacity, C]. */
distile_tensor packed_view(const Tensor &packed, distile_dtype type) {
    if (packed.dim() != 2 || !packed.is_contiguous() || packed.size(0) > INT32_MAX || packed.size(1) > INT32_MAX) {
        fail("packed tokens are a contiguous tensor [capacity, C]");
    }
    if (type_of(packed) != type) {
        fail("packed tokens and unpacked ones must have one type");
    }
    // As many rows of one token as images: a packed tensor may have any extents.
    distile_tensor view = distile_tokens_make(packed.mutable_data_ptr(), 1, static_cast<int32_t>(packed.size(0)),
                                              static_cast<int32_t>(packed.size(1)));
    view.dtype = type;
    return view;
}

Tensor count_tokens(const Tensor &mask, const Tensor *out) {
    Session &session = Session::of(mask);
    const Tensor result = target_of(out, mask, {mask.size(0) + 1}, ScalarType::Int);
    if (mask.numel() == 0) {
        return zeroed(result);
    }
    const int32_t *lengths = nullptr;
    check(distile_mask_cumulative_lengths(session.mask(mask), &lengths), session.context());
    std::copy_n(lengths, mask.size(0) + 1, static_cast<int32_t *>(result.mutable_data_ptr()));
    return result;
}

}  // namespace

Tensor layer_norm(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                  double epsilon) {
    return normalize(input, mask, weight, bias, epsilon, DISTILE_LAYER_NORM, nullptr, true);
}

Tensor layer_norm_out(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                      double epsilon, bool zero, const Tensor &out) {
    return normalize(input, mask, weight, bias, epsilon, DISTILE_LAYER_NORM, &out, zero);
}

Tensor rms_norm(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, double epsilon) {
    return normalize(input, mask, weight, std::nullopt, epsilon, DISTILE_RMS_NORM, nullptr, true);
}

Tensor rms_norm_out(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, double epsilon, bool zero,
                    const Tensor &out) {
    return normalize(input, mask, weight, std::nullopt, epsilon, DISTILE_RMS_NORM, &out, zero);
}

Tensor pack(const Tensor &input, const Tensor &mask) {
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    if (mask.numel() == 0) {
        return empty(input, {0, source.view.channels}, input.scalar_type());
    }
    distile_mask *active = session.mask(mask);
    int64_t count = 0;
    check(distile_mask_active_pixels(active, &count), session.context());
    const Tensor packed = empty(input, {count, source.view.channels}, input.scalar_type());
    if (count > 0) {
        const distile_tensor view = packed_view(packed, type);
        check(distile_pack(session.context(), &source.view, active, &view), session.context());
    }
    return packed;
}

Tensor pack_out(const Tensor &input, const Tensor &mask, const Tensor &out) {
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    const distile_tensor view = packed_view(out, type);
    if (mask.numel() == 0) {
        return out;
    }
    check(distile_pack(session.context(), &source.view, session.mask(mask), &view), session.context());
    return out;
}

Tensor unpack_out(const Tensor &packed, const Tensor &mask, bool zero, const Tensor &out) {
    Session &session = Session::of(out);
    const distile_dtype type = checked_type(out);
    const distile_tensor target = output_view(out, type);
    if (out.numel() == 0) {
        return out;
    }
    if (packed.size(0) == 0) {
        if (zero) {
            Tensor written = out;
            torch::stable::zero_(written);
        }
        return out;
    }
    const Tensor plain = torch::stable::contiguous(packed);
    const distile_tensor source = packed_view(plain, type);
    check(distile_unpack(session.context(), &source, session.mask(mask), &target, zero ? DISTILE_ZERO : DISTILE_KEEP),
          session.context());
    return out;
}

Tensor unpack(const Tensor &packed, const Tensor &mask) {
    if (packed.dim() != 2) {
        fail("packed tokens are a tensor [capacity, C]");
    }
    const Tensor out = mask.dim() == 3
                           ? empty_images(packed, mask.size(0), packed.size(1), mask.size(1), mask.size(2))
                           : empty(packed, {mask.size(0), mask.size(1), packed.size(1)}, packed.scalar_type());
    return unpack_out(packed, mask, true, out);
}

Tensor cumulative_lengths(const Tensor &mask) {
    return count_tokens(mask, nullptr);
}

Tensor cumulative_lengths_out(const Tensor &mask, const Tensor &out) {
    return count_tokens(mask, &out);
}

}  // namespace distile::python
