#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "autoscheduler/measure/gpu_runner.h"

namespace distile {

namespace {

/** A slice of the GPU, opened by the runtime. */
struct Opened {
    explicit Opened(int multiprocessors) : slice(multiprocessors) {
    }

    GpuSlice slice;
    Context context = make_context(slice);
};

class CudaRunner : public GpuRunner<DeviceArray<char>> {
public:
    CudaRunner(const Opened &gpu, const distile_polykernel &polykernel, const TrialData &data)
        : GpuRunner(gpu.context, polykernel, data,
                    [](const std::vector<char> &bytes) { return std::make_unique<DeviceArray<char>>(bytes); }),
          gpu_(gpu) {
    }

    size_t add_mask(const std::vector<uint8_t> &bytes) override {
        graphs_.emplace_back();
        return GpuRunner::add_mask(bytes);
    }

    double time_us(size_t mask) override {
        if (!graphs_[mask]) {
            graphs_[mask] = std::make_unique<GpuGraph>(gpu_.slice, [&] { launch(mask); });
        }
        return graphs_[mask]->time();
    }

private:
    void finish() override {
        gpu_.slice.synchronise();
    }

    const Opened &gpu_;
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
