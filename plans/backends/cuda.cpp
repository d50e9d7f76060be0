#include "facts/weight_layouts.h"
#include "plans/backend.h"
#include "plans/bitmap.h"
#include "plans/json_file.h"
#include "plans/nonzeros.h"
#include "plans/tensor_core.h"
#include "plans/two_four.h"
#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace distile {

namespace cuda_functions {
namespace {

constexpr const char *capability = "cuda_capability_", *architecture = "sm_";

/** The compute capabilities that code may be for. It runs on later GPUs too, unless it is for one capability alone. */
constexpr struct {
    const char *name; /**< In targets and, behind "sm_", in features. */
    int number;
    bool alone;
    bool halide, tensor_cores; /**< What there is code from. */
} capabilities[] = {{"70", 70, false, true, false},
                    {"75", 75, false, true, false},
                    {"80", 80, false, true, true},
                    {"86", 86, false, true, true},
                    {"90a", 90, true, false, true}};

const auto *find_capability(const std::string &name) {
    return std::find_if(std::begin(capabilities), std::end(capabilities),
                        [&](const auto &row) { return name == row.name; });
}

/** The row of what features_of() returned. */
const auto &capability_of(const std::string &features) {
    const auto *const row = find_capability(features.substr(std::string(architecture).size()));
    if (row == std::end(capabilities)) {
        throw std::logic_error("no features of a GPU: " + features);
    }
    return *row;
}

std::string features_of(const std::string &target) {
    std::string features;
    for (const std::string &word : target_words(target)) {
        const bool has_capability = word.rfind(capability, 0) == 0;
        const std::string name = has_capability ? word.substr(std::string(capability).size()) : "";
        if (!has_capability && word == "cuda") {
            continue;
        }
        if (find_capability(name) == std::end(capabilities)) {
            throw FileError("the target '" + target + "': distile cannot check a GPU for the feature '" + word + "'");
        }
        if (!features.empty()) {
            throw FileError("the target '" + target + "' has more than one compute capability");
        }
        features = architecture + name;
    }
    if (features.empty()) {
        throw FileError("the target '" + target + "' has no compute capability, for instance " + capability + "70");
    }
    return features;
}

std::string target_of(const std::string &, const Platform &platform) {
    // Later GPUs run the code of earlier ones.
    return platform.target("cuda-cuda_capability_70");
}

std::string needs(const std::string &features) {
    const auto &of = capability_of(features);
    return "an NVIDIA GPU of compute capability " + std::to_string(of.number / 10) + "." +
           std::to_string(of.number % 10) + (of.alone ? "" : " or later");
}

bool includes(const std::string &has, const std::string &needed) {
    return has == needed || (!capability_of(needed).alone && capability_of(has).number >= capability_of(needed).number);
}

std::string why_no_code(Language language, const DataType &type, const std::string &features) {
    const auto &of = capability_of(features);
    if (language == Language::Halide && type.is_quantized()) {
        return "code from Halide does not multiply quantized numbers";
    }
    if (language == Language::Halide) {
        return of.halide ? "" : "Halide makes no code for compute capability " + std::string(of.name) + " alone";
    }
    if (language == Language::DotProduct) {
        return type.is_quantized() && of.number == 75
                   ? ""
                   : "the code for dot products on GPUs is for quantized operators and a target of compute capability "
                     "75";
    }
    if (language == Language::Nonzeros) {
        return !has_nonzeros(type) || type.is_quantized()
                   ? std::string("the code for nonzero weights does not multiply ") + type.name
               : of.number >= 80 && !of.alone
                   ? ""
                   : "the code for nonzero weights on GPUs needs a target of compute capability 80 or 86";
    }
    if (language == Language::Bitmap) {
        return !has_bitmap(type) ? std::string("the code for a bitmap of weights does not multiply ") + type.name
               : of.number >= 80 && !of.alone
                   ? ""
                   : "the code for a bitmap of weights needs a target of compute capability 80 or 86";
    }
    if (language == Language::TwoFour) {
        return !has_two_four(type)
                   ? std::string("the code for weights of the pattern 2:4 does not multiply ") + type.name
               : of.tensor_cores
                   ? ""
                   : "the code for weights of the pattern 2:4 needs a target of compute capability 80, 86 or 90a";
    }
    if (!find_tensor_core_element(type)) {
        return std::string("the kernels for tensor cores do not multiply ") + type.name;
    }
    return of.tensor_cores ? "" : "the kernels for tensor cores need a target of compute capability 80, 86 or 90a";
}

const char *generic_profile(const std::string &target) {
    return target.find("cuda_capability_90a") != std::string::npos ? "generic_cuda_sm90" : "generic_cuda";
}

}  // namespace
}  // namespace cuda_functions

const Backend &cuda_backend() {
    using namespace cuda_functions;
    static const Backend backend = {
        "cuda",
        "DISTILE_CUDA",
        "NVIDIA GPUs",
        {
#define DISTILE_ROW(name, language, bytes, channels, ...) {name, channels, Language::language, bytes},
            DISTILE_CUDA_LAYOUTS(DISTILE_ROW)
#undef DISTILE_ROW
        },
        "cuda",
        features_of,
        target_of,
        needs,
        generic_profile,
        "generic_cuda",
        includes,
        why_no_code,
        {"distile_hooks.o", "distile_gpu_hooks.o"},
        "multiprocessor",
        "multiprocessor",
        "a warp",
        "multiply-adds",
        false,
        GroupReaders::Threads,
        false,
        12,  // Its time moves in steps.
    };
    return backend;
}

}  // namespace distile
