#include "facts/weight_layouts.h"
#include "plans/backend.h"
#include "plans/dot_product.h"
#include "plans/json_file.h"
#include "plans/nonzeros.h"
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

namespace distile {

namespace cpu_functions {
namespace {

std::set<std::string> words_of(const std::string &text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
}

std::string features_of(const std::string &target) {
    const std::vector<std::string> words = target_words(target);
    const Architecture &architecture = find_platform(target)->architecture;
    std::string features = architecture.everywhere;
    std::set<std::string> added = words_of(features);
    for (const std::string &word : words) {
        const auto found = std::find_if(architecture.halide_features.begin(), architecture.halide_features.end(),
                                        [&](const auto &feature) { return word == feature.first; });
        if (found == architecture.halide_features.end()) {
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

std::string target_of(const std::string &features, const Platform &platform) {
    const std::vector<CpuLevel> &levels = platform.architecture.levels;
    const std::set<std::string> has = words_of(features);
    for (const CpuLevel &level : levels) {
        if (has.count(level.feature) != 0) {
            return platform.target(level.words);
        }
    }
    return platform.target(levels.back().words);
}

std::string needs(const std::string &features) {
    const Architecture &architecture = architecture_of_features(features);
    return features == architecture.everywhere ? std::string("any ") + architecture.display_name
                                               : "a CPU with " + features;
}

const char *generic_profile(const std::string &target) {
    const Platform *found = find_platform(target);
    // The plugin schedules for CPUs of any platform.
    const Architecture &architecture = found ? found->architecture : x86_64_architecture();
    for (const CpuLevel &level : architecture.levels) {
        if (target.find(std::string("-") + level.word) != std::string::npos) {
            return level.profile;
        }
    }
    return architecture.levels.back().profile;
}

bool includes(const std::string &has, const std::string &needed) {
    const std::set<std::string> all = words_of(has), part = words_of(needed);
    return &architecture_of_features(has) == &architecture_of_features(needed) &&
           std::includes(all.begin(), all.end(), part.begin(), part.end());
}

std::string why_no_code(Language language, const DataType &type, const std::string &features) {
    switch (language) {
    case Language::Halide:
        return type.is_quantized() ? "code from Halide does not multiply quantized numbers"
               : has_words_of_dot_products(features)
                   ? "code from Halide does not use dot products: it needs a plan of its own"
                   : "";
    case Language::DotProduct:
        return dot_products_of(type, features)
                   ? ""
                   : "the code for dot products needs a target with avx512_bf16 or amx_bf16 for bfloat16, and with "
                     "amx_fp16 or amx_bf16 for float16";
    case Language::Nonzeros:
        return has_nonzeros(type) ? "" : std::string("the code for nonzero weights does not multiply ") + type.name;
    case Language::Bitmap:
        return "the code for a bitmap of weights is for NVIDIA GPUs by CUDA";
    case Language::TwoFour:
        return "the code for weights of the pattern 2:4 is for NVIDIA GPUs by CUDA";
    case Language::TensorCore:
        break;
    }
    return "there are no kernels for tensor cores on CPUs";
}

}  // namespace
}  // namespace cpu_functions

const Backend &cpu_backend() {
    using namespace cpu_functions;
    static const Backend backend = {
        "cpu",
        "DISTILE_CPU",
        "CPUs",
        {
#define DISTILE_ROW(name, language, bytes, channels, ...) {name, channels, Language::language, bytes},
            DISTILE_CPU_LAYOUTS(DISTILE_ROW)
#undef DISTILE_ROW
        },
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
        GroupReaders::Vectors,
        true,
        6,
    };
    return backend;
}

}  // namespace distile
