#include "cuda_runner.h"
#include "masks.h"
#include <chrono>
#include <fmt/core.h>

namespace distile::bench {

CudaRunner::CudaRunner(CudaRunnerOptions options)
    : options_(std::move(options)), slice_(options_.multiprocessors), context_(make_context(slice_, &traced_)) {
    try {
        cudnn_ = std::make_unique<Cudnn>(slice_, options_.peer_seconds);
    } catch (const PeerMissing &error) {
        no_cudnn_ = error.what();
    }
}

std::string CudaRunner::peer_description() const {
    return cudnn_ ? cudnn_->description() : "none: " + no_cudnn_;
}

GpuWorkbench &CudaRunner::workbench(Slot &slot, const OperatorSpec &spec, int32_t batch) {
    const std::string key = fmt::format("{}/{}/n{}", spec.name, spec.polykernel, batch);
    if (key == slot.key && slot.bench) {
        return *slot.bench;
    }
    // Free the old one first, because both together need twice the memory.
    slot.bench.reset();
    const BenchOperator op = find_operator(options_.data + "/operators.csv", spec);
    Kernel &kernel = kernels_[spec.polykernel];
    if (!kernel) {
        kernel = make_kernel(context_, *op.polykernel);
        for (const std::string &path : options_.times) {
            const distile_status status = distile_kernel_load_times(kernel.get(), path.c_str());
            if (status != DISTILE_ERROR_OTHER_OPERATOR) {
                check(context_, status);
            }
        }
    }
    slot.bench = std::make_unique<GpuWorkbench>(context_, slice_, cudnn_.get(), op, batch, kernel);
    slot.key = key;
    return *slot.bench;
}

void CudaRunner::run(const Row &row, Json &result) {
    result["backend"] = "cuda";
    result["device"] = slice_.device();
    std::visit([&](const auto &what) { measure(what, result); }, row.what);
}

std::vector<Spread> CudaRunner::in_turns(const std::vector<const GpuGraph *> &graphs) const {
    // Long rounds vary less, so fewer are enough.
    constexpr int32_t least_rounds = 5;
    constexpr double enough_seconds = 1;
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const auto has_enough = [&](int32_t round) {
        return round >= least_rounds && std::chrono::duration<double>(Clock::now() - start).count() > enough_seconds;
    };
    std::vector<std::vector<double>> times(graphs.size());
    // The first round warms up and does not count.
    for (int32_t round = -1; round < options_.rounds && !has_enough(round); round++) {
        for (size_t i = 0; i < graphs.size(); i++) {
            const double time = graphs[i]->time();
            if (round >= 0) {
                times[i].push_back(time);
            }
        }
    }
    std::vector<Spread> spreads;
    spreads.reserve(times.size());
    for (std::vector<double> &series : times) {
        spreads.push_back(spread_of(std::move(series)));
    }
    return spreads;
}

ByteMask CudaRunner::draw(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width) const {
    return make_byte_mask(spec, batch, height, width, options_.data + "/masks");
}

}  // namespace distile::bench
