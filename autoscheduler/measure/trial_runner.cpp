#include "autoscheduler/measure/trial_runner.h"
#include "autoscheduler/measure/host_tensor.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include "reference/conv2d_reference.h"
#include "reference/error_bounds.h"
#include "reference/processor.h"
#include "reference/tensors.h"
#include "reference/token_reference.h"
#include "runtime/kinds/weight_layout.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

namespace distile {

namespace {

/** The scale of a quantized operator's output. */
constexpr float quantized_unit = 0x1p-4f;

std::vector<float> draw(size_t count, std::mt19937 &random) {
    std::vector<float> values(count);
    for (float &value : values) {
        value = static_cast<float>(random() % 2001) * 0.001f - 1;
    }
    return values;
}

/** Makes two of four consecutive input channels 0, [output channel][kernel row][kernel column][input channel]. */
void keep_two_of_four(const Operator &op, std::vector<float> &filter, std::mt19937 &random) {
    constexpr size_t fours = 4;
    const distile_conv2d conv = op.schema().convolution(op).conv;
    const size_t channels = conv.in_channels / conv.groups;
    for (size_t line = 0; line < filter.size(); line += channels) {
        for (size_t first = 0; first < channels; first += fours) {
            const size_t one = random() % fours, other = (one + 1 + random() % (fours - 1)) % fours;
            for (size_t i = 0; i < std::min(fours, channels - first); i++) {
                filter[line + first + i] *= i == one || i == other ? 1.0f : 0.0f;
            }
        }
    }
}

/** The share of weights that become 0 beside those that a pattern leaves out. */
double further_zeros(const Operator &op) {
    return op.typical_pattern == WeightPattern::TwoFour ? std::max(0.0, 2 * op.typical_zeros - 1) : op.typical_zeros;
}

/** Makes the typical share of an operator's weights 0, [output channel][kernel row][kernel column][input channel]. */
void prune(const Operator &op, std::vector<float> &filter, std::mt19937 &random) {
    if (op.typical_pattern == WeightPattern::TwoFour) {
        keep_two_of_four(op, filter, random);
    }
    std::bernoulli_distribution is_zero(further_zeros(op));
    visit_prunable(op, [&](size_t first, size_t count) {
        if (is_zero(random)) {
            std::fill_n(filter.begin() + static_cast<ptrdiff_t>(first), count, 0.0f);
        }
    });
}

class CpuRunner : public TrialRunner {
public:
    CpuRunner(const Context &context, const distile_polykernel &polykernel, const TrialData &data)
        : context_(context), variant_(polykernel.variants[0].name), data_(data),
          input_(data.op.dtype(), data.batch, data.input_extents, data.op.in_channels(),
                 data.border ? data.op.border() : distile_border{}),
          output_(data.op.output_dtype(), data.batch, data.output_extents, data.op.out_channels()),
          residual_(data.op.output_dtype(), data.residual.empty() ? 0 : data.batch, data.output_extents,
                    data.op.out_channels()),
          key_(store_as(data.op.dtype(), data.key)), value_(store_as(data.op.dtype(), data.value)),
          kernel_(make_kernel(context, polykernel)), weights_(data.pack(context, kernel_)) {
        input_.set(data.input);
        residual_.set(data.residual);
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        masks_.push_back(make_mask(context_));
        const auto [height, width] = data_.mask_extents();
        check(context_, distile_mask_set_bytes(masks_.back().get(), bytes.data(), data_.batch, height, width,
                                               int64_t{height} * width, width));
        return masks_.size() - 1;
    }

    void run(size_t mask) override {
        distile_run_args args{};
        distile_tensor key{}, value{};
        if (!key_.empty()) {
            key = tokens_of(data_.op, data_.batch, key_.data());
            args.key = &key;
        }
        if (!value_.empty()) {
            value = tokens_of(data_.op, data_.batch, value_.data());
            args.value = &value;
        }
        args.input = &input_.view();
        args.output = &output_.view();
        args.residual = data_.op.has_residual() ? &residual_.view() : nullptr;
        args.weights = weights_.get();
        args.mask = masks_[mask].get();
        args.variant = variant_;
        check(context_, distile_run(kernel_.get(), &args));
    }

    double time_us(size_t mask) override {
        // A schedule in steady use finds its code and the pool's threads ready.
        run(mask);
        const auto before = std::chrono::steady_clock::now();
        run(mask);
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count();
    }

    void set_output(const std::vector<float> &values) override {
        output_.set(values);
    }

    std::vector<float> output() override {
        return output_.get();
    }

private:
    const Context &context_;
    const char *variant_;
    const TrialData &data_;
    HostTensor input_, output_, residual_;
    std::vector<char> key_, value_;
    Kernel kernel_;
    Weights weights_;
    std::vector<Mask> masks_;
};

class CpuDevice : public TrialDevice {
public:
    explicit CpuDevice(int threads) {
        distile_context_options options{};
        options.threads = threads;
        context_ = make_context(options);
    }

    std::string name() const override {
        return cpu_name();
    }

    std::unique_ptr<TrialRunner> runner(const distile_polykernel &polykernel, const TrialData &data) override {
        return std::make_unique<CpuRunner>(context_, polykernel, data);
    }

private:
    Context context_;
};

}  // namespace

TrialData::TrialData(const Operator &of, int images, const Extents &extents, bool bordered, std::vector<float> weights)
    : op(of), batch(images), input_extents(extents), output_extents(of.output_of(extents)), border(bordered),
      filter(std::move(weights)) {
    std::mt19937 random(1);
    input = draw(static_cast<size_t>(batch) * extents.height * extents.width * op.in_channels(), random);
    bias = draw(op.out_channels(), random);
    if (filter.empty()) {
        filter = draw(op.filter_elements(), random);
        if (op.typical_zeros > 0) {
            prune(op, filter, random);
        }
    }
    residual = draw(op.has_residual() ? output_pixels() * op.out_channels() : 0, random);
    const size_t tokens = op.reads_keys() ? static_cast<size_t>(batch) * op.typical_keys * op.token_channels() : 0;
    key = draw(op.reads("DISTILE_ROLE_KEY") ? tokens : 0, random);
    value = draw(op.reads("DISTILE_ROLE_VALUE") ? tokens : 0, random);
    // What is stored is what the reference computes with.
    if (op.is_quantized()) {
        quantize();
    } else {
        for (std::vector<float> *values : {&input, &filter, &residual, &key, &value}) {
            round_to(op.dtype(), *values);
        }
    }
}

void TrialData::quantize() {
    for (std::vector<float> *values : {&input, &residual}) {
        std::transform(values->begin(), values->end(), values->begin(),
                       [](float number) { return std::nearbyint(number * 20); });
    }
    round_to(op.dtype(), input);
    round_to(op.output_dtype(), residual);
    // With this scale results differ and few saturate. All products and sums are exact in float32.
    constexpr float filter_scale = 0x1p-12f;
    const float most =
        std::accumulate(filter.begin(), filter.end(), 1.0f, [](float a, float b) { return std::max(a, std::abs(b)); });
    std::transform(filter.begin(), filter.end(), filter.begin(), [&](float number) {
        const float rounded = std::nearbyint(number / most * 127);
        return rounded == 0 && number != 0 ? std::copysign(1.0f, number) : rounded;
    });
    quantized_filter.assign(filter.begin(), filter.end());
    std::transform(filter.begin(), filter.end(), filter.begin(), [](float number) { return number * filter_scale; });
    filter_scales.assign(op.out_channels(), filter_scale);
    const bool to_float = !op.output_dtype().is_quantized();
    quantization.input = {1, 0};
    quantization.output = to_float ? distile_scale{} : distile_scale{quantized_unit, 0};
    quantization.residual = to_float || !op.has_residual() ? distile_scale{} : distile_scale{1, 0};
}

distile_weights_source TrialData::weights() const {
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OHWI;
    source.bias = bias.data();
    return source;
}

Weights TrialData::pack(const Context &context, const Kernel &kernel) const {
    if (op.reads_keys()) {
        return nullptr;
    }
    distile_weights_source source = weights();
    distile_quantization numbers = quantization;
    numbers.filter_scales = filter_scales.data();
    if (op.is_quantized()) {
        source.filter = quantized_filter.data();
        source.dtype = DISTILE_INT8;
        source.quantization = &numbers;
    }
    return pack_weights(context, kernel, source);
}

distile_tensor tokens_of(const Operator &op, int batch, void *data) {
    return make_tensor(op.dtype(), data, batch, {1, op.typical_keys}, op.token_channels());
}

std::unique_ptr<TrialDevice> make_cpu_device(int threads) {
    return std::make_unique<CpuDevice>(threads);
}

distile_polykernel alone(const distile_polykernel &polykernel, size_t variant) {
    distile_polykernel single = polykernel;
    single.variants += variant;
    single.num_variants = 1;
    single.num_times = 0;
    single.fallback = nullptr;
    return single;
}

namespace {

/** What an output pixel holds, and the largest error that it may have. */
struct Expected {
    double value, error;
};

using ExpectedPixel = std::function<std::vector<Expected>(int n, int y, int x)>;

/** A value as a type stores it, in units. It may lie in the middle between two numbers. */
Expected quantized(const DataType &type, double value) {
    std::vector<float> stored = {static_cast<float>(value / quantized_unit)};
    round_to(type, stored);
    return {stored.front(), 1};
}

/** The type to which packed weights are rounded. Those of quantized operators are whole numbers. */
distile_dtype rounded_weights(const Operator &op, const distile_polykernel &polykernel) {
    return op.is_quantized()
               ? DISTILE_FLOAT32
               : stored_type(*find_layout(polykernel.variants[0].layout), polykernel, DISTILE_ROLE_WEIGHTS);
}

/** The pixels of an operator with a filter. */
ExpectedPixel expect_filtered(const TrialData &data, distile_dtype weights, distile_math multiplied) {
    const auto [kind, conv] = data.op.schema().convolution(data.op);
    const auto reference = std::make_shared<Conv2dReference>(conv, data.weights(), kind, weights);
    const auto input = std::make_shared<BorderedTensor>(data.batch, data.input_extents.height, data.input_extents.width,
                                                        data.op.in_channels());
    const auto residual = std::make_shared<BorderedTensor>(data.batch, data.output_extents.height,
                                                           data.output_extents.width, data.op.out_channels());
    input->set(data.input.data());
    if (!data.residual.empty()) {
        residual->set(data.residual.data());
    }
    return [=, &data, epilogue = conv.epilogue](int n, int y, int x) {
        std::vector<double> sums, scales;
        reference->sums(input->view(), data.residual.empty() ? nullptr : &residual->view(), n, y, x, sums, &scales);
        std::vector<Expected> pixel;
        for (size_t channel = 0; channel < sums.size(); channel++) {
            const double value = apply_epilogue(epilogue, sums[channel]);
            const DataType &type = data.op.output_dtype();
            if (type.is_quantized()) {
                pixel.push_back(quantized(type, value));
            } else {
                pixel.push_back({value, error_bound(type.dtype, value, scales[channel], multiplied)});
            }
        }
        return pixel;
    };
}

/** The rows of an operator that reads keys. `rounded` is the relative error of its probabilities. */
ExpectedPixel expect_tokens(const TrialData &data, distile_math multiplied, double rounded) {
    return [&data, multiplied, rounded](int n, int y, int x) {
        const auto made = [&](const std::vector<float> &values, const Extents &extents, int channels) {
            return distile_tensor_make(const_cast<float *>(values.data()), data.batch, extents.height, extents.width,
                                       channels);
        };
        const int channels = data.op.token_channels();
        const distile_tensor input = made(data.input, data.input_extents, data.op.in_channels());
        const distile_tensor key = made(data.key, {1, data.op.typical_keys}, channels);
        const distile_tensor value = made(data.value, {1, data.op.typical_keys}, channels);
        const TokenArgs args = {&input, data.key.empty() ? nullptr : &key, data.value.empty() ? nullptr : &value,
                                nullptr, 0};
        const OperatorSchema &schema = data.op.schema();
        const std::shared_ptr<const void> op = schema.op(data.op);
        std::vector<Expected> pixel;
        for (const TokenResult &result : reference_token_row(token_operator_of(schema.kind, op.get()), args, n, y, x)) {
            const double error = error_bound(data.op.dtype().dtype, result.value, result.scale, multiplied);
            pixel.push_back({result.value, error + rounded * result.sum});
        }
        return pixel;
    };
}

ExpectedPixel expect_of(const TrialData &data, const distile_polykernel &polykernel) {
    const distile_math multiplied = polykernel.math == DISTILE_MATH_TF32 ? DISTILE_MATH_TF32 : DISTILE_MATH_FLOAT32;
    if (!data.op.reads_keys()) {
        return expect_filtered(data, rounded_weights(data.op, polykernel), multiplied);
    }
    // The layout is that of kernels for tensor cores in 16 bits, also where nothing is packed.
    const char *const layout = polykernel.variants[0].layout;
    const bool rounds = polykernel.kind == DISTILE_MASKED_ATTENTION && layout && std::strcmp(layout, "cuda-k16") == 0;
    return expect_tokens(data, multiplied, rounds ? probability_error(data.op.dtype().dtype) : 0);
}

}  // namespace

std::string check_output(TrialRunner &runner, const TrialData &data, const distile_polykernel &polykernel,
                         const std::vector<uint8_t> &mask, size_t pixels) {
    const size_t channels = data.op.out_channels();
    // A value that no operator on numbers from -1 to 1 has here, and every type does.
    std::vector<float> before(data.output_pixels() * channels, -12352.0f);
    round_to(data.op.output_dtype(), before);
    runner.set_output(before);
    runner.run(runner.add_mask(mask));
    const std::vector<float> after = runner.output();
    const auto active =
        static_cast<size_t>(std::count_if(mask.begin(), mask.end(), [](uint8_t byte) { return byte != 0; }));
    const size_t step = std::max<size_t>(1, active / std::max<size_t>(pixels, 1));
    const ExpectedPixel expect = expect_of(data, polykernel);
    const auto [rows, columns] = data.output_extents;
    const int mask_rows = data.mask_extents().height;
    size_t seen = 0;
    for (size_t pixel = 0; pixel < data.output_pixels(); pixel++) {
        const auto x = static_cast<int>(pixel % columns), y = static_cast<int>(pixel / columns % rows);
        const auto n = static_cast<int>(pixel / columns / rows);
        const auto where = [&] {
            return " at image " + std::to_string(n) + ", row " + std::to_string(y) + ", column " + std::to_string(x);
        };
        // All rows of scores have the mask of the first.
        if (mask[(static_cast<size_t>(n) * mask_rows + y % mask_rows) * columns + x] == 0) {
            if (std::memcmp(&before[pixel * channels], &after[pixel * channels], channels * sizeof(float)) != 0) {
                return "an inactive pixel was written" + where();
            }
            continue;
        }
        if (seen++ % step != 0) {
            continue;
        }
        const std::vector<Expected> expected = expect(n, y, x);
        for (size_t channel = 0; channel < channels; channel++) {
            const double got = after[pixel * channels + channel];
            if (!(std::abs(got - expected[channel].value) <= expected[channel].error + 1e-6)) {
                return "channel " + std::to_string(channel) + where() + " is " + std::to_string(got) + ", not " +
                       std::to_string(expected[channel].value);
            }
        }
    }
    return "";
}

}  // namespace distile
