#include "distile_conv3x3_128_avx2.h"
#include "distile_conv3x3_128_avx512.h"
#include "distile_conv3x3_256_avx2.h"
#include "distile_conv3x3_256_avx512.h"
#include "operators.h"
#include <stdexcept>

namespace distile::bench {

std::vector<const distile_polykernel *> cpu_polykernels(const std::string &name) {
    if (name == "conv3x3_256") {
        return {&distile_conv3x3_256_avx512, &distile_conv3x3_256_avx2};
    }
    if (name == "conv3x3_128") {
        return {&distile_conv3x3_128_avx512, &distile_conv3x3_128_avx2};
    }
    throw std::runtime_error("this program was built without a PolyKernel '" + name + "'");
}

}  // namespace distile::bench
