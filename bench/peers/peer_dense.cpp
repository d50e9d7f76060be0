#include "bench/peers/peer_dense.h"
#include <fmt/core.h>
#include <utility>

namespace distile::bench {

namespace {

class DensePeer : public Peer {
public:
    DensePeer(const Problem &problem, MaskedOperator &masked, AlignedFloats output)
        : masked_(masked), memory_(std::move(output)), output_(problem.output(memory_.data())) {
        if (!masked.dense_variant()) {
            throw PeerMissing(fmt::format("'{}' has no dense candidate", masked.polykernel().name));
        }
    }

    std::string description() const override {
        return fmt::format("distile {}.{}.{}", DISTILE_VERSION_MAJOR, DISTILE_VERSION_MINOR, DISTILE_VERSION_PATCH);
    }
    std::string implementation(bool) override {
        return fmt::format("{}:{}", masked_.polykernel().name, masked_.dense_variant());
    }
    void run(bool bordered) override {
        masked_.run_dense(bordered, output_);
    }
    const float *result() const override {
        return memory_.data();
    }
    double tolerance() const override {
        return 1e-4;
    }

private:
    MaskedOperator &masked_;
    AlignedFloats memory_;
    distile_tensor output_;
};

}  // namespace

std::unique_ptr<Peer> make_dense_peer(Problem &problem, MaskedOperator &masked, AlignedFloats output) {
    return std::make_unique<DensePeer>(problem, masked, std::move(output));
}

}  // namespace distile::bench
