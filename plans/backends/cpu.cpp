#include "backend.h"
#include "json_file.h"
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

namespace distile {

namespace {

std::string features_of(const std::string &target) {
    // What each of Halide's features lets the compiler use, as the runtime checks it.
    const std::map<std::string, std::string> known = {
        {"sse41", "sse41"},
        {"avx", "avx"},
        {"avx2", "avx2"},
        {"fma", "fma"},
        {"f16c", "f16c"},
        {"avx512", "avx512f avx512cd"},
        {"avx512_skylake", "avx512f avx512cd avx512bw avx512dq avx512vl"},
    };
    std::string features;
    std::set<std::string> added;
    for (const std::string &word : target_words(target)) {
        const auto found = known.find(word);
        if (found == known.end()) {
            throw FileError("the target '" + target + "': distile cannot check a CPU for the feature '" + word + "'");
        }
        std::istringstream parts(found->second);
        for (std::string part; parts >> part;) {
            if (added.insert(part).second) {
                features.append(features.empty() ? "" : " ").append(part);
            }
        }
    }
    return features;
}

std::string target_of(const std::string &features) {
    const auto has = [&](const char *feature) { return features.find(feature) != std::string::npos; };
    return !has("avx2") ? std::string("x86-64-linux")
                        : std::string("x86-64-linux-avx-avx2-") + (has("avx512vl") ? "avx512-avx512_skylake-" : "") +
                              "f16c-fma-sse41";
}

std::string needs(const std::string &features) {
    return features.empty() ? "any x86-64 CPU" : "a CPU with " + features;
}

const char *generic_profile(const std::string &target) {
    const auto has = [&](const char *feature) { return target.find(feature) != std::string::npos; };
    return has("-avx512") ? "generic_avx512" : has("-avx2") ? "generic_avx2" : "generic_x86_64";
}

std::set<std::string> words_of(const std::string &text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

bool includes(const std::string &has, const std::string &needed) {
    const std::set<std::string> all = words_of(has), part = words_of(needed);
    return std::includes(all.begin(), all.end(), part.begin(), part.end());
}

std::string why_no_code(Language language, const std::string &) {
    return language == Language::Halide ? "" : "there are no kernels for tensor cores on CPUs";
}

}  // namespace

const Backend &cpu_backend() {
    static const Backend backend = {
        "cpu",
        "DISTILE_CPU",
        "CPUs",
        {{"cpu-o16", 16, Language::Halide, 0}},
        nullptr,
        features_of,
        target_of,
        needs,
        generic_profile,
        "generic_avx2",
        includes,
        why_no_code,
        {"distile_hooks.o"},
        "thread",
        "core",
        "a vector",
        "vector multiply-adds",
        true,
        6,
    };
    return backend;
}

}  // namespace distile
