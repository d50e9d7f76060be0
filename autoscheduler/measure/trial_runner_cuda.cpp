#include "gpu.h"
#include "gpu_measure.h"
#include "host_tensor.h"
#include "trial_runner.h"
#include <distile/distile.hpp>

namespace distile {

namespace {

/** A slice of the GPU, opened by the runtime. */
struct Opened {
    explicit Opened(int multiprocessors) : slice(multiprocessors) {
    }

    GpuSlice slice;
    Context context = make_context(slice);
};

class CudaRunner : public TrialRunner {
public:
    CudaRunner(const Opened &gpu, const distile_polykernel &polykernel, const TrialData &data)
        : gpu_(gpu), variant_(polykernel.variants[0].name), data_(data), type_(data.op.dtype()),
          input_(store_as(type_, data.input)),
          output_(std::vector<char>(data.output_pixels() * data.op.out_channels() * type_.bytes)),
          kernel_(make_kernel(gpu.context, polykernel)), weights_(pack_weights(gpu.context, kernel_, data.weights())) {
        if (!data.residual.empty()) {
            residual_ = std::make_unique<DeviceArray<char>>(store_as(type_, data.residual));
        }
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        masks_.push_back(make_mask(gpu_.context));
        graphs_.emplace_back();
        const DeviceArray<uint8_t> device_bytes(bytes);
        check(gpu_.context, distile_mask_set_bytes(masks_.back().get(), device_bytes.data(), data_.batch,
                                                   data_.output_extents.height, data_.output_extents.width,
                                                   int64_t{data_.output_extents.height} * data_.output_extents.width,
                                                   data_.output_extents.width));
        // The bytes must stay until the stream has read them.
        gpu_.slice.synchronise();
        return masks_.size() - 1;
    }

    void run(size_t mask) override {
        launch(mask);
        gpu_.slice.synchronise();
    }

    double time_us(size_t mask) override {
        if (!graphs_[mask]) {
            graphs_[mask] = std::make_unique<GpuGraph>(gpu_.slice, [&] { launch(mask); });
        }
        return graphs_[mask]->time();
    }

    void set_output(const std::vector<float> &values) override {
        output_.set(store_as(type_, values));
    }

    std::vector<float> output() override {
        const std::vector<char> stored = output_.get();
        return read_as(type_, stored.data(), stored.size() / type_.bytes);
    }

private:
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
        check(gpu_.context, distile_run(kernel_.get(), &args));
    }

    const Opened &gpu_;
    const char *variant_;
    const TrialData &data_;
    const DataType &type_;
    DeviceArray<char> input_, output_;
    std::unique_ptr<DeviceArray<char>> residual_;
    Kernel kernel_;
    Weights weights_;
    std::vector<Mask> masks_;
    std::vector<std::unique_ptr<GpuGraph>> graphs_;
};

class CudaDevice : public TrialDevice {
public:
    explicit CudaDevice(int multiprocessors) : gpu_(multiprocessors) {
    }

    std::string name() const override {
        return gpu_.slice.device();
    }

    std::unique_ptr<TrialRunner> runner(const distile_polykernel &polykernel, const TrialData &data) override {
        return std::make_unique<CudaRunner>(gpu_, polykernel, data);
    }

private:
    Opened gpu_;
};

}  // namespace

std::unique_ptr<TrialDevice> make_cuda_device(int multiprocessors) {
    return std::make_unique<CudaDevice>(multiprocessors);
}

}  // namespace distile
