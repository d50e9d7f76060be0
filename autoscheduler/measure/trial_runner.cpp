#include "trial_runner.h"
#include "conv2d_reference.h"
#include "error_bounds.h"
#include "host_tensor.h"
#include "operator_schema.h"
#include "processor.h"
#include "tensors.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <distile/distile.hpp>
#include <random>

namespace distile {

namespace {

std::vector<float> draw(size_t count, std::mt19937 &random) {
    std::vector<float> values(count);
    for (float &value : values) {
        value = static_cast<float>(random() % 2001) * 0.001f - 1;
    }
    return values;
}

class CpuRunner : public TrialRunner {
public:
    CpuRunner(const Context &context, const distile_polykernel &polykernel, const TrialData &data)
        : context_(context), variant_(polykernel.variants[0].name), data_(data),
          input_(data.op.dtype(), data.batch, data.input_extents, data.op.in_channels(),
                 data.border ? data.op.border() : distile_border{}),
          output_(data.op.dtype(), data.batch, data.output_extents, data.op.out_channels()),
          residual_(data.op.dtype(), data.residual.empty() ? 0 : data.batch, data.output_extents,
                    data.op.out_channels()),
          kernel_(make_kernel(context, polykernel)), weights_(pack_weights(context, kernel_, data.weights())) {
        input_.set(data.input);
        residual_.set(data.residual);
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        masks_.push_back(make_mask(context_));
        check(context_, distile_mask_set_bytes(masks_.back().get(), bytes.data(), data_.batch,
                                               data_.output_extents.height, data_.output_extents.width,
                                               int64_t{data_.output_extents.height} * data_.output_extents.width,
                                               data_.output_extents.width));
        return masks_.size() - 1;
    }

    void run(size_t mask) override {
        distile_run_args args{};
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

TrialData::TrialData(const Operator &of, int images, const Extents &extents, bool bordered)
    : op(of), batch(images), input_extents(extents), output_extents(of.output_of(extents)), border(bordered) {
    std::mt19937 random(1);
    input = draw(static_cast<size_t>(batch) * extents.height * extents.width * op.in_channels(), random);
    bias = draw(op.out_channels(), random);
    filter = draw(op.filter_elements(), random);
    residual = draw(op.has_residual() ? output_pixels() * op.out_channels() : 0, random);
    // What is stored is what the reference computes with.
    for (std::vector<float> *values : {&input, &filter, &residual}) {
        round_to(op.dtype(), *values);
    }
}

distile_weights_source TrialData::weights() const {
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OHWI;
    source.bias = bias.data();
    return source;
}

std::unique_ptr<TrialDevice> make_cpu_device(int threads) {
    return std::make_unique<CpuDevice>(threads);
}

distile_polykernel alone(const distile_polykernel &polykernel, size_t variant) {
    distile_polykernel single = polykernel;
    single.variants += variant;
    single.num_variants = 1;
    single.num_times = 0;
    single.otherwise = nullptr;
    return single;
}

std::string check_output(TrialRunner &runner, const TrialData &data, distile_math math,
                         const std::vector<uint8_t> &mask, size_t pixels) {
    const size_t channels = data.op.out_channels();
    // A value that no convolution of numbers from -1 to 1 has here, and every type does.
    const std::vector<float> before(data.output_pixels() * channels, -12352.0f);
    runner.set_output(before);
    runner.run(runner.add_mask(mask));
    const std::vector<float> after = runner.output();
    const auto active =
        static_cast<size_t>(std::count_if(mask.begin(), mask.end(), [](uint8_t byte) { return byte != 0; }));
    const size_t step = std::max<size_t>(1, active / std::max<size_t>(pixels, 1));
    const auto [kind, conv] = data.op.schema().convolution(data.op);
    const Conv2dReference reference(conv, data.weights(), kind);
    BorderedTensor input(data.batch, data.input_extents.height, data.input_extents.width, data.op.in_channels());
    BorderedTensor residual(data.batch, data.output_extents.height, data.output_extents.width, data.op.out_channels());
    input.set(data.input.data());
    if (!data.residual.empty()) {
        residual.set(data.residual.data());
    }
    const distile_math multiplied = math == DISTILE_MATH_TF32 ? math : DISTILE_MATH_FLOAT32;
    std::vector<double> sums, scales;
    size_t seen = 0;
    for (size_t pixel = 0; pixel < mask.size(); pixel++) {
        const auto x = static_cast<int>(pixel % data.output_extents.width);
        const auto y = static_cast<int>(pixel / data.output_extents.width % data.output_extents.height);
        const auto n = static_cast<int>(pixel / data.output_extents.width / data.output_extents.height);
        const auto where = [&] {
            return " at image " + std::to_string(n) + ", row " + std::to_string(y) + ", column " + std::to_string(x);
        };
        if (mask[pixel] == 0) {
            if (std::memcmp(&before[pixel * channels], &after[pixel * channels], channels * sizeof(float)) != 0) {
                return "an inactive pixel was written" + where();
            }
            continue;
        }
        if (seen++ % step != 0) {
            continue;
        }
        reference.sums(input.view(), data.residual.empty() ? nullptr : &residual.view(), n, y, x, sums, &scales);
        for (size_t channel = 0; channel < channels; channel++) {
            const double expected = apply_epilogue(conv.epilogue, sums[channel]);
            const double got = after[pixel * channels + channel];
            const double error = error_bound(data.op.dtype().dtype, expected, scales[channel], multiplied);
            if (!(std::abs(got - expected) <= error + 1e-6)) {
                return "channel " + std::to_string(channel) + where() + " is " + std::to_string(got) + ", not " +
                       std::to_string(expected);
            }
        }
    }
    return "";
}

}  // namespace distile
