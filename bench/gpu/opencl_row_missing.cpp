// Stands in for opencl_row.cpp in builds without OpenCL's headers.
#include "bench/gpu/cuda_runner.h"

namespace distile::bench {

void CudaRunner::measure(const OpenClRow &, Json &) {
    throw PeerMissing("this program was built without OpenCL");
}

}  // namespace distile::bench
