/** \file
 * oneDNN as a peer.
 */
#ifndef DISTILE_BENCH_PEER_ONEDNN_H
#define DISTILE_BENCH_PEER_ONEDNN_H

#include "bench/peers/peer.h"

namespace distile::bench {

/** oneDNN in strict float32. Throws PeerMissing if this build has no oneDNN, or if it cannot use this machine. */
std::unique_ptr<Peer> make_onednn_peer(Problem &problem, AlignedFloats output);

/** oneDNN that may round inside (fpmath mode "any"). Throws PeerMissing also where that runs the same code as strict
 * float32, so that no row shows one thing under two names. */
std::unique_ptr<Peer> make_onednn_any_peer(Problem &problem, AlignedFloats output);

/** Its version and runtime, or why there is none. */
std::string onednn_description();

}  // namespace distile::bench

#endif
