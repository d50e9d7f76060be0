#include "cpu_architecture.h"
#include "simd_files.h"
#include <cpuid.h>
#include <iterator>

namespace distile {

namespace {

/** Clang's __builtin_cpu_supports does not know "f16c". F16C needs the same operating-system support as AVX. */
bool has_f16c() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 && __builtin_cpu_supports("avx") != 0;
}

}  // namespace

std::vector<CpuFeature> known_cpu_features() {
    // The compiler's check includes whether the operating system saves the wider registers.
    return {
        {"sse41", __builtin_cpu_supports("sse4.1") != 0},
        {"avx", __builtin_cpu_supports("avx") != 0},
        {"avx2", __builtin_cpu_supports("avx2") != 0},
        {"fma", __builtin_cpu_supports("fma") != 0},
        {"f16c", has_f16c()},
        {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512cd", __builtin_cpu_supports("avx512cd") != 0},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
        {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
        {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
    };
}

SimdLevels known_simd_levels() {
    static const SimdLevel *const levels[] = {&portable_level, &avx2_level, &avx512_level};
    return {levels, static_cast<int32_t>(std::size(levels))};
}

}  // namespace distile
