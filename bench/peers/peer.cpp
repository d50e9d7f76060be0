#include "bench/peers/peer.h"
#include "bench/peers/peer_dense.h"
#include "bench/peers/peer_onednn.h"
#include <fmt/core.h>
#include <stdexcept>
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

Peer &Peers::get(const std::string &name, Problem &problem, MaskedOperator &masked) {
    if (missing_.count(name) != 0) {
        throw PeerMissing(missing_.at(name));
    }
    std::unique_ptr<Peer> &known = peers_[name];
    if (!known) {
        try {
            known = make_peer(name, problem, masked, AlignedFloats(problem.output_size()));
        } catch (const PeerMissing &error) {
            missing_[name] = error.what();
            throw;
        }
    }
    return *known;
}

double Peers::check(const std::string &name, bool bordered, Problem &problem) {
    const Peer &peer = *peers_.at(name);
    double &error = errors_.try_emplace({name, bordered}, -1).first->second;
    if (error < 0) {
        error = relative_error(peer.result(), problem.reference());
    }
    if (!(error <= peer.tolerance())) {
        throw std::runtime_error(fmt::format("the peer's output differs from plain loops by {} of the largest value; "
                                             "{} is allowed",
                                             error, peer.tolerance()));
    }
    return error;
}

}  // namespace distile::bench
