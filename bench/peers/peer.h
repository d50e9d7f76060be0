/** \file
 * The other side of a row: a dense operator by another library, or our own dense candidate.
 */
#ifndef DISTILE_BENCH_PEER_H
#define DISTILE_BENCH_PEER_H

#include "bench/cpu/masked.h"
#include "bench/harness/peer_missing.h"
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace distile::bench {

class Peer {
public:
    virtual ~Peer() = default;
    /** Name and version. */
    virtual std::string description() const = 0;
    /** The code that it runs. */
    virtual std::string implementation(bool bordered) = 0;
    /** Computes every output pixel. */
    virtual void run(bool bordered) = 0;
    /** The output of the last run. */
    virtual const float *result() const = 0;
    /** The largest error that its results may have, relative to the largest value. */
    virtual double tolerance() const = 0;
    /** The peer as a dense candidate of our kernels, valid as long as the peer. Throws PeerMissing where it cannot
     * be one. */
    virtual distile_dense_candidate candidate();
};

/** A peer by its name in the rows, with its weights packed, that computes into `output` of problem.output_size()
 * floats. Throws PeerMissing. */
std::unique_ptr<Peer> make_peer(const std::string &name, Problem &problem, MaskedOperator &masked,
                                AlignedFloats output);

/** The peers of one problem, each made once. */
class Peers {
public:
    /** A peer by its name in the rows. Throws PeerMissing. */
    Peer &get(const std::string &name, Problem &problem, MaskedOperator &masked);
    /** The largest difference of a peer's last result to plain loops, by the largest value; looked for once for each
     * layout. Throws std::runtime_error if it is too large. */
    double check(const std::string &name, bool bordered, Problem &problem);

private:
    std::map<std::string, std::unique_ptr<Peer>> peers_;
    std::map<std::string, std::string> missing_;            /**< Reasons, so that a missing peer is looked for once. */
    std::map<std::pair<std::string, bool>, double> errors_; /**< By peer and layout. */
};

}  // namespace distile::bench

#endif
