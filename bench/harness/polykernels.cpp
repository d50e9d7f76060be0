#include "bench/harness/operators.h"
#include "bench/harness/peer_missing.h"
#include "linked_polykernels.h"

namespace distile::bench {

const distile_polykernel &find_polykernel(const std::string &name) {
    for (const auto &[known, polykernel] : linked_polykernels) {
        if (name == known) {
            return *polykernel;
        }
    }
    throw PeerMissing(
        "this program was built without a PolyKernel '" + name +
        "' and --objects brought none; `make bench` builds those for CPUs, and `make bench-gpu-pack` those for GPUs");
}

}  // namespace distile::bench
