#include "peer.h"
#include "peer_dense.h"
#include "peer_onednn.h"
#include <utility>

namespace distile::bench {

distile_dense_candidate Peer::candidate() {
    throw PeerMissing(description() + " cannot be linked as a dense candidate");
}

std::unique_ptr<Peer> make_peer(const std::string &name, Problem &problem, MaskedOperator &masked,
                                AlignedFloats output) {
    if (name == "dense") {
        return make_dense_peer(problem, masked, std::move(output));
    }
    if (name == "onednn3") {
        return make_onednn_peer(problem, std::move(output));
    }
    if (name == "onednn3-any") {
        return make_onednn_any_peer(problem, std::move(output));
    }
    throw PeerMissing("this program knows no peer '" + name + "'; it knows 'onednn3', 'onednn3-any' and 'dense'");
}

}  // namespace distile::bench
