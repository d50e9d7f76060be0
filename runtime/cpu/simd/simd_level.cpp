#include "simd_level.h"
#include "simd_files.h"

namespace distile {

namespace {

// Each level runs wherever the next one does.
const SimdLevel *const all_levels[] = {
    &portable_level,
#ifdef DISTILE_X86
    &avx2_level,
    &avx512_level,
#endif
};

int32_t count_supported_levels() {
    int32_t count = 0;
    for (const SimdLevel *level : all_levels) {
        if (!level->is_supported()) {
            break;
        }
        count++;
    }
    return count;
}

}  // namespace

SimdLevels supported_simd_levels() {
    static const int32_t count = count_supported_levels();
    return {all_levels, count};
}

}  // namespace distile
