#include "autoscheduler/compile/tensor_core_code.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/compile/tools.h"
#include "plans/tensor_core.h"
#include <algorithm>
#include <filesystem>

namespace distile {

namespace {

namespace fs = std::filesystem;

/** A path in quotes, as an assembler reads it. */
std::string quoted_path(const std::string &path) {
    std::string text = "\"";
    for (const char c : path) {
        text += c == '"' || c == '\\' ? "\\" : "";
        text += c;
    }
    return text + "\"";
}

}  // namespace

Command tensor_core_command(const Plan &plan, const std::string &folder, const std::string &name) {
    for (const PlanVariant &variant : plan.variants) {
        check_buildable(plan, variant);
    }
    const std::string base = folder + "/" + name;
    // The code of one chip is whole; that of several is compiled by the driver.
    const bool sm90 = tensor_cores_of(plan) == TensorCores::Sm90;
    const std::string architecture = sm90 ? "sm_90a" : "compute_80", source = base + ".cu", code = base + ".code";
    Command command;
    command.words = cuda_compiler();
    if (command.words.empty()) {
        command.words = {tool("distile_builder"), "nvrtc", source, "--architecture", architecture, "-o", code};
    } else {
        const std::vector<std::string> options = {"-std=c++17",
                                                  "-O3",
                                                  "-DNDEBUG",
                                                  "--expt-relaxed-constexpr",
                                                  "-I",
                                                  folder_of_tools(),
                                                  sm90 ? "-cubin" : "-ptx",
                                                  "-arch=" + architecture,
                                                  "-o",
                                                  code,
                                                  source};
        command.words.insert(command.words.end(), options.begin(), options.end());
    }
    command.log = base + ".log";
    write_file(source, tensor_core_source(plan));
    return command;
}

std::vector<std::string> tensor_core_headers() {
    std::vector<std::string> headers;
    for (const char *folder : {"kernels/tensor_core", "runtime/choice", "facts"}) {
        for (const fs::directory_entry &file : fs::directory_iterator(tool(folder))) {
            headers.push_back(file.path().string());
        }
    }
    std::sort(headers.begin(), headers.end());
    return headers;
}

std::string embed_code(const std::string &folder, const std::vector<std::string> &names) {
    std::string text;
    for (const std::string &name : names) {
        const std::string begin = name + "_code", end = name + "_code_end";
        text += "    .section .rodata." + begin + ",\"a\",@progbits\n    .balign 16\n";
        for (const std::string &symbol : {begin, end}) {
            text += "    .globl " + symbol + "\n    .hidden " + symbol + "\n";
        }
        text +=
            begin + ":\n    .incbin " + quoted_path(folder + "/" + name + ".code") + "\n" + end + ":\n    .byte 0\n";
    }
    return text + "    .section .note.GNU-stack,\"\",@progbits\n";
}

}  // namespace distile
