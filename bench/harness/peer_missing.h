/** \file
 * The exception of a row that cannot be measured here.
 */
#ifndef DISTILE_BENCH_PEER_MISSING_H
#define DISTILE_BENCH_PEER_MISSING_H

#include <stdexcept>

namespace distile::bench {

/** A peer that this build, this machine or this row lacks. The row is then reported as skipped with the reason. */
class PeerMissing : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

}  // namespace distile::bench

#endif
