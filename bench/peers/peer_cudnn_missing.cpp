#include "bench/harness/peer_missing.h"
#include "bench/peers/gpu_peer.h"

namespace distile::bench {

struct Cudnn::Session {};

Cudnn::Cudnn(const GpuSlice &, double) {
    throw PeerMissing("this program was built without cuDNN's headers; `cmake/setup.sh bench-gpu` installs them");
}

Cudnn::~Cudnn() = default;

std::string Cudnn::description() const {
    return "";
}

std::unique_ptr<GpuPeer> Cudnn::convolution(distile_operator_kind, const distile_conv2d &, const distile_tensor &,
                                            const void *, const distile_tensor &, distile_math, const Check &) const {
    return nullptr;
}

}  // namespace distile::bench
