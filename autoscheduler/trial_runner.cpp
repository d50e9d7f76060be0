#include "trial_runner.h"
#include "profile.h"
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

/** The input that position j of the kernel adds to output o along an axis; negative, or beyond the input, if none. */
int input_at(distile_operator_kind kind, int o, int j, int stride, int pad, int dilation) {
    if (kind == DISTILE_MASKED_CONV_TRANSPOSE2D) {
        const int distance = o + pad - j * dilation;
        return distance % stride == 0 ? distance / stride : -1;
    }
    if (kind == DISTILE_MASKED_UPSAMPLE_CONV2D) {
        const int enlarged = o - pad + j * dilation;
        return enlarged < 0 ? -1 : enlarged / stride;
    }
    return o * stride - pad + j * dilation;
}

double apply_epilogue(double value, distile_epilogue epilogue) {
    switch (epilogue) {
    case DISTILE_EPILOGUE_NONE:
        return value;
    case DISTILE_EPILOGUE_RELU:
        return std::max(value, 0.0);
    case DISTILE_EPILOGUE_RELU6:
        return std::clamp(value, 0.0, 6.0);
    case DISTILE_EPILOGUE_SILU:
        return value / (1 + std::exp(-value));
    }
    return value;
}

class CpuRunner : public TrialRunner {
public:
    CpuRunner(const Context &context, const distile_polykernel &polykernel, const TrialData &data)
        : context_(context), variant_(polykernel.variants[0].name), data_(data), residual_(data.residual),
          output_(data.output_pixels() * data.conv.out_channels), kernel_(make_kernel(context, polykernel)) {
        const distile_conv2d &conv = data.conv;
        const auto [top, bottom, left, right] = data.border ? border_of(data.kind, conv) : Border{};
        const int64_t row = int64_t{data.width + left + right} * conv.in_channels;
        const int64_t image = row * (data.height + top + bottom);
        input_.resize(image * data.batch);
        input_view_ = distile_tensor_make(input_.data() + top * row + int64_t{left} * conv.in_channels, data.batch,
                                          data.height, data.width, conv.in_channels);
        input_view_.stride_h = row;
        input_view_.stride_n = image;
        input_view_.border_top = top;
        input_view_.border_bottom = bottom;
        input_view_.border_left = left;
        input_view_.border_right = right;
        const size_t line = static_cast<size_t>(data.width) * conv.in_channels;
        for (int n = 0; n < data.batch; n++) {
            for (int y = 0; y < data.height; y++) {
                std::copy_n(data.input.begin() +
                                static_cast<ptrdiff_t>(line * (static_cast<size_t>(n) * data.height + y)),
                            line, static_cast<float *>(input_view_.data) + n * image + y * row);
            }
        }
        output_view_ =
            distile_tensor_make(output_.data(), data.batch, data.output_height, data.output_width, conv.out_channels);
        residual_view_ = output_view_;
        residual_view_.data = residual_.data();
        distile_weights_source source{};
        source.filter = data.filter.data();
        source.order = DISTILE_OHWI;
        source.bias = data.bias.data();
        weights_ = pack_weights(context, kernel_, source);
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        masks_.push_back(make_mask(context_));
        check(context_, distile_mask_set_bytes(masks_.back().get(), bytes.data(), data_.batch, data_.output_height,
                                               data_.output_width, int64_t{data_.output_height} * data_.output_width,
                                               data_.output_width));
        return masks_.size() - 1;
    }

    void run(size_t mask) override {
        distile_run_args args{};
        args.input = &input_view_;
        args.output = &output_view_;
        args.residual = data_.conv.residual != 0 ? &residual_view_ : nullptr;
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
        std::copy(values.begin(), values.end(), output_.begin());
    }

    std::vector<float> output() override {
        return output_;
    }

private:
    const Context &context_;
    const char *variant_;
    const TrialData &data_;
    std::vector<float> input_, residual_, output_;
    distile_tensor input_view_{}, residual_view_{}, output_view_{};
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
        return device_name();
    }

    std::unique_ptr<TrialRunner> runner(const distile_polykernel &polykernel, const TrialData &data) override {
        return std::make_unique<CpuRunner>(context_, polykernel, data);
    }

private:
    Context context_;
};

}  // namespace

TrialData::TrialData(const Operator &op, int images, int rows, int columns, bool bordered)
    : kind(op.kind()), conv(op.conv2d()), batch(images), height(rows), width(columns),
      output_height(op.output_height(rows)), output_width(op.output_width(columns)), border(bordered) {
    std::mt19937 random(1);
    input = draw(static_cast<size_t>(batch) * height * width * conv.in_channels, random);
    bias = draw(conv.out_channels, random);
    filter = draw(static_cast<size_t>(conv.out_channels) * conv.kernel_h * conv.kernel_w * conv.in_channels, random);
    residual = draw(conv.residual != 0 ? output_pixels() * conv.out_channels : 0, random);
}

double TrialData::expected(size_t pixel, int channel, double &scale) const {
    const auto x = static_cast<int>(pixel % output_width), y = static_cast<int>(pixel / output_width % output_height);
    const size_t n = pixel / output_width / output_height;
    double sum = bias[channel];
    if (!residual.empty()) {
        sum += residual[pixel * conv.out_channels + channel];
    }
    scale = std::abs(sum);
    for (int row = 0; row < conv.kernel_h; row++) {
        for (int column = 0; column < conv.kernel_w; column++) {
            const int in_y = input_at(kind, y, row, conv.stride_h, conv.pad_top, conv.dilation_h);
            const int in_x = input_at(kind, x, column, conv.stride_w, conv.pad_left, conv.dilation_w);
            if (in_y < 0 || in_y >= height || in_x < 0 || in_x >= width) {
                continue;
            }
            const float *value = &input[((n * height + in_y) * width + in_x) * conv.in_channels];
            const float *weight =
                &filter[((static_cast<size_t>(channel) * conv.kernel_h + row) * conv.kernel_w + column) *
                        conv.in_channels];
            for (int i = 0; i < conv.in_channels; i++) {
                const double product = static_cast<double>(value[i]) * weight[i];
                sum += product;
                scale += std::abs(product);
            }
        }
    }
    return apply_epilogue(sum, conv.epilogue);
}

std::unique_ptr<TrialDevice> make_cpu_device(int threads) {
    return std::make_unique<CpuDevice>(threads);
}

std::string check_output(TrialRunner &runner, const TrialData &data, const std::vector<uint8_t> &mask, size_t pixels) {
    const size_t channels = data.conv.out_channels;
    // A value that no convolution of numbers from -1 to 1 has here.
    const std::vector<float> before(data.output_pixels() * channels, -12345.5f);
    runner.set_output(before);
    runner.run(runner.add_mask(mask));
    const std::vector<float> after = runner.output();
    const auto active =
        static_cast<size_t>(std::count_if(mask.begin(), mask.end(), [](uint8_t byte) { return byte != 0; }));
    const size_t step = std::max<size_t>(1, active / std::max<size_t>(pixels, 1));
    size_t seen = 0;
    for (size_t pixel = 0; pixel < mask.size(); pixel++) {
        const auto where = [&] {
            return " at image " + std::to_string(pixel / data.output_width / data.output_height) + ", row " +
                   std::to_string(pixel / data.output_width % data.output_height) + ", column " +
                   std::to_string(pixel % data.output_width);
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
        for (size_t channel = 0; channel < channels; channel++) {
            double scale = 0;
            const double expected = data.expected(pixel, static_cast<int>(channel), scale);
            const double got = after[pixel * channels + channel];
            if (!(std::abs(got - expected) <= 1e-5 * scale + 1e-6)) {
                return "channel " + std::to_string(channel) + where() + " is " + std::to_string(got) + ", not " +
                       std::to_string(expected);
            }
        }
    }
    return "";
}

}  // namespace distile
