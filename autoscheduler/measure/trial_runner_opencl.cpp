#include "autoscheduler/measure/gpu_runner.h"
#include "autoscheduler/measure/opencl_array.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace distile {

namespace {

class OpenClRunner : public GpuRunner<OpenClArray<char>> {
public:
    OpenClRunner(const Context &context, const distile_polykernel &polykernel, const TrialData &data)
        : GpuRunner(context, polykernel, data,
                    [&](const std::vector<char> &bytes) {
                        return std::make_unique<OpenClArray<char>>(context.get(), bytes);
                    }),
          queue_(context.get()) {
    }

    double time_us(size_t mask) override {
        // One call alone would hold the time that the host takes to enqueue it and to wait.
        constexpr double enough_us = 500;
        run(mask);
        const double alone_us = time_calls_us(mask, 1);
        return time_calls_us(mask, static_cast<int>(std::clamp(std::ceil(enough_us / alone_us), 1.0, 64.0)));
    }

private:
    void finish() override {
        queue_.finish();
    }
    /** The time of each of `calls` calls in a row, waiting for the last. */
    double time_calls_us(size_t mask, int calls) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < calls; i++) {
            launch(mask);
        }
        finish();
        return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
    }

    OpenClQueue queue_;
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
