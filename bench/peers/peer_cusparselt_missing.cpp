#include "bench/harness/peer_missing.h"
#include "bench/peers/gpu_peer.h"

namespace distile::bench {

struct CusparseLt::Session {};

CusparseLt::CusparseLt(const GpuSlice &) {
    throw PeerMissing("this build has no cuSPARSELt");
}

CusparseLt::~CusparseLt() = default;

std::string CusparseLt::description() const {
    return "";
}

std::unique_ptr<GpuPeer> CusparseLt::linear(const LinearShape &, const void *, const std::vector<const void *> &,
                                            const void *, void *) const {
    return nullptr;
}

}  // namespace distile::bench
