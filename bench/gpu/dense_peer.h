/** \file
 * Our own dense variants as the peer of an operator on a GPU.
 */
#ifndef DISTILE_BENCH_DENSE_PEER_H
#define DISTILE_BENCH_DENSE_PEER_H

#include "bench/gpu/masked_call.h"

namespace distile::bench {

/** The fastest of them. Throws PeerMissing if the PolyKernel has none. Both must live as long as the peer. */
std::unique_ptr<GpuPeer> make_dense_gpu_peer(const GpuWorkbench &bench, const GpuSlice &slice);

}  // namespace distile::bench

#endif
