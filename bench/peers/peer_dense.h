/** \file
 * Our own dense candidate as a peer.
 */
#ifndef DISTILE_BENCH_PEER_DENSE_H
#define DISTILE_BENCH_PEER_DENSE_H

#include "bench/peers/peer.h"

namespace distile::bench {

/** Throws PeerMissing if the PolyKernel has no dense candidate. */
std::unique_ptr<Peer> make_dense_peer(Problem &problem, MaskedOperator &masked, AlignedFloats output);

}  // namespace distile::bench

#endif
