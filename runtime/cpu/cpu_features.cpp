#include "cpu_features.h"
#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace distile {

namespace {

#if defined(__x86_64__)
/** Clang's __builtin_cpu_supports does not know "f16c". F16C needs the same operating-system support as AVX. */
bool has_f16c() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 && __builtin_cpu_supports("avx") != 0;
}
#endif

struct Feature {
    const char *name;
    bool present;
};

/** Every feature that this library knows. */
std::vector<Feature> known_features() {
#if defined(__x86_64__)
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
#else
    return {};
#endif
}

std::vector<std::string> words_of(const char *text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

bool contains(const std::vector<std::string> &words, const std::string &word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::string missing_cpu_feature(const char *features, const char *allowed) {
    std::vector<std::string> present;
    for (const Feature &feature : known_features()) {
        if (feature.present && (!allowed || contains(words_of(allowed), feature.name))) {
            present.emplace_back(feature.name);
        }
    }
    for (const std::string &feature : words_of(features)) {
        if (!contains(present, feature)) {
            return feature;
        }
    }
    return "";
}

bool are_cpu_features(const char *features) {
    const std::vector<Feature> known = known_features();
    const std::vector<std::string> words = words_of(features);
    return std::all_of(words.begin(), words.end(), [&](const std::string &word) {
        return std::any_of(known.begin(), known.end(), [&](const Feature &feature) { return word == feature.name; });
    });
}

}  // namespace distile
