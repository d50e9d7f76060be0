#include "backend.h"
#include "json_file.h"

namespace distile {

namespace {

constexpr const char *capability = "cuda_capability_", *architecture = "sm_";

std::string features_of(const std::string &target) {
    std::string features;
    for (const std::string &word : target_words(target)) {
        const bool has_capability = word.rfind(capability, 0) == 0;
        const std::string number = has_capability ? word.substr(std::string(capability).size()) : "";
        // What Halide knows.
        const bool known = number == "70" || number == "75" || number == "80" || number == "86";
        if (!has_capability && word == "cuda") {
            continue;
        }
        if (!known) {
            throw FileError("the target '" + target + "': distile cannot check a GPU for the feature '" + word + "'");
        }
        if (!features.empty()) {
            throw FileError("the target '" + target + "' has more than one compute capability");
        }
        features = architecture + number;
    }
    if (features.empty()) {
        throw FileError("the target '" + target + "' has no compute capability, for instance " + capability + "70");
    }
    return features;
}

std::string target_of(const std::string &) {
    // Later GPUs run the code of earlier ones.
    return "x86-64-linux-cuda-cuda_capability_70";
}

std::string needs(const std::string &features) {
    const std::string number = features.substr(std::string(architecture).size());
    return "an NVIDIA GPU of compute capability " + number.substr(0, number.size() - 1) + "." + number.back() +
           " or later";
}

const char *generic_profile(const std::string &) {
    return "generic_cuda";
}

}  // namespace

const Backend &cuda_backend() {
    static const Backend backend = {
        "cuda",
        "DISTILE_CUDA",
        "NVIDIA GPUs",
        {{"cuda-o32", 32}},
        "cuda",
        features_of,
        target_of,
        needs,
        generic_profile,
        "generic_cuda",
        false,
        {"distile_hooks.o", "distile_cuda_hooks.o"},
        "multiprocessor",
        "multiprocessor",
        "a warp",
        "multiply-adds",
        false,
        12,  // Its time moves in steps.
    };
    return backend;
}

}  // namespace distile
