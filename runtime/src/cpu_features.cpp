#include "cpu_features.h"
#include <sstream>

namespace distile {

namespace {

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
        {"f16c", __builtin_cpu_supports("f16c") != 0},
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
