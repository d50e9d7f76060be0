#include "bench/gpu/dense_peer.h"
#include "bench/harness/measure.h"
#include "bench/harness/peer_missing.h"
#include <fmt/core.h>

namespace distile::bench {

namespace {

class DenseGpuPeer : public GpuPeer {
public:
    DenseGpuPeer(const GpuWorkbench &bench, const GpuSlice &slice)
        : polykernel_(taken_polykernel(*bench.problem.op().polykernel, bench.kernel)),
          bytes_(make_byte_mask({"dense"}, bench.problem.batch(), bench.output_tensor().height,
                                bench.output_tensor().width)),
          call_(bench, bytes_), mask_(make_mask(bench.context)) {
        // Set once, because a dense operator needs no mask.
        call_.set(mask_);
        double least = 0;
        for (int32_t i = 0; i < polykernel_.num_variants; i++) {
            const distile_variant &variant = polykernel_.variants[i];
            if (variant.dense != 0) {
                const double time = time_of(variant.name, slice);
                if (!variant_ || time < least) {
                    variant_ = variant.name;
                    least = time;
                }
            }
        }
        if (!variant_) {
            throw PeerMissing(fmt::format("'{}' has no dense variant", polykernel_.name));
        }
    }

    std::string description() const override {
        return fmt::format("distile {}.{}.{}", DISTILE_VERSION_MAJOR, DISTILE_VERSION_MINOR, DISTILE_VERSION_PATCH);
    }
    std::string implementation() const override {
        return fmt::format("{}:{}", polykernel_.name, variant_);
    }
    void run() const override {
        call_.run(mask_, variant_);
    }
    void run_into(void *) const override {
        throw PeerMissing("our own dense variants are candidates already");
    }

private:
    double time_of(const char *variant, const GpuSlice &slice) const {
        constexpr int rounds = 5;
        const GpuGraph graph(slice, [&] { call_.run(mask_, variant); });
        std::vector<double> times;
        times.reserve(rounds);
        for (int i = 0; i < rounds; i++) {
            times.push_back(graph.time());
        }
        return spread_of(std::move(times)).median;
    }

    const distile_polykernel &polykernel_;
    const char *variant_ = nullptr;
    ByteMask bytes_;
    MaskedCall call_;
    Mask mask_;
};

}  // namespace

std::unique_ptr<GpuPeer> make_dense_gpu_peer(const GpuWorkbench &bench, const GpuSlice &slice) {
    return std::make_unique<DenseGpuPeer>(bench, slice);
}

}  // namespace distile::bench
