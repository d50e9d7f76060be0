#include "distile_conv1x1_576_96_avx2.h"
#include "distile_conv1x1_576_96_avx512.h"
#include "distile_conv1x1_96_576_avx2.h"
#include "distile_conv1x1_96_576_avx512.h"
#include "distile_conv3x3_128_avx2.h"
#include "distile_conv3x3_128_avx512.h"
#include "distile_conv3x3_256_avx2.h"
#include "distile_conv3x3_256_avx512.h"
#include "distile_conv_transpose4x4s2_256_128_avx2.h"
#include "distile_conv_transpose4x4s2_256_128_avx512.h"
#include "distile_depthwise3x3_576_avx2.h"
#include "distile_depthwise3x3_576_avx512.h"
#include "distile_depthwise3x3s2_576_avx2.h"
#include "distile_depthwise3x3s2_576_avx512.h"
#include "distile_upsample2_conv3x3_256_avx2.h"
#include "distile_upsample2_conv3x3_256_avx512.h"
#include "operators.h"
#include <map>
#include <stdexcept>

namespace distile::bench {

std::vector<const distile_polykernel *> cpu_polykernels(const std::string &name) {
    static const std::map<std::string, std::vector<const distile_polykernel *>> polykernels = {
        {"conv3x3_256", {&distile_conv3x3_256_avx512, &distile_conv3x3_256_avx2}},
        {"conv3x3_128", {&distile_conv3x3_128_avx512, &distile_conv3x3_128_avx2}},
        {"conv1x1_96_576", {&distile_conv1x1_96_576_avx512, &distile_conv1x1_96_576_avx2}},
        {"depthwise3x3_576", {&distile_depthwise3x3_576_avx512, &distile_depthwise3x3_576_avx2}},
        {"depthwise3x3s2_576", {&distile_depthwise3x3s2_576_avx512, &distile_depthwise3x3s2_576_avx2}},
        {"conv1x1_576_96", {&distile_conv1x1_576_96_avx512, &distile_conv1x1_576_96_avx2}},
        {"conv_transpose4x4s2_256_128",
         {&distile_conv_transpose4x4s2_256_128_avx512, &distile_conv_transpose4x4s2_256_128_avx2}},
        {"upsample2_conv3x3_256", {&distile_upsample2_conv3x3_256_avx512, &distile_upsample2_conv3x3_256_avx2}},
    };
    const auto found = polykernels.find(name);
    if (found == polykernels.end()) {
        throw std::runtime_error("this program was built without a PolyKernel '" + name + "'");
    }
    return found->second;
}

}  // namespace distile::bench
