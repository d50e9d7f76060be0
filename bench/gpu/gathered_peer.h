/** \file
 * A library's linear layer over the active tokens only: gathered before it, scattered after it.
 */
#ifndef DISTILE_BENCH_GATHERED_PEER_H
#define DISTILE_BENCH_GATHERED_PEER_H

#include "autoscheduler/measure/gpu_measure.h"
#include "bench/harness/masks.h"
#include "bench/peers/gpu_peer.h"

namespace distile::bench {

/** Arrays of the device: all tokens of the input and the output, and the weights as Cublas::linear() has them. */
struct LinearArrays {
    const void *input, *filter, *bias;
    void *output;
};

/** The list of active tokens is made beforehand. `shape.rows` counts all tokens. `slice` and `cublas` must live as long
 * as the peer. */
std::unique_ptr<GpuPeer> make_gathered_peer(const GpuSlice &slice, const Cublas &cublas, const LinearShape &shape,
                                            const LinearArrays &arrays, const ByteMask &mask);

}  // namespace distile::bench

#endif
