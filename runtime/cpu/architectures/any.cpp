// Architectures of which the library knows nothing.
#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/simd/simd_files.h"
#include <iterator>

namespace distile {

std::vector<CpuFeature> known_cpu_features() {
    return {};
}

SimdLevels known_simd_levels() {
    static const SimdLevel *const levels[] = {&portable_level};
    return {levels, static_cast<int32_t>(std::size(levels))};
}

std::vector<const PixelProducts *> known_pixel_products() {
    return {&portable_products};
}

std::vector<const QuantizedProducts *> known_quantized_products() {
    return {&portable_quantized_products};
}

}  // namespace distile
