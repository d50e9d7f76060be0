#include "dense_peer.h"
#include "peer_missing.h"
#include <fmt/core.h>

namespace distile::bench {

namespace {

class DenseGpuPeer : public GpuPeer {
public:
    explicit DenseGpuPeer(const GpuWorkbench &bench)
        : polykernel_(taken_polykernel(*bench.problem.op().polykernel, bench.kernel)),
          variant_(dense_variant(polykernel_)),
          bytes_(make_byte_mask({"dense"}, bench.problem.batch(), bench.output_tensor().height,
                                bench.output_tensor().width)),
          call_(bench, bytes_), mask_(make_mask(bench.context)) {
        if (!variant_) {
            throw PeerMissing(fmt::format("'{}' has no dense variant", polykernel_.name));
        }
        // Set once, because a dense operator needs no mask.
        call_.set(mask_);
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

private:
    const distile_polykernel &polykernel_;
    const char *variant_;
    ByteMask bytes_;
    MaskedCall call_;
    Mask mask_;
};

}  // namespace

std::unique_ptr<GpuPeer> make_dense_gpu_peer(const GpuWorkbench &bench) {
    return std::make_unique<DenseGpuPeer>(bench);
}

}  // namespace distile::bench
