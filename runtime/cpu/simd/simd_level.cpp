#include "runtime/cpu/simd/simd_level.h"
#include "runtime/cpu/architectures/cpu_architecture.h"

namespace distile {

SimdLevels supported_simd_levels() {
    static const SimdLevels levels = [] {
        const SimdLevels known = known_simd_levels();
        int32_t count = 0;
        while (count < known.size() && known[count].is_supported()) {
            count++;
        }
        return known.first(count);
    }();
    return levels;
}

}  // namespace distile
