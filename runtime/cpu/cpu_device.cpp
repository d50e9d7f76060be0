#include "runtime/cpu/cpu_device.h"
#include "kernels/call.h"
#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/cpu_features.h"
#include "runtime/cpu/cpu_mask.h"
#include "runtime/cpu/cpu_planner.h"
#include "runtime/cpu/general/general_polykernel.h"
#include "runtime/cpu/products/listed_convolution.h"
#include "runtime/cpu/stage/cpu_stage.h"
#include "runtime/cpu/stage/cpu_target.h"
#include "runtime/group/exchange.h"
#include "runtime/tensor/tensor.h"
#include <cstring>

namespace distile {

CpuDevice::CpuDevice(distile_context &given) : Device(given) {
}

CpuDevice::~CpuDevice() = default;

const Exchange *CpuDevice::exchange() const {
    return &process_exchange;
}

const void *CpuDevice::memory_space() const {
    static const char host = 0;
    return &host;
}

std::unique_ptr<distile_mask> CpuDevice::make_mask() {
    return std::make_unique<CpuMask>(context);
}

std::unique_ptr<distile_planner> CpuDevice::make_planner(const PlannerSettings &settings) {
    return std::make_unique<CpuPlanner>(context, settings);
}

std::shared_ptr<const void> CpuDevice::upload(const void *from, size_t bytes) {
    return make_filled(bytes, [&](void *to) { std::memcpy(to, from, bytes); });
}

std::shared_ptr<const void> CpuDevice::make_filled(size_t bytes, const std::function<void(void *)> &fill) {
    const HostMemory memory = context.memory;
    void *made = memory.allocate(bytes);
    if (!made) {
        throw std::bad_alloc();
    }
    // The shared_ptr frees the memory even if its constructor throws.
    std::shared_ptr<const void> owned(made, [memory](const void *held) { memory.free(const_cast<void *>(held)); });
    fill(made);
    return owned;
}

ScratchMemory CpuDevice::take_scratch(size_t bytes) {
    Scratch *scratch = &context.scratch;
    ScratchMemory memory(scratch->take(bytes), [scratch](void *held) { scratch->give_back(held); });
    if (!memory) {
        throw std::bad_alloc();
    }
    return memory;
}

const PixelProducts &CpuDevice::products() {
    if (!products_) {
        products_ = &choose_products(known_pixel_products(), context);
    }
    return *products_;
}

const QuantizedProducts &CpuDevice::quantized_products() {
    if (!quantized_products_) {
        quantized_products_ = &choose_products(known_quantized_products(), context);
    }
    return *quantized_products_;
}

const StageTarget *CpuDevice::stage_target() const {
    return &cpu_stage_target;
}

void CpuDevice::run_stage(const Stage &stage, StageTrace *trace) {
    if (!stages_) {
        stages_ = std::make_unique<CpuStageRunner>(*this);
    }
    stages_->run(stage, trace);
}

std::string CpuDevice::missing_features(const distile_polykernel &polykernel) const {
    return missing_cpu_feature(polykernel.features, context.options.cpu_features);
}

int64_t CpuDevice::most_virtual_pixels() const {
    return largest_span;
}

RunResult CpuDevice::run(LoadedCode *, const VariantCalls &calls, const Zeros *zeros) {
    if (zeros) {
        write(*zeros);
    }
    RunResult result{};
    for (int32_t i = 0; i < calls.num_calls && result.code == 0; i++) {
        calls.calls[i].hooks = &context;
        if (is_general(calls.polykernel)) {
            run_general(*this, calls.polykernel, calls.calls[i]);
            continue;
        }
        const int code = calls.polykernel.variants[calls.variants[i]].run(&calls.calls[i]);
        result = {code, code == DISTILE_CALL_OUT_OF_MEMORY ? DISTILE_ERROR_OUT_OF_MEMORY : DISTILE_ERROR_KERNEL, i};
    }
    return result;
}

}  // namespace distile

extern "C" distile_status distile_context_create(const distile_context_options *options, distile_context **context) {
    return distile::create_context(
        "distile_context_create", options,
        [](distile_context &created) -> std::unique_ptr<distile::Device> {
            const char *features = created.options.cpu_features;
            if (features && !distile::are_cpu_features(features)) {
                throw distile::Failure{distile::fail(&created, DISTILE_ERROR_BAD_VALUE,
                                                     "cpu_features \"%s\" names an unknown feature", features)};
            }
            return std::make_unique<distile::CpuDevice>(created);
        },
        context);
}
