// Replaces peer_onednn.cpp where oneDNN was not found.
#include "bench/peers/peer_onednn.h"

namespace distile::bench {

namespace {

constexpr const char *reason = "this program was built without oneDNN; run 'cmake/setup.sh bench', configure and build "
                               "again";

}  // namespace

std::unique_ptr<Peer> make_onednn_peer(Problem &, AlignedFloats) {
    throw PeerMissing(reason);
}

std::unique_ptr<Peer> make_onednn_any_peer(Problem &, AlignedFloats) {
    throw PeerMissing(reason);
}

std::string onednn_description() {
    return reason;
}

}  // namespace distile::bench
