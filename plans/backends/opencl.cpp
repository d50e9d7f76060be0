#include "facts/weight_layouts.h"
#include "plans/backend.h"
#include "plans/json_file.h"
#include <algorithm>
#include <sstream>

namespace distile {

namespace opencl_functions {
namespace {

/** What all code needs. */
const std::string version = "opencl_1.2";

/** The Halide features that code may need, and the extensions of a device that has them. */
constexpr struct { const char *word, *extension; } extensions[] = {{"cl_half", "cl_khr_fp16"}};

std::string features_of(const std::string &target) {
    std::string features = version;
    for (const std::string &word : target_words(target)) {
        const auto *const found = std::find_if(std::begin(extensions), std::end(extensions),
                                               [&](const auto &row) { return word == row.word; });
        if (found != std::end(extensions)) {
            features += std::string(" ") + found->extension;
        } else if (word != "opencl") {
            throw FileError("the target '" + target + "': distile cannot check an OpenCL device for the feature '" +
                            word + "'");
        }
    }
    return features;
}

std::vector<std::string> words_of(const std::string &features) {
    std::istringstream stream(features);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) {
        words.push_back(word);
    }
    return words;
}

std::string target_of(const std::string &features, const Platform &platform) {
    std::string target = platform.target("opencl");
    const std::vector<std::string> words = words_of(features);
    for (const auto &row : extensions) {
        if (std::find(words.begin(), words.end(), row.extension) != words.end()) {
            target += std::string("-") + row.word;
        }
    }
    return target;
}

std::string needs(const std::string &features) {
    std::string needed = "an OpenCL 1.2 device";
    for (const std::string &word : words_of(features)) {
        needed += word == version ? "" : " with " + word;
    }
    return needed;
}

bool includes(const std::string &has, const std::string &needed) {
    const std::vector<std::string> known = words_of(has), wanted = words_of(needed);
    return std::all_of(wanted.begin(), wanted.end(), [&](const std::string &word) {
        return std::find(known.begin(), known.end(), word) != known.end();
    });
}

std::string why_no_code(Language language, const DataType &type, const std::string &) {
    if (type.is_quantized()) {
        return "quantized operators are for CPUs";
    }
    return language == Language::Halide       ? ""
           : language == Language::DotProduct ? "the code for dot products is for CPUs"
           : language == Language::Nonzeros   ? "the code for nonzero weights is for CPUs, and for GPUs by CUDA"
           : language == Language::Bitmap     ? "the code for a bitmap of weights is for NVIDIA GPUs by CUDA"
           : language == Language::TwoFour    ? "the code for weights of the pattern 2:4 is for NVIDIA GPUs by CUDA"
                                              : "the kernels for tensor cores are for NVIDIA GPUs by CUDA";
}

}  // namespace
}  // namespace opencl_functions

const Backend &opencl_backend() {
    using namespace opencl_functions;
    static const Backend backend = {
        "opencl",
        "DISTILE_OPENCL",
        "OpenCL devices",
        {
#define DISTILE_ROW(name, language, bytes, channels, ...) {name, channels, Language::language, bytes},
            DISTILE_OPENCL_LAYOUTS(DISTILE_ROW)
#undef DISTILE_ROW
        },
        "opencl",
        features_of,
        target_of,
        needs,
        [](const std::string &) { return "generic_opencl"; },
        "generic_opencl",
        includes,
        why_no_code,
        {"distile_hooks.o", "distile_gpu_hooks.o"},
        "unit",
        "compute unit",
        "a group of 32 work-items",
        "multiply-adds",
        false,
        GroupReaders::Threads,
        false,
        12,  // Its time moves in steps.
    };
    return backend;
}

}  // namespace distile
