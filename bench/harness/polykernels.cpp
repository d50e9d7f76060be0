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
    throw PeerMissing("this program was built without a PolyKernel '" + name +
                      "' and --objects brought none; for GPUs, `make bench-gpu-pack` makes them all");
}

}  // namespace distile::bench
