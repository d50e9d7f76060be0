#include "onnxruntime/dense_quantized.h"
#include <algorithm>
#include <cstring>

namespace distile::ort {

namespace {

constexpr uint8_t middle = 128; /**< Makes unsigned numbers of signed ones. */

std::vector<uint8_t> unsigned_filter(const Tensor &filter, const distile_conv2d &conv, distile_weights_order order) {
    const int64_t outer = conv.out_channels, inner = conv.in_channels / conv.groups,
                  taps = int64_t{conv.kernel_h} * conv.kernel_w;
    const bool outer_first = order == DISTILE_OIHW;
    std::vector<uint8_t> numbers(static_cast<size_t>(outer * inner * taps));
    const auto *from = filter.as<int8_t>();
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < inner; i++) {
            for (int64_t t = 0; t < taps; t++) {
                // Linear layers have one tap, so IOHW serves for IO too. A transposed convolution's window is turned.
                const int64_t source = outer_first ? (o * inner + i) * taps + t : (i * outer + o) * taps + taps - 1 - t;
                numbers[static_cast<size_t>((o * inner + i) * taps + t)] = static_cast<uint8_t>(from[source] + middle);
            }
        }
    }
    return numbers;
}

DenseNode make_node(const Setup &setup, const distile_conv2d &conv, bool transposed) {
    const DenseNode::Attributes attributes{{{"group", conv.groups}},
                                           {},
                                           {{"kernel_shape", {conv.kernel_h, conv.kernel_w}},
                                            {"strides", transposed ? Shape{1, 1} : Shape{conv.stride_h, conv.stride_w}},
                                            {"dilations", {conv.dilation_h, conv.dilation_w}},
                                            {"pads", {0, 0, 0, 0}}}};
    return {setup.node, "ConvInteger", 10, {{"T1", uint8}, {"T2", uint8}, {"T3", int32}}, 4, attributes};
}

/** A vector as the channels of a result. */
float at(const float *vector, int64_t channel) {
    return vector ? vector[channel] : 0;
}

}  // namespace

DenseQuantized::DenseQuantized(const Setup &setup, distile_operator_kind kind, const distile_conv2d &conv,
                               distile_weights_order order, ImageLayout layout, const Quantization &quantization)
    : conv_(conv), transposed_(kind == DISTILE_MASKED_CONV_TRANSPOSE2D), layout_(layout), quantization_(quantization),
      filter_(unsigned_filter(setup.node.constant(input_filter).value(), conv, order)),
      node_(make_node(setup, conv, transposed_)) {
}

DenseQuantized::Axis DenseQuantized::axis_of(bool transposed, int64_t in, int64_t stride, int64_t dilation,
                                             int64_t kernel, int64_t before, int64_t after) {
    const int64_t reach = dilation * (kernel - 1);
    if (transposed) {
        const int64_t outputs = (in - 1) * stride + reach + 1 - before - after;
        return {stride, reach - before, outputs + reach, outputs};
    }
    const int64_t extent = in + before + after;
    return {1, before, extent, extent > reach ? (extent - reach - 1) / stride + 1 : 0};
}

Tensor DenseQuantized::image(const Lease &lease, const distile_tensor &input, const Axis &rows,
                             const Axis &columns) const {
    const uint8_t flip = input.dtype == DISTILE_INT8 ? middle : 0;
    Tensor image{nullptr, uint8, {input.batch, input.channels, rows.extent, columns.extent}};
    auto *const to = static_cast<uint8_t *>(lease.scratch(dense_scratch, image.bytes()));
    image.data = to;
    std::memset(to, static_cast<uint8_t>(quantization_.numbers().input.zero_point) ^ flip, image.bytes());
    const auto *const from = static_cast<const uint8_t *>(input.data);
    const auto inside = [](const Axis &axis, int64_t place) { return place >= 0 && place < axis.extent; };
    for (int64_t n = 0; n < input.batch; n++) {
        for (int64_t y = 0; y < input.height; y++) {
            const int64_t row = y * rows.step + rows.first;
            for (int64_t x = 0; x < input.width && inside(rows, row); x++) {
                const int64_t column = x * columns.step + columns.first;
                const uint8_t *const pixel = from + n * input.stride_n + y * input.stride_h + x * input.stride_w;
                for (int64_t c = 0; c < input.channels && inside(columns, column); c++) {
                    to[((n * input.channels + c) * rows.extent + row) * columns.extent + column] = pixel[c] ^ flip;
                }
            }
        }
    }
    return image;
}

distile_tensor DenseQuantized::run(const Call &call, const Lease &lease, const Tensor &x, const Tensor &,
                                   const std::optional<Tensor> &bias) const {
    const distile_tensor input = read(lease, x, layout_, dense_scratch);
    const Axis rows = axis_of(transposed_, input.height, conv_.stride_h, conv_.dilation_h, conv_.kernel_h,
                              conv_.pad_top, conv_.pad_bottom),
               columns = axis_of(transposed_, input.width, conv_.stride_w, conv_.dilation_w, conv_.kernel_w,
                                 conv_.pad_left, conv_.pad_right);
    if (input.channels != conv_.in_channels) {
        fail("the input has " + std::to_string(input.channels) + " channels instead of " +
             std::to_string(conv_.in_channels));
    }
    if (rows.outputs < 1 || columns.outputs < 1) {
        fail("the input is smaller than the operator's window");
    }
    const int64_t inner = conv_.in_channels / conv_.groups, outer = conv_.out_channels;
    Tensor sums{nullptr, int32, {input.batch, outer, rows.outputs, columns.outputs}};
    sums.data = lease.scratch(dense_scratch + 1, sums.bytes());
    const distile_quantization numbers = quantization_.numbers();
    uint8_t zero_points[] = {static_cast<uint8_t>(numbers.input.zero_point + (x.type == int8 ? middle : 0)), middle};
    // ONNX Runtime only reads its inputs.
    const Tensor filter{const_cast<uint8_t *>(filter_.data()), uint8, {outer, inner, conv_.kernel_h, conv_.kernel_w}};
    node_.run(call,
              {image(lease, input, rows, columns), filter, {&zero_points[0], uint8, {}}, {&zero_points[1], uint8, {}}},
              sums);
    distile_tensor result = distile_tensor_make(nullptr, input.batch, number(rows.outputs, "a height"),
                                                number(columns.outputs, "a width"), conv_.out_channels);
    const int64_t pixels = rows.outputs * columns.outputs;
    auto *const to = static_cast<float *>(
        lease.scratch(dense_scratch + 2, static_cast<size_t>(input.batch * pixels * outer) * sizeof(float)));
    result.data = to;
    for (int64_t n = 0; n < input.batch; n++) {
        for (int64_t o = 0; o < outer; o++) {
            const float factor = numbers.input.scale * numbers.filter_scales[o] / quantization_.unit();
            const float summand = at(bias ? bias->as<float>() : nullptr, o) / quantization_.unit();
            const auto first = static_cast<uint32_t>(numbers.bias ? numbers.bias[o] : 0);
            const uint32_t *const from = sums.as<uint32_t>() + (n * outer + o) * pixels;
            for (int64_t p = 0; p < pixels; p++) {
                // Sums wrap around, as those of a PolyKernel do.
                to[(n * pixels + p) * outer + o] =
                    static_cast<float>(static_cast<int32_t>(from[p] + first)) * factor + summand;
            }
        }
    }
    return result;
}

}  // namespace distile::ort
