#include "distile_conv3x3_128.h"
#include "distile_conv3x3_256.h"
#include "operators.h"
#include <stdexcept>

namespace distile::bench {

const distile_polykernel &cpu_polykernel(const std::string &name) {
    if (name == "conv3x3_256") {
        return distile_conv3x3_256;
    }
    if (name == "conv3x3_128") {
        return distile_conv3x3_128;
    }
    throw std::runtime_error("this program was built without a PolyKernel '" + name + "'");
}

}  // namespace distile::bench
