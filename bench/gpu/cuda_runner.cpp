#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/masked_call.h"
#include "bench/harness/masks.h"
#include <fmt/core.h>
#include <stdexcept>

namespace distile::bench {

CudaRunner::CudaRunner(CudaRunnerOptions options)
    : options_(std::move(options)), slice_(options_.multiprocessors),
      context_(make_context(slice_, &traced_, DISTILE_MATH_FLOAT32)),
      tf32_context_(make_context(slice_, &traced_, DISTILE_MATH_TF32)) {
    try {
        cudnn_ = std::make_unique<Cudnn>(slice_, options_.peer_seconds);
    } catch (const PeerMissing &error) {
        no_cudnn_ = error.what();
    }
    try {
        cublas_ = std::make_unique<Cublas>(slice_);
    } catch (const PeerMissing &error) {
        no_cublas_ = error.what();
    }
}

std::string CudaRunner::cudnn_description() const {
    return cudnn_ ? cudnn_->description() : "none: " + no_cudnn_;
}

std::string CudaRunner::cublas_description() const {
    return cublas_ ? cublas_->description() : "none: " + no_cublas_;
}

const distile_polykernel &CudaRunner::find(const std::string &name) const {
    const OwnKernel *own = options_.own ? options_.own->find(name) : nullptr;
    return own ? own->object.polykernel() : find_polykernel(name);
}

Kernel CudaRunner::load_kernel(const Context &context, const std::string &name) const {
    Kernel kernel;
    try {
        kernel = make_kernel(context, find(name));
    } catch (const Error &error) {
        if (error.status() == DISTILE_ERROR_UNSUPPORTED_DEVICE) {
            throw PeerMissing(error.what());
        }
        throw;
    }
    std::vector<std::string> times = options_.times;
    const OwnKernel *own = options_.own ? options_.own->find(name) : nullptr;
    if (own && !own->times.empty()) {
        times.insert(times.begin(), own->times);
    }
    for (const std::string &path : times) {
        const distile_status status = distile_kernel_load_times(kernel.get(), path.c_str());
        if (status != DISTILE_ERROR_OTHER_OPERATOR) {
            check(context, status);
        }
    }
    return kernel;
}

GpuWorkbench &CudaRunner::workbench(Slot &slot, const OperatorSpec &spec, const Numerics &numerics, int32_t batch) {
    const std::string kernel_key = fmt::format("{}/{}", spec.polykernel, numerics.name);
    const std::string key = fmt::format("{}/{}/n{}", spec.name, kernel_key, batch);
    if (key == slot.key && slot.bench) {
        return *slot.bench;
    }
    // Free the old one first, because both together need twice the memory.
    slot.bench.reset();
    const bool tf32 = numerics.math == DISTILE_MATH_TF32;
    const Context &context = tf32 ? tf32_context_ : context_;
    const BenchOperator op = find_operator(options_.data + "/operators.csv", spec, find(spec.polykernel));
    Kernel &kernel = kernels_[kernel_key];
    if (!kernel) {
        kernel = load_kernel(context, spec.polykernel);
    }
    // Otherwise strict float32 would run under the name of TF32.
    if (tf32 && taken_polykernel(*op.polykernel, kernel).math != DISTILE_MATH_TF32) {
        throw PeerMissing(fmt::format("'{}' has no code in TF32 for this GPU", op.polykernel->name));
    }
    slot.bench = std::make_unique<GpuWorkbench>(context, slice_, GpuWorkbench::Libraries{cudnn_.get(), cublas_.get()},
                                                op, numerics, batch, kernel);
    slot.key = key;
    return *slot.bench;
}

void CudaRunner::run(const Row &row, Json &result) {
    result["backend"] = "cuda";
    result["device"] = slice_.device();
    std::visit([&](const auto &what) { measure(what, result); }, row.what);
}

void CudaRunner::profile(const Row &row, const std::string &variant) {
    const auto *convolution = std::get_if<ConvolutionRow>(&row.what);
    if (!convolution) {
        throw std::runtime_error("the row '" + row.name + "' is not of a masked operator, as --profile needs");
    }
    const auto [bench, bytes] = prepare(*convolution);
    const MaskedCall call(bench, bytes, {convolution->bordered, convolution->zero});
    call.checked(variant.c_str());
    const Mask known = make_mask(bench.context);
    call.set(known);
    slice_.synchronise();
    // Not every toolkit has the header that declares these functions of the driver.
    using Mark = CUresult (*)();
    call_driver<Mark>("cuProfilerStart");
    call.run(known, variant.c_str());
    slice_.synchronise();
    call_driver<Mark>("cuProfilerStop");
}

ByteMask CudaRunner::draw(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width) const {
    return make_byte_mask(spec, batch, height, width, options_.data + "/masks");
}

}  // namespace distile::bench
