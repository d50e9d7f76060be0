#include "python/csrc/layers.h"
#include "python/csrc/channel_vector.h"
#include "python/csrc/mask_bytes.h"
#include "python/csrc/operators.h"
#include "python/csrc/session.h"
#include <distile/layers.h>
#include <distile/upsample.h>

namespace distile::python {

namespace {

distile_inactive inactive_of(const Tensor *out, bool zero) {
    return out && !zero ? DISTILE_KEEP : DISTILE_ZERO;
}

/** The parameters of pooling, along both axes. */
struct Pooling {
    const Ints &kernel, &stride, &padding, &dilation;
    distile_pooling kind;
    bool count_padding;

    int32_t number(const Ints &pair, size_t axis, int64_t least) const {
        if (pair.size() != 2 || pair[axis] < least || pair[axis] > INT32_MAX) {
            fail("pooling has a kernel, a stride and a dilation of 2 positive numbers each, and a padding of 2 numbers "
                 "of at least 0");
        }
        return static_cast<int32_t>(pair[axis]);
    }
    distile_window window() const {
        return {number(kernel, 0, 1),  number(kernel, 1, 1),   number(stride, 0, 1),
                number(stride, 1, 1),  number(dilation, 0, 1), number(dilation, 1, 1),
                number(padding, 0, 0), number(padding, 1, 0),  DISTILE_WINDOW_CONV};
    }
};

Tensor run_pool(const Tensor &input, const Tensor &mask, const Pooling &pooling, const Tensor *out, bool zero) {
    if (input.dim() != 4) {
        fail("pooling takes images [N, C, H, W]");
    }
    distile_pool_args args{};
    args.window = pooling.window();
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    const auto extent = [](int64_t size, int32_t pad, int32_t kernel, int32_t dilation, int32_t stride) {
        const int64_t room = size + 2 * int64_t{pad} - int64_t{dilation} * (kernel - 1) - 1;
        if (room < 0) {
            fail("the input is smaller than the pooled windows");
        }
        return room / stride + 1;
    };
    const distile_window &w = args.window;
    const int64_t height = extent(input.size(2), w.pad_top, w.kernel_h, w.dilation_h, w.stride_h);
    const int64_t width = extent(input.size(3), w.pad_left, w.kernel_w, w.dilation_w, w.stride_w);
    const Tensor output = out ? *out : empty_images(input, input.size(0), input.size(1), height, width);
    const distile_tensor target = output_view(output, type);
    if (output.numel() == 0) {
        return output;
    }
    args.input = &source.view;
    args.output = &target;
    args.mask = session.mask(mask);
    args.pooling = pooling.kind;
    args.count_padding = pooling.count_padding ? 1 : 0;
    args.inactive = inactive_of(out, zero);
    check(distile_pool(session.context(), &args), session.context());
    return output;
}

struct Combination {
    distile_combination kind;
    const std::string &other_activation, &activation;
};

Tensor combine(const Tensor &input, const Tensor *other, const Tensor &mask, const Combination &combination,
               const Tensor *out, bool zero) {
    if (const auto parts = parts_of(input); parts.size() > 1) {
        const Tensor output = out ? *out : empty_as(input);
        for (const TokenPart &part : parts) {
            const bool each = other && other->size(1) > 1;  // Not one token for all of an image.
            const Tensor operand = each ? part.of(*other) : other ? *other : input, target = part.of(output);
            combine(part.of(input), other ? &operand : nullptr, part.of(mask), combination, &target, zero);
        }
        return output;
    }
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    View second{};
    if (other) {
        second = view_of(*other, checked_type(*other));
    }
    const Tensor output = out ? *out : empty_as(input);
    const distile_tensor target = output_view(output, checked_type(output));
    if (output.numel() == 0) {
        return output;
    }
    distile_combine_args args{};
    args.input = &source.view;
    args.other = other ? &second.view : nullptr;
    args.output = &target;
    args.mask = session.mask(mask);
    args.combination = combination.kind;
    const bindings::Activation behind = activation_of(combination.activation),
                               of_other = activation_of(combination.other_activation);
    args.other_activation = of_other.function;
    args.other_slope = &of_other.slope;
    args.activation = behind.function;
    args.slope = &behind.slope;
    args.inactive = inactive_of(out, zero);
    check(distile_combine(session.context(), &args), session.context());
    return output;
}

const std::string none = "none";

/** Statistics of group norm: [N, groups], or [groups] for all images. */
struct Statistics {
    Statistics(const OptionalTensor &tensor, int64_t batch, int64_t groups, const char *name) {
        if (!tensor) {
            return;
        }
        shared = tensor->dim() == 1;
        if (tensor->scalar_type() != ScalarType::Float || tensor->size(shared ? 0 : 1) != groups ||
            (!shared && (tensor->dim() != 2 || tensor->size(0) != batch))) {
            fail(std::string(name) + " must be a float32 tensor [N, groups], or [groups] for all images");
        }
        owner = torch::stable::contiguous(*tensor);
        data = static_cast<const float *>(owner->const_data_ptr());
    }
    OptionalTensor owner;
    const float *data = nullptr;
    bool shared = false;
};

struct GroupNorm {
    const OptionalTensor &weight, &bias, &mean, &variance;
    int64_t groups;
    double epsilon;
    const std::string &activation;
};

int32_t checked_groups(const Tensor &input, int64_t groups) {
    const int64_t channels = input.size(input.dim() == 4 ? 1 : input.dim() - 1);
    if (groups < 1 || channels % groups != 0) {
        fail("there are " + std::to_string(groups) + " groups, which must divide the " + std::to_string(channels) +
             " channels");
    }
    return static_cast<int32_t>(groups);
}

Tensor normalize_groups(const Tensor &input, const Tensor &mask, const GroupNorm &norm, const Tensor *out, bool zero) {
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    const int32_t groups = checked_groups(input, norm.groups);
    if (norm.mean.has_value() != norm.variance.has_value()) {
        fail("group norm takes a mean and a variance, or neither");
    }
    const Tensor output = out ? *out : empty_as(input);
    const distile_tensor target = output_view(output, checked_type(output));
    const ChannelVector gamma(norm.weight, source.view.channels, "the weight");
    const ChannelVector beta(norm.bias, source.view.channels, "the bias");
    const Statistics mean(norm.mean, source.view.batch, groups, "the mean");
    const Statistics variance(norm.variance, source.view.batch, groups, "the variance");
    if (mean.shared != variance.shared) {
        fail("the mean and the variance have different shapes");
    }
    if (output.numel() == 0) {
        return output;
    }
    distile_group_norm_args args{};
    args.input = &source.view;
    args.output = &target;
    args.mask = session.mask(mask);
    args.groups = groups;
    args.mean = mean.data;
    args.variance = variance.data;
    args.shared_statistics = mean.shared ? 1 : 0;
    args.gamma = gamma.data;
    args.beta = beta.data;
    args.epsilon = static_cast<float>(norm.epsilon);
    const bindings::Activation behind = activation_of(norm.activation);
    args.activation = behind.function;
    args.slope = &behind.slope;
    args.inactive = inactive_of(out, zero);
    check(distile_group_norm(session.context(), &args), session.context());
    return output;
}

Tensor upsample(const Tensor &input, const Tensor &mask, const Ints &scale, const Tensor *out, bool zero) {
    if (input.dim() != 4 || scale.size() != 2 || scale[0] < 1 || scale[1] < 1 || scale[0] > 65535 || scale[1] > 65535) {
        fail("upsampling takes images [N, C, H, W] and a scale of 2 numbers from 1 to 65535");
    }
    Session &session = Session::of(input);
    const View source = view_of(input, checked_type(input));
    const Tensor output =
        out ? *out
            : empty_images(input, input.size(0), input.size(1), input.size(2) * scale[0], input.size(3) * scale[1]);
    const distile_tensor target = output_view(output, checked_type(output));
    if (output.numel() == 0) {
        return output;
    }
    distile_upsample_args args{};
    args.input = &source.view;
    args.output = &target;
    args.mask = session.mask(mask);
    args.scale_h = static_cast<int32_t>(scale[0]);
    args.scale_w = static_cast<int32_t>(scale[1]);
    args.inactive = inactive_of(out, zero);
    check(distile_upsample_nearest(session.context(), &args), session.context());
    return output;
}

Tensor pool_globally(const Tensor &input, const OptionalTensor &mask, bool maximum, const Tensor *out) {
    if (input.dim() != 4) {
        fail("pooling takes images [N, C, H, W]");
    }
    Session &session = Session::of(input);
    const distile_dtype type = checked_type(input);
    const View source = view_of(input, type);
    const Tensor output = out ? *out : empty_images(input, input.size(0), input.size(1), 1, 1);
    const distile_tensor target = output_view(output, checked_type(output));
    if (input.numel() == 0) {
        return zeroed(output);
    }
    distile_global_pool_args args{};
    args.input = &source.view;
    args.output = &target;
    args.mask = mask ? session.mask(*mask) : nullptr;
    args.pooling = maximum ? DISTILE_MAX_POOLING : DISTILE_AVERAGE_POOLING;
    check(distile_global_pool(session.context(), &args), session.context());
    return output;
}

std::tuple<Tensor, Tensor> measure_groups(const Tensor &input, const OptionalTensor &mask, int64_t groups,
                                          const Tensor *mean_out, const Tensor *variance_out) {
    Session &session = Session::of(input);
    const View source = view_of(input, checked_type(input));
    const Ints sizes{source.view.batch, groups};
    distile_group_statistics_args args{};
    args.groups = checked_groups(input, groups);
    const Tensor mean = target_of(mean_out, input, sizes, ScalarType::Float);
    const Tensor variance = target_of(variance_out, input, sizes, ScalarType::Float);
    if (input.numel() == 0) {
        return {zeroed(mean), zeroed(variance)};
    }
    args.input = &source.view;
    args.mask = mask ? session.mask(*mask) : nullptr;
    args.mean = static_cast<float *>(mean.mutable_data_ptr());
    args.variance = static_cast<float *>(variance.mutable_data_ptr());
    check(distile_group_statistics(session.context(), &args), session.context());
    return {mean, variance};
}

Tensor compare_scores(const Tensor &input, const OptionalTensor &weight, double bias, double threshold,
                      const Tensor *out) {
    Session &session = Session::of(input);
    const View source = view_of(input, checked_type(input));
    const ChannelVector factors(weight, source.view.channels, "the weight");
    const distile_tensor &view = source.view;
    if (input.numel() == 0) {
        const Ints sizes =
            input.dim() == 3 ? Ints{input.size(0), input.size(1)} : Ints{input.size(0), input.size(2), input.size(3)};
        return target_of(out, input, sizes, ScalarType::Bool);
    }
    const NewMask result(session, input, {view.batch, view.height, view.width, input.dim() == 3}, out);
    return result.bytes_after(distile_mask_set_scores(result.get(), &source.view, factors.data,
                                                      static_cast<float>(bias), static_cast<float>(threshold)));
}

}  // namespace

Tensor max_pool2d(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride, const Ints &padding,
                  const Ints &dilation) {
    return run_pool(input, mask, {kernel, stride, padding, dilation, DISTILE_MAX_POOLING, false}, nullptr, true);
}

Tensor max_pool2d_out(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride,
                      const Ints &padding, const Ints &dilation, bool zero, const Tensor &out) {
    return run_pool(input, mask, {kernel, stride, padding, dilation, DISTILE_MAX_POOLING, false}, &out, zero);
}

Tensor avg_pool2d(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride, const Ints &padding,
                  bool count_padding) {
    const Ints dilation{1, 1};
    return run_pool(input, mask, {kernel, stride, padding, dilation, DISTILE_AVERAGE_POOLING, count_padding}, nullptr,
                    true);
}

Tensor avg_pool2d_out(const Tensor &input, const Tensor &mask, const Ints &kernel, const Ints &stride,
                      const Ints &padding, bool count_padding, bool zero, const Tensor &out) {
    const Ints dilation{1, 1};
    return run_pool(input, mask, {kernel, stride, padding, dilation, DISTILE_AVERAGE_POOLING, count_padding}, &out,
                    zero);
}

Tensor global_pool(const Tensor &input, const OptionalTensor &mask, bool maximum) {
    return pool_globally(input, mask, maximum, nullptr);
}

Tensor global_pool_out(const Tensor &input, const OptionalTensor &mask, bool maximum, const Tensor &out) {
    return pool_globally(input, mask, maximum, &out);
}

Tensor add(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &activation) {
    return combine(input, &other, mask, {DISTILE_ADD, none, activation}, nullptr, true);
}

Tensor add_out(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &activation, bool zero,
               const Tensor &out) {
    return combine(input, &other, mask, {DISTILE_ADD, none, activation}, &out, zero);
}

Tensor multiply(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &other_activation,
                const std::string &activation) {
    return combine(input, &other, mask, {DISTILE_MULTIPLY, other_activation, activation}, nullptr, true);
}

Tensor multiply_out(const Tensor &input, const Tensor &other, const Tensor &mask, const std::string &other_activation,
                    const std::string &activation, bool zero, const Tensor &out) {
    return combine(input, &other, mask, {DISTILE_MULTIPLY, other_activation, activation}, &out, zero);
}

Tensor activate(const Tensor &input, const Tensor &mask, const std::string &activation) {
    return combine(input, nullptr, mask, {DISTILE_COPY, none, activation}, nullptr, true);
}

Tensor activate_out(const Tensor &input, const Tensor &mask, const std::string &activation, bool zero,
                    const Tensor &out) {
    return combine(input, nullptr, mask, {DISTILE_COPY, none, activation}, &out, zero);
}

std::tuple<Tensor, Tensor> group_statistics(const Tensor &input, const OptionalTensor &mask, int64_t groups) {
    return measure_groups(input, mask, groups, nullptr, nullptr);
}

std::tuple<Tensor, Tensor> group_statistics_out(const Tensor &input, const OptionalTensor &mask, int64_t groups,
                                                const Tensor &mean, const Tensor &variance) {
    return measure_groups(input, mask, groups, &mean, &variance);
}

Tensor group_norm(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                  const OptionalTensor &mean, const OptionalTensor &variance, int64_t groups, double epsilon,
                  const std::string &activation) {
    return normalize_groups(input, mask, {weight, bias, mean, variance, groups, epsilon, activation}, nullptr, true);
}

Tensor group_norm_out(const Tensor &input, const Tensor &mask, const OptionalTensor &weight, const OptionalTensor &bias,
                      const OptionalTensor &mean, const OptionalTensor &variance, int64_t groups, double epsilon,
                      const std::string &activation, bool zero, const Tensor &out) {
    return normalize_groups(input, mask, {weight, bias, mean, variance, groups, epsilon, activation}, &out, zero);
}

Tensor upsample_nearest(const Tensor &input, const Tensor &mask, const Ints &scale) {
    return upsample(input, mask, scale, nullptr, true);
}

Tensor upsample_nearest_out(const Tensor &input, const Tensor &mask, const Ints &scale, bool zero, const Tensor &out) {
    return upsample(input, mask, scale, &out, zero);
}

Tensor mask_scores(const Tensor &input, const OptionalTensor &weight, double bias, double threshold) {
    return compare_scores(input, weight, bias, threshold, nullptr);
}

Tensor mask_scores_out(const Tensor &input, const OptionalTensor &weight, double bias, double threshold,
                       const Tensor &out) {
    return compare_scores(input, weight, bias, threshold, &out);
}

}  // namespace distile::python
