#include "bench/harness/peer_missing.h"
#include "bench/peers/gpu_peer.h"

namespace distile::bench {

struct Cublas::Session {};

Cublas::Cublas(const GpuSlice &) {
    throw PeerMissing("this program was built without cuBLAS's headers; `cmake/setup.sh bench-gpu` installs them");
}

Cublas::~Cublas() = default;

std::string Cublas::description() const {
    return "";
}

std::unique_ptr<GpuPeer> Cublas::linear(const LinearShape &, const void *, const void *, const void *, void *) const {
    return nullptr;
}

std::unique_ptr<GpuPeer> Cublas::linear(const LinearShape &, const void *, const std::vector<const void *> &,
                                        const void *, void *) const {
    return nullptr;
}

}  // namespace distile::bench
