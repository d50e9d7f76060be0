#include "distile_conv1x1_576_96.h"
#include "distile_conv1x1_96_576.h"
#include "distile_conv3x3_128.h"
#include "distile_conv3x3_256.h"
#include "distile_conv_transpose4x4s2_256_128.h"
#include "distile_depthwise3x3_576.h"
#include "distile_depthwise3x3s2_576.h"
#include "distile_upsample2_conv3x3_256.h"
#include "operators.h"
#include <map>
#include <stdexcept>

namespace distile::bench {

const distile_polykernel &cpu_polykernel(const std::string &name) {
    static const std::map<std::string, const distile_polykernel *> polykernels = {
        {"conv1x1_576_96", &distile_conv1x1_576_96},
        {"conv1x1_96_576", &distile_conv1x1_96_576},
        {"conv3x3_128", &distile_conv3x3_128},
        {"conv3x3_256", &distile_conv3x3_256},
        {"conv_transpose4x4s2_256_128", &distile_conv_transpose4x4s2_256_128},
        {"depthwise3x3_576", &distile_depthwise3x3_576},
        {"depthwise3x3s2_576", &distile_depthwise3x3s2_576},
        {"upsample2_conv3x3_256", &distile_upsample2_conv3x3_256},
    };
    const auto found = polykernels.find(name);
    if (found == polykernels.end()) {
        throw std::runtime_error("this program was built without a PolyKernel '" + name + "'");
    }
    return *found->second;
}

}  // namespace distile::bench
