#include "tests/support/quantized_model.h"
#include "reference/conv2d_reference.h"
#include "reference/tensors.h"
#include "tests/support/catch.h"
#include "tests/support/pairwise.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

namespace distile {

namespace {

/** Images, and rows and columns of the input. */
constexpr struct {
    int32_t batch, height, width;
} run_sizes[] = {{2, 9, 11}, {1, 12, 7}, {1, 9, 35}, {3, 6, 33}, {1, 13, 18}};

/** Two a byte, as in ONNX. */
std::vector<uint8_t> in_halves(const std::vector<int8_t> &filter) {
    std::vector<uint8_t> bytes((filter.size() + 1) / 2, 0xf0);
    for (size_t i = 0; i < filter.size(); i++) {
        const auto half = static_cast<unsigned>(filter[i]) & 0xf;
        bytes[i / 2] =
            static_cast<uint8_t>(i % 2 == 0 ? half | (bytes[i / 2] & 0xf0) : half << 4 | (bytes[i / 2] & 0xf));
    }
    return bytes;
}

/** Where code for all devices gives the same bits, in the order in which it computes. */
float activate(distile_activation epilogue, float slope, float value) {
    if (epilogue == DISTILE_ACTIVATION_LEAKY_RELU) {
        return value > 0 ? value : slope * value;
    }
    if (epilogue != DISTILE_ACTIVATION_HARDSIGMOID && epilogue != DISTILE_ACTIVATION_HARDSWISH) {
        return static_cast<float>(apply_epilogue(epilogue, value));
    }
    const float factor = std::clamp(value + 3, 0.0f, 6.0f) / 6;
    return epilogue == DISTILE_ACTIVATION_HARDSWISH ? value * factor : factor;
}

}  // namespace

QuantizedTensor::QuantizedTensor(distile_dtype dtype, int32_t batch, int32_t height, int32_t width, int32_t channels,
                                 const TensorLayout &layout, Flush flush, std::mt19937 &random)
    : size(distile_dtype_size(dtype)), view(make_view(batch, height, width, channels, layout, dtype)),
      count(static_cast<int64_t>(elements_of(view)) * size) {
    memory = std::make_unique<GuardedMemory>(count, flush);
    bytes = static_cast<uint8_t *>(memory->data());
    for (int64_t i = 0; i < count; i += size) {
        const float value = static_cast<float>(random() % 1000) / 100 - 5;
        const auto byte = static_cast<uint8_t>(random());
        std::memcpy(bytes + i, size == 1 ? static_cast<const void *>(&byte) : &value, size);
    }
    view.data = bytes + (view.border_top * view.stride_h + view.border_left * view.stride_w) * size;
}

void QuantizedTensor::set_border(int32_t number) const {
    for (int32_t n = 0; n < view.batch; n++) {
        for (int32_t y = -view.border_top; y < view.height + view.border_bottom; y++) {
            for (int32_t x = -view.border_left; x < view.width + view.border_right; x++) {
                if (y < 0 || y >= view.height || x < 0 || x >= view.width) {
                    std::fill_n(at(n, y, x, 0), view.channels, static_cast<uint8_t>(number));
                }
            }
        }
    }
}

std::string QuantizedRun::describe() const {
    return std::to_string(batch) + " inputs of " + std::to_string(height) + " x " + std::to_string(width) +
           ", mask: " + mask + ", input: " + input.name + ", output: " + output.name +
           ", residual: " + (in_place ? "the output itself" : residual.name) +
           (inactive == DISTILE_ZERO ? ", zero" : ", keep") + (store == DISTILE_STORE_TILES ? ", tiles" : ", exact") +
           (flush == Flush::Back ? ", guard behind" : ", guard before");
}

QuantizedRuns::QuantizedRuns() {
    distile_conv2d any{};
    std::mt19937 random(5);
    combinations_ =
        combine_pairwise({static_cast<int>(std::size(run_sizes)), static_cast<int>(std::size(mask_names)),
                          static_cast<int>(input_layouts(any).size()), static_cast<int>(output_layouts(any).size()),
                          static_cast<int>(residual_layouts(any).size()) + 1, 2, 2, 2},
                         random);
}

QuantizedRun QuantizedRuns::next(const QuantizedCase &of, int32_t alignment) {
    const std::vector<int> &values = combinations_[next_++ % combinations_.size()];
    const auto [batch, height, width] = run_sizes[values[0]];
    distile_conv2d bordered = of.conv;
    const Border border = padding_of(of.conv, of.kind);
    bordered.pad_top = border.top;
    bordered.pad_bottom = border.bottom;
    bordered.pad_left = border.left;
    bordered.pad_right = border.right;
    const auto lanes = std::max(alignment / static_cast<int32_t>(distile_dtype_size(of.output)), 1);
    const auto residuals = residual_layouts(of.conv, lanes);
    const bool in_place = values[4] == static_cast<int>(residuals.size());
    return {batch,
            of.kind == DISTILE_MASKED_LINEAR ? 1 : height,
            width,
            mask_names[values[1]],
            input_layouts(bordered, alignment)[values[2]],
            output_layouts(of.conv, lanes)[values[3]],
            residuals[in_place ? 0 : values[4]],
            in_place && of.conv.residual != 0,
            values[5] == 0 ? DISTILE_KEEP : DISTILE_ZERO,
            values[6] == 0 ? DISTILE_STORE_EXACT : DISTILE_STORE_TILES,
            values[7] == 0 ? Flush::Back : Flush::Front};
}

QuantizedModel::QuantizedModel(const QuantizedCase &from, bool halves, std::mt19937 &random, distile_dtype filter_type)
    : of(from), filter_dtype(filter_type) {
    const distile_conv2d &conv = of.conv;
    const bool int4 = filter_dtype == DISTILE_INT4;
    group_inputs = conv.in_channels / conv.groups;
    filter.resize(static_cast<size_t>(conv.kernel_h) * conv.kernel_w * group_inputs * conv.out_channels);
    for (int8_t &weight : filter) {
        // Often the largest ones, whose sums of two products exceed 16 bits.
        const auto number = static_cast<int8_t>(random() % 3 == 0 ? random() : random() % 2 == 0 ? 127 : -128);
        weight = static_cast<int8_t>(int4 ? number >> 4 : number);
    }
    const auto real = [&](double least, double most) {
        return std::uniform_real_distribution<float>(static_cast<float>(least), static_cast<float>(most))(random);
    };
    const double sum = (int4 ? 15 : 200) * std::sqrt(static_cast<double>(filter.size()) / conv.out_channels);
    for (int32_t o = 0; o < conv.out_channels; o++) {
        // With these, every other sum lies in the middle between two results.
        scales.push_back(halves ? 0.5f : real(.1, 1) / static_cast<float>(sum));
        bias.push_back(static_cast<int32_t>(random() % 20000) - 10000);
        float_bias.push_back(halves ? 0 : real(-3, 3));
    }
    bias[0] = INT32_MAX - 5;  // Sums wrap around.
    const auto zero_point = [&](distile_dtype dtype) {
        return static_cast<int32_t>(random() % 256) - (dtype == DISTILE_INT8 ? 128 : 0);
    };
    quantization.input = {halves ? 1 : real(.01, .1), halves ? 0 : zero_point(of.input)};
    quantization.filter_scales = scales.data();
    quantization.bias = bias.data();
    if (of.output != DISTILE_FLOAT32) {
        quantization.output = {halves ? 1 : real(.01, .1), zero_point(of.output)};
        if (conv.residual != 0) {
            quantization.residual = {halves ? 1 : real(.01, .1), zero_point(of.output)};
        }
    }
}

/** (sum of (input - zero point) * filter) + bias, which wraps around. */
int32_t QuantizedModel::sum(const QuantizedTensor &input, int32_t n, int32_t y, int32_t x, int32_t o) const {
    const distile_conv2d &conv = of.conv;
    auto total = static_cast<uint32_t>(bias[o]);
    for (int32_t ky = 0; ky < conv.kernel_h; ky++) {
        for (int32_t kx = 0; kx < conv.kernel_w; kx++) {
            int32_t iy = 0, ix = 0;
            if (!reads(y, ky, conv.stride_h, conv.pad_top, conv.dilation_h, input.view.height, iy) ||
                !reads(x, kx, conv.stride_w, conv.pad_left, conv.dilation_w, input.view.width, ix)) {
                continue;
            }
            const int32_t first = o / (conv.out_channels / conv.groups) * group_inputs;
            for (int32_t i = 0; i < group_inputs; i++) {
                const int8_t weight =
                    filter[((static_cast<size_t>(ky) * conv.kernel_w + kx) * group_inputs + i) * conv.out_channels + o];
                total +=
                    static_cast<uint32_t>((input.get(n, iy, ix, first + i) - quantization.input.zero_point) * weight);
            }
        }
    }
    int32_t result = 0;
    std::memcpy(&result, &total, sizeof(result));
    return result;
}

void QuantizedModel::result(const QuantizedTensor &input, const QuantizedTensor *residual, int32_t n, int32_t y,
                            int32_t x, int32_t o, uint8_t *to) const {
    const bool quantized = of.output != DISTILE_FLOAT32;
    const distile_activation epilogue = of.conv.epilogue;
    const bool in_units = quantized && (epilogue == DISTILE_ACTIVATION_NONE || epilogue == DISTILE_ACTIVATION_RELU);
    const float unit = in_units ? quantization.output.scale : 1;
    const float multiplier = quantization.input.scale * scales[o] / unit;
    volatile float value = static_cast<float>(sum(input, n, y, x, o)) * multiplier;
    value = value + float_bias[o] / unit;
    if (residual && !quantized) {
        float added = 0;
        std::memcpy(&added, residual->at(n, y, x, o), sizeof(added));
        value = value + added;
    } else if (residual) {
        const volatile float added = static_cast<float>(residual->get(n, y, x, o) - quantization.residual.zero_point) *
                                     (quantization.residual.scale / unit);
        value = value + added;
    }
    const float activated = activate(epilogue, slope, value);
    if (!quantized) {
        std::memcpy(to, &activated, sizeof(activated));
        return;
    }
    const float scaled = in_units ? activated : activated * (1 / quantization.output.scale);
    const int32_t least = of.output == DISTILE_INT8 ? -128 : 0;
    const float rounded = std::nearbyint(std::clamp(scaled, -1000.0f, 1000.0f));
    *to = static_cast<uint8_t>(
        std::clamp(static_cast<int32_t>(rounded) + quantization.output.zero_point, least, least + 255));
}

bool QuantizedModel::reads(int32_t output, int32_t tap, int32_t stride, int32_t pad, int32_t dilation, int32_t extent,
                           int32_t &input) const {
    input = output * stride - pad + tap * dilation;
    if (of.kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        const int32_t distance = output + pad - tap * dilation;
        if (distance % stride != 0) {
            return false;
        }
        input = distance / stride;
    }
    return input >= 0 && input < extent;
}

Weights QuantizedModel::pack(const Context &context, const Kernel &kernel) const {
    const std::vector<uint8_t> halves = in_halves(filter);
    distile_weights_source source{};
    source.filter = filter_dtype == DISTILE_INT4 ? static_cast<const void *>(halves.data()) : filter.data();
    source.dtype = filter_dtype;
    source.order = DISTILE_HWIO;
    source.bias = float_bias.data();
    source.quantization = &quantization;
    source.slope = &slope;
    return pack_weights(context, kernel, source);
}

void check_quantized_run(const QuantizedModel &model, const QuantizedRun &run, const Kernel &kernel,
                         const distile_variant_info &variant, std::mt19937 &random,
                         const std::function<void(const QuantizedCall &)> &call) {
    INFO(run.describe());
    const distile_conv2d &conv = model.of.conv;
    QuantizedTensor input(model.of.input, run.batch, run.height, run.width, conv.in_channels, run.input.layout,
                          run.flush, random);
    input.set_border(model.quantization.input.zero_point);
    int32_t height = 0, width = 0;
    REQUIRE(distile_kernel_output_shape(kernel.get(), run.height, run.width, &height, &width) == DISTILE_OK);
    REQUIRE(height > 0);
    REQUIRE(width > 0);
    const auto make = [&](const TensorLayout &layout) {
        return QuantizedTensor(model.of.output, run.batch, height, width, conv.out_channels, layout, run.flush, random);
    };
    const QuantizedTensor output = make(run.output.layout),
                          added = make((run.in_place ? run.output : run.residual).layout);
    if (run.in_place) {
        std::copy_n(output.bytes, output.count, added.bytes);
    }
    const QuantizedTensor *const residual = conv.residual != 0 ? &added : nullptr;
    const std::vector<uint8_t> active = make_mask(run.mask, run.batch, height, width, random);
    const std::vector<uint8_t> before(output.bytes, output.bytes + output.count);
    call({input, output, run.in_place ? &output : residual, active, run});
    const auto is_active = [&](int32_t n, int32_t y, int32_t x) {
        return y < height && x < width && active[(static_cast<size_t>(n) * height + y) * width + x] != 0;
    };
    const auto is_stored = [&](int32_t n, int32_t y, int32_t x) {
        if (run.store == DISTILE_STORE_EXACT) {
            return is_active(n, y, x);
        }
        bool any = variant.dense != 0;
        const int32_t first_y = y / variant.tile_h * variant.tile_h, first_x = x / variant.tile_w * variant.tile_w;
        for (int32_t i = 0; i < variant.tile_h * variant.tile_w; i++) {
            any = any || is_active(n, first_y + i / variant.tile_w, first_x + i % variant.tile_w);
        }
        return any;
    };
    std::vector<uint8_t> expected = before;
    int64_t mistakes = 0;
    double worst = 0;
    for (int32_t n = 0; n < run.batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++) {
                for (int32_t o = 0; o < conv.out_channels; o++) {
                    uint8_t *const found = output.at(n, y, x, o);
                    uint8_t *const due = expected.data() + (found - output.bytes);
                    if (run.in_place && is_stored(n, y, x) && !is_active(n, y, x)) {
                        // What is zeroed may be added again before its tile is stored.
                        std::memcpy(due, found, output.size);
                    } else if (is_stored(n, y, x)) {
                        model.result(input, residual, n, y, x, o, due);
                        if (!model.is_exact()) {
                            const int32_t difference = model.of.output == DISTILE_INT8
                                                           ? static_cast<int8_t>(*due) - static_cast<int8_t>(*found)
                                                           : *due - *found;
                            worst = std::max<double>(worst, std::abs(difference));
                            *due = *found;
                        }
                    } else if (run.inactive == DISTILE_ZERO) {
                        const int32_t zero_point = model.quantization.output.zero_point;
                        std::memset(due, static_cast<uint8_t>(zero_point), output.size);
                    }
                    mistakes += std::memcmp(due, found, output.size) != 0 ? 1 : 0;
                }
            }
        }
    }
    CHECK(mistakes == 0);
    CHECK(worst <= 1);
    CHECK(std::equal(expected.begin(), expected.end(), output.bytes));
}

}  // namespace distile
