#include "host_tensor.h"
#include "opencl_array.h"
#include "trial_runner.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace distile {

namespace {

Context make_opencl_context() {
    distile_context *context = nullptr;
    const distile_status status = distile_opencl_context_create(nullptr, nullptr, &context);
    return own_context(status, context);
}

class OpenClRunner : public TrialRunner {
public:
    OpenClRunner(const Context &context, const distile_polykernel &polykernel, const TrialData &data)
        : context_(context), queue_(context.get()), variant_(polykernel.variants[0].name), data_(data),
          type_(data.op.dtype()), input_(context.get(), store_as(type_, data.input)),
          output_(context.get(), data.output_pixels() * data.op.out_channels() * type_.bytes),
          kernel_(make_kernel(context, polykernel)), weights_(pack_weights(context, kernel_, data.weights())) {
        if (!data.residual.empty()) {
            residual_ = std::make_unique<OpenClArray<char>>(context.get(), store_as(type_, data.residual));
        }
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        masks_.push_back(make_mask(context_));
        const OpenClArray<uint8_t> on_device(context_.get(), bytes);
        const auto [height, width] = data_.output_extents;
        check(context_, distile_mask_set_bytes(masks_.back().get(), on_device.data(), data_.batch, height, width,
                                               int64_t{height} * width, width));
        return masks_.size() - 1;
    }

    void run(size_t mask) override {
        launch(mask);
        queue_.finish();
    }

    double time_us(size_t mask) override {
        // One call alone would hold the time that the host takes to enqueue it and to wait.
        constexpr double enough_us = 500;
        run(mask);
        const double alone_us = time_calls_us(mask, 1);
        return time_calls_us(mask, static_cast<int>(std::clamp(std::ceil(enough_us / alone_us), 1.0, 64.0)));
    }

    void set_output(const std::vector<float> &values) override {
        output_.set(store_as(type_, values));
    }

    std::vector<float> output() override {
        const std::vector<char> stored = output_.get();
        return read_as(type_, stored.data(), stored.size() / type_.bytes);
    }

private:
    /** Of each of some calls in a row, waiting for the last. */
    double time_calls_us(size_t mask, int calls) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < calls; i++) {
            launch(mask);
        }
        queue_.finish();
        return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
    }
    void launch(size_t mask) {
        const distile_tensor input =
            make_tensor(type_, input_.data(), data_.batch, data_.input_extents, data_.op.in_channels());
        const distile_tensor output =
            make_tensor(type_, output_.data(), data_.batch, data_.output_extents, data_.op.out_channels());
        distile_tensor residual = output;
        residual.data = residual_ ? residual_->data() : nullptr;
        distile_run_args args{};
        args.input = &input;
        args.output = &output;
        args.residual = residual_ ? &residual : nullptr;
        args.weights = weights_.get();
        args.mask = masks_[mask].get();
        args.variant = variant_;
        check(context_, distile_run(kernel_.get(), &args));
    }

    const Context &context_;
    OpenClQueue queue_;
    const char *variant_;
    const TrialData &data_;
    const DataType &type_;
    OpenClArray<char> input_, output_;
    std::unique_ptr<OpenClArray<char>> residual_;
    Kernel kernel_;
    Weights weights_;
    std::vector<Mask> masks_;
};

class OpenClTrials : public TrialDevice {
public:
    std::string name() const override {
        const OpenClQueue queue(context_.get());
        cl_device_id device = nullptr;
        check_opencl(queue->clGetCommandQueueInfo(queue.get(), CL_QUEUE_DEVICE, sizeof(cl_device_id), &device, nullptr),
                     "clGetCommandQueueInfo");
        char name[256] = "";
        check_opencl(queue->clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof(name), name, nullptr), "clGetDeviceInfo");
        return name;
    }

    std::unique_ptr<TrialRunner> runner(const distile_polykernel &polykernel, const TrialData &data) override {
        return std::make_unique<OpenClRunner>(context_, polykernel, data);
    }

    int units() const {
        return distile_context_threads(context_.get());
    }

private:
    Context context_ = make_opencl_context();
};

}  // namespace

std::unique_ptr<TrialDevice> make_opencl_device(int units) {
    auto device = std::make_unique<OpenClTrials>();
    if (units != 0 && units != device->units()) {
        throw std::runtime_error("an OpenCL device computes with all of its " + std::to_string(device->units()) +
                                 " compute units, not with " + std::to_string(units) +
                                 ": say so, or write their number into the device profile as \"cores\"");
    }
    return device;
}

int opencl_units() {
    return OpenClTrials().units();
}

}  // namespace distile
