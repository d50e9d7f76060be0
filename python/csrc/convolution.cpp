#include "python/csrc/dense.h"
#include "python/csrc/operators.h"
#include "python/csrc/run.h"
#include "python/csrc/twins.h"
#include "python/csrc/weights.h"

namespace distile::python {

namespace {

/** The PolyKernel of a convolution of these tensors, which the caller described; null if there is none. */
const distile_polykernel *find(Session &session, distile_operator_kind kind, const distile_conv2d &conv,
                               const WeightedCall &call) {
    const std::optional<bindings::OperatorTypes> types = types_of(call);
    return types
               ? polykernel_of(bindings::OperatorKey(session.device(), *types, kind, conv), {},
                               [&call] { return keeps_two_of_four(call.weight, call.input.scalar_type(), call.place); })
               : nullptr;
}

int32_t number(int64_t value, const char *name) {
    if (value < 0 || value > INT32_MAX) {
        fail(std::string(name) + " is " + std::to_string(value) + ", which is out of range");
    }
    return static_cast<int32_t>(value);
}

int32_t positive(int64_t value, const char *name) {
    if (value < 1) {
        fail(std::string(name) + " is " + std::to_string(value) + ", but must be positive");
    }
    return number(value, name);
}

/** The extent of a convolution's output along one axis. Fails with PyTorch's words. */
int64_t convolved(int64_t extent, int64_t padding, int64_t kernel, int64_t dilation, int64_t stride) {
    const int64_t padded = extent + padding, window = dilation * (kernel - 1) + 1;
    if (padded < window) {
        fail("Calculated padded input size: " + std::to_string(padded) + ". Kernel size: " + std::to_string(window) +
             ". Kernel size can't be greater than actual input size");
    }
    return (padded - window) / stride + 1;
}

/** The parameters of a convolution, except its padding. `transposed`: the filter is [in, out / groups, rows, columns].
 */
distile_conv2d describe(const WeightedCall &call, const Ints &stride, const Ints &dilation, int64_t groups,
                        const std::string &activation, bool transposed) {
    if (call.input.dim() != 4 || call.weight.dim() != 4) {
        fail("the input is [N, C, H, W] and the weight [out, in / groups, rows, columns], with 4 dimensions each");
    }
    if (stride.size() != 2 || dilation.size() != 2 || groups < 1) {
        fail("stride and dilation are 2 numbers each, and groups is at least 1");
    }
    const int64_t in = call.input.size(1);
    const int64_t read = call.weight.size(transposed ? 0 : 1) * (transposed ? 1 : groups);
    if (in != read || in % groups != 0) {
        fail("the weight reads " + std::to_string(read) + " channels in " + std::to_string(groups) +
             " groups, but the input has " + std::to_string(in));
    }
    distile_conv2d conv{};
    conv.in_channels = number(in, "the number of channels");
    conv.out_channels =
        number(transposed ? call.weight.size(1) * groups : call.weight.size(0), "the number of channels");
    conv.groups = number(groups, "groups");
    conv.kernel_h = positive(call.weight.size(2), "the kernel's height");
    conv.kernel_w = positive(call.weight.size(3), "the kernel's width");
    conv.stride_h = positive(stride[0], "a stride");
    conv.stride_w = positive(stride[1], "a stride");
    conv.dilation_h = positive(dilation[0], "a dilation");
    conv.dilation_w = positive(dilation[1], "a dilation");
    conv.epilogue = activation_of(activation).function;
    conv.residual = call.residual ? 1 : 0;
    return conv;
}

void set_padding(distile_conv2d &conv, const Ints &padding) {
    if (padding.size() != 4) {
        fail("padding is 4 numbers: top, bottom, left, right");
    }
    conv.pad_top = number(padding[0], "padding");
    conv.pad_bottom = number(padding[1], "padding");
    conv.pad_left = number(padding[2], "padding");
    conv.pad_right = number(padding[3], "padding");
}

Tensor run_conv2d(const WeightedCall &call, const Ints &stride, const Ints &padding, const Ints &dilation,
                  int64_t groups, const std::string &activation) {
    distile_conv2d conv = describe(call, stride, dilation, groups, activation, false);
    set_padding(conv, padding);
    const Ints result{
        call.input.size(0), conv.out_channels,
        convolved(call.input.size(2), padding[0] + padding[1], conv.kernel_h, conv.dilation_h, conv.stride_h),
        convolved(call.input.size(3), padding[2] + padding[3], conv.kernel_w, conv.dilation_w, conv.stride_w)};
    Session &session = Session::of(call.input);
    check_call(session, call, result);
    if (is_empty(result)) {
        return output_of(call, result);
    }
    if (const distile_polykernel *polykernel = find(session, DISTILE_MASKED_CONV2D, conv, call)) {
        return run(session, *polykernel, DISTILE_OIHW, call, result, activation_of(activation).slope);
    }
    const auto dense = [&] { return dense_conv2d(call, {stride, padding, dilation, groups}, activation); };
    return without_polykernel("conv2d", dense, call.input, call.weight, call.bias, call.mask, call.residual, stride,
                              padding, dilation, groups, activation, call.place, call.zero, given(call.out));
}

Tensor run_transposed(const WeightedCall &call, const Ints &stride, const Ints &output_padding, const Ints &padding,
                      const Ints &dilation, int64_t groups, const std::string &activation) {
    distile_conv2d conv = describe(call, stride, dilation, groups, activation, true);
    set_padding(conv, padding);
    if (output_padding.size() != 2) {
        fail("output_padding is 2 numbers");
    }
    conv.pad_bottom -= number(output_padding[0], "output_padding");
    conv.pad_right -= number(output_padding[1], "output_padding");
    const auto extent = [](int64_t size, int32_t stride, int32_t dilation, int32_t kernel, int32_t before,
                           int32_t after) {
        const int64_t found = (size - 1) * stride + int64_t{dilation} * (kernel - 1) + 1 - before - after;
        if (found < 1) {
            fail("the output's height or width is " + std::to_string(found) + ": the padding cuts all of it");
        }
        return found;
    };
    const Ints result{
        call.input.size(0), conv.out_channels,
        extent(call.input.size(2), conv.stride_h, conv.dilation_h, conv.kernel_h, conv.pad_top, conv.pad_bottom),
        extent(call.input.size(3), conv.stride_w, conv.dilation_w, conv.kernel_w, conv.pad_left, conv.pad_right)};
    Session &session = Session::of(call.input);
    check_call(session, call, result);
    if (is_empty(result)) {
        return output_of(call, result);
    }
    const distile_polykernel *polykernel = find(session, DISTILE_MASKED_CONV_TRANSPOSE2D, conv, call);
    // Between the order of PyTorch and that of distile, groups make a difference.
    if (polykernel && groups == 1) {
        return run(session, *polykernel, DISTILE_IOHW, call, result, activation_of(activation).slope);
    }
    const auto dense = [&] {
        return dense_conv_transpose2d(call, output_padding, {stride, padding, dilation, groups}, activation);
    };
    return without_polykernel("conv_transpose2d", dense, call.input, call.weight, call.bias, call.mask, call.residual,
                              stride, output_padding, padding, dilation, groups, activation, call.place, call.zero,
                              given(call.out));
}

Tensor run_upsampled(const WeightedCall &call, const Ints &scale, const Ints &padding, const Ints &dilation,
                     int64_t groups, const std::string &activation) {
    distile_conv2d conv = describe(call, scale, dilation, groups, activation, false);
    set_padding(conv, padding);
    const Ints result{
        call.input.size(0), conv.out_channels,
        convolved(call.input.size(2) * scale[0], padding[0] + padding[1], conv.kernel_h, conv.dilation_h, 1),
        convolved(call.input.size(3) * scale[1], padding[2] + padding[3], conv.kernel_w, conv.dilation_w, 1)};
    Session &session = Session::of(call.input);
    check_call(session, call, result);
    if (is_empty(result)) {
        return output_of(call, result);
    }
    if (const distile_polykernel *polykernel = find(session, DISTILE_MASKED_UPSAMPLE_CONV2D, conv, call)) {
        return run(session, *polykernel, DISTILE_OIHW, call, result, activation_of(activation).slope);
    }
    const auto dense = [&] {
        return dense_upsample_conv2d(call, scale, {scale, padding, dilation, groups}, activation);
    };
    return without_polykernel("upsample_conv2d", dense, call.input, call.weight, call.bias, call.mask, call.residual,
                              scale, padding, dilation, groups, activation, call.place, call.zero, given(call.out));
}

}  // namespace

Tensor conv2d(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
              const OptionalTensor &residual, const Ints &stride, const Ints &padding, const Ints &dilation,
              int64_t groups, const std::string &activation, int64_t place) {
    return run_conv2d({input, weight, bias, mask, residual, place, nullptr, true}, stride, padding, dilation, groups,
                      activation);
}

Tensor conv2d_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                  const OptionalTensor &residual, const Ints &stride, const Ints &padding, const Ints &dilation,
                  int64_t groups, const std::string &activation, int64_t place, bool zero, const Tensor &out) {
    return run_conv2d({input, weight, bias, mask, residual, place, &out, zero}, stride, padding, dilation, groups,
                      activation);
}

Tensor conv_transpose2d(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                        const OptionalTensor &residual, const Ints &stride, const Ints &output_padding,
                        const Ints &padding, const Ints &dilation, int64_t groups, const std::string &activation,
                        int64_t place) {
    return run_transposed({input, weight, bias, mask, residual, place, nullptr, true}, stride, output_padding, padding,
                          dilation, groups, activation);
}

Tensor conv_transpose2d_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                            const OptionalTensor &residual, const Ints &stride, const Ints &output_padding,
                            const Ints &padding, const Ints &dilation, int64_t groups, const std::string &activation,
                            int64_t place, bool zero, const Tensor &out) {
    return run_transposed({input, weight, bias, mask, residual, place, &out, zero}, stride, output_padding, padding,
                          dilation, groups, activation);
}

Tensor upsample_conv2d(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                       const OptionalTensor &residual, const Ints &scale, const Ints &padding, const Ints &dilation,
                       int64_t groups, const std::string &activation, int64_t place) {
    return run_upsampled({input, weight, bias, mask, residual, place, nullptr, true}, scale, padding, dilation, groups,
                         activation);
}

Tensor upsample_conv2d_out(const Tensor &input, const Tensor &weight, const OptionalTensor &bias, const Tensor &mask,
                           const OptionalTensor &residual, const Ints &scale, const Ints &padding, const Ints &dilation,
                           int64_t groups, const std::string &activation, int64_t place, bool zero, const Tensor &out) {
    return run_upsampled({input, weight, bias, mask, residual, place, &out, zero}, scale, padding, dilation, groups,
                         activation);
}

}  // namespace distile::python
