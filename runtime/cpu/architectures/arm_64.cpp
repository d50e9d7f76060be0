#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/simd/simd_files.h"
#include <asm/hwcap.h>
#include <iterator>
#include <sys/auxv.h>

namespace distile {

std::vector<CpuFeature> known_cpu_features() {
    // Only the operating system can say: programs may not read the CPU's own registers.
    const unsigned long has = getauxval(AT_HWCAP);
    constexpr unsigned long fp16 = HWCAP_FPHP | HWCAP_ASIMDHP;
    return {
        {"neon", (has & HWCAP_ASIMD) != 0, true},
        {"fp16", (has & fp16) == fp16},
        {"dotprod", (has & HWCAP_ASIMDDP) != 0},
    };
}

SimdLevels known_simd_levels() {
    static const SimdLevel *const levels[] = {&portable_level, &neon_level};
    return {levels, static_cast<int32_t>(std::size(levels))};
}

std::vector<const PixelProducts *> known_pixel_products() {
    return {&portable_products};
}

std::vector<const QuantizedProducts *> known_quantized_products() {
    return {&portable_quantized_products};
}

}  // namespace distile
