#include "cpu_features.h"
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace distile {

namespace {

#if defined(__x86_64__)
/** Clang does not know "f16c" in __builtin_cpu_supports. The system support that it needs is AVX's. */
bool has_f16c() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 && __builtin_cpu_supports("avx") != 0;
}
#endif

bool has(const std::string &feature) {
#if defined(__x86_64__)
    // The compiler's check also asks whether the operating system saves the wider registers.
    struct Known {
        const char *name;
        bool present;
    };
    const Known known[] = {
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
    for (const Known &candidate : known) {
        if (feature == candidate.name) {
            return candidate.present;
        }
    }
#endif
    return false;
}

}  // namespace

std::string missing_cpu_feature(const char *features) {
    std::istringstream words(features);
    std::string feature;
    while (words >> feature) {
        if (!has(feature)) {
            return feature;
        }
    }
    return "";
}

}  // namespace distile
