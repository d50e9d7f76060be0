/** \file
 * Calls of quantized operators on the GPU, with tensors in the host's memory.
 */
#ifndef DISTILE_TESTS_QUANTIZED_CALL_H
#define DISTILE_TESTS_QUANTIZED_CALL_H

#include "tests/cuda/gpu_session.h"
#include "tests/support/quantized_model.h"
#include <algorithm>
#include <cstdint>
#include <vector>

namespace distile {

/** A tensor of the host's on the device. */
class OnDevice {
public:
    explicit OnDevice(const QuantizedTensor &host) : memory_({host.bytes, host.bytes + host.count}), view_(host.view) {
        view_.data = memory_.data() + (static_cast<uint8_t *>(host.view.data) - host.bytes);
    }
    const distile_tensor &view() const {
        return view_;
    }
    void download(const QuantizedTensor &host) const {
        const std::vector<uint8_t> now = memory_.get();
        std::copy(now.begin(), now.end(), host.bytes);
    }

private:
    DeviceArray<uint8_t> memory_;
    distile_tensor view_;
};

/** A call of a variant; -1: of the one that the dispatcher chooses. */
inline void run_on_device(const Gpu &gpu, const Kernel &kernel, const Weights &weights, int32_t variant,
                          const QuantizedCall &call) {
    const OnDevice input(call.input), output(call.output);
    const bool has_own_residual = call.residual && call.residual != &call.output;
    const OnDevice residual(has_own_residual ? *call.residual : call.output);
    const distile_tensor &view = output.view();
    const DeviceArray<uint8_t> bytes(call.mask);
    const Mask mask = gpu.make_mask();
    gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), view.batch, view.height, view.width,
                                     int64_t{view.height} * view.width, view.width));
    distile_run_args args{};
    args.input = &input.view();
    args.output = &view;
    args.residual = has_own_residual ? &residual.view() : call.residual ? &view : nullptr;
    args.weights = weights.get();
    args.mask = mask.get();
    args.inactive = call.run.inactive;
    args.store = call.run.store;
    gpu.check(variant < 0 ? distile_run(kernel.get(), &args) : distile_run_variant(kernel.get(), variant, &args));
    gpu.finish();
    output.download(call.output);
}

}  // namespace distile

#endif
