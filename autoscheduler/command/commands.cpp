#include "autoscheduler/command/commands.h"
#include "plans/architecture.h"
#include "plans/operator.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/core.h>
#include <unistd.h>

namespace distile {

const char *const device_option_help =
    "Device profile: a file that distile calibrate wrote, or generic_x86_64, generic_avx2, generic_avx512, "
    "generic_aarch64, generic_armv82, generic_cuda, generic_cuda_sm90 or generic_opencl";
const char *const mask_option_help =
    "Masks over the output: .npy files (bool or uint8, [n, y, x]), .png files, or drawn ones as blob:DENSITY:SEED, "
    "random:DENSITY:SEED or checkerboard, or a set of the suite, suite:train or suite:held-out (distile masks --suite)";

DeviceProfile device_of_option(const std::string &file_or_name) {
    return file_or_name.rfind("generic_", 0) == 0 && file_or_name.find('.') == std::string::npos
               ? generic_device_profile(file_or_name)
               : read_device_profile(file_or_name);
}

void add_math_option(CLI::App &command, Math &math) {
    command
        .add_option_function<std::string>(
            "--math", [&math](const std::string &name) { math = name == "tf32" ? Math::TF32 : Math::Float32; },
            "How float32 operators may be multiplied: tf32 takes the tensor cores of NVIDIA GPUs, which 16-bit "
            "operators take anyway")
        ->default_str("float32")
        ->check(CLI::IsMember({"float32", "tf32"}));
}

void add_platform_option(CLI::App &command, std::string &name) {
    command.add_option("--platform", name, "Architecture and operating system that plans are for, as targets begin")
        ->capture_default_str()
        ->check(CLI::IsMember(platform_names()));
}

void warn(const std::string &text) {
    std::fputs(fmt::format("distile: warning: {}.\n", text).c_str(), stderr);
}

ProgressLine::ProgressLine(bool quiet) : shown_(!quiet && isatty(STDERR_FILENO) != 0) {
}

ProgressLine::~ProgressLine() {
    if (shown_ && started_) {
        std::fputs("\r\033[K", stderr);
    }
}

void ProgressLine::show(const std::string &what, double part) {
    if (shown_) {
        constexpr int width = 30;
        const int filled = static_cast<int>(part * width);
        std::fputs(
            fmt::format("\r\033[K[{}{}] {}", std::string(filled, '#'), std::string(width - filled, '.'), what).c_str(),
            stderr);
        std::fflush(stderr);
        started_ = true;
    }
}

}  // namespace distile
