#include "shared_object.h"
#include "process.h"
#include "tools.h"
#include <dlfcn.h>
#include <elf.h>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>

namespace distile {

namespace {

/** The names that a shared object shows: its PolyKernel, and the text of the plan that it was compiled from. */
constexpr const char *symbol = "distile_measured", *plan_symbol = "distile_measured_plan";

/** Whether a file is as long as its header says. The loader would find what is missing by a signal only. */
bool is_whole(const std::string &path) {
    Elf64_Ehdr header{};
    std::ifstream stream(path, std::ios::binary | std::ios::ate);
    const auto size = static_cast<uint64_t>(stream.tellg());
    stream.seekg(0);
    // What is no object at all, the loader tells.
    return !stream.read(reinterpret_cast<char *>(&header), sizeof(header)) ||
           header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= size;
}

/** All of a plan that its code depends on. */
std::string text_of(Plan plan) {
    plan.times.clear();
    return to_json(plan).dump();
}

/** C source of the plan's text. What plans may hold JSON and C quote alike. */
std::string emit_text(const Plan &plan) {
    const std::string declaration = std::string("const char ") + plan_symbol + "[]";
    return "\nextern " + declaration + ";\n" + declaration + " = " + nlohmann::json(text_of(plan)).dump() + ";\n";
}

}  // namespace

void compile_plan(const Plan &plan, const std::string &path, int jobs, const std::function<void(int)> &progress) {
    const TemporaryFolder folder;
    const std::string base = folder.path() + "/" + symbol;
    const std::string plan_path = base + ".json";
    write_file(plan_path, to_json(plan).dump());
    write_file(base + ".c", emit_polykernels({plan}, symbol) + emit_text(plan));

    std::vector<Command> generators;
    for (const PlanVariant &variant : plan.variants) {
        generators.push_back(generator_command(plan, variant, plan_path, "object", folder.path(),
                                               function_name(symbol, 0, variant.name)));
    }

    // Made before anything is compiled, because it finds out what is missing.
    Command link;
    link.words = c_compiler();
    const auto add = [&](std::initializer_list<std::string> words) { link.words.insert(link.words.end(), words); };
    add({"-shared", "-fPIC", "-O2", "-I", tool("include"), "-o", base + ".so", base + ".c"});
    for (const PlanVariant &variant : plan.variants) {
        add({folder.path() + "/" + function_name(symbol, 0, variant.name) + ".o"});
    }
    if (plan.backend == "cuda") {
        add({tool("distile_cuda_hooks.o")});
    }
    add({tool("distile_hooks.o"), tool("distile_halide_runtime.o"), "-Wl,-Bsymbolic", "-lstdc++", "-ldl", "-lpthread"});
    link.log = base + ".log";

    run_generators(generators, jobs, progress);
    run_commands({link}, 1, [](int) {});

    std::error_code error;
    std::filesystem::copy_file(base + ".so", path, std::filesystem::copy_options::overwrite_existing, error);
    if (error) {
        throw FileError("the shared object '" + path + "' cannot be written: " + error.message());
    }
}

SharedObject::SharedObject(const Plan &plan, int jobs, const std::function<void(int)> &progress) {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/plan.so";
    compile_plan(plan, path, jobs, progress);
    load(path);
}

SharedObject::SharedObject(const Plan &plan, const std::string &path) {
    load(path);
    const auto *text = static_cast<const char *>(dlsym(handle_.get(), plan_symbol));
    if (polykernel_->version != DISTILE_POLYKERNEL_VERSION || !text || text != text_of(plan)) {
        throw FileError("the shared object '" + path + "' was not compiled from the plan '" + plan.name +
                        "' as it is now; `distile compile` makes a new one");
    }
}

void SharedObject::load(const std::string &path) {
    if (!is_whole(path)) {
        throw FileError("the shared object '" + path + "' is not whole: compile it again, or copy it again");
    }
    // Without a slash, the loader would search for it elsewhere.
    handle_.reset(dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL));
    const void *found = handle_ ? dlsym(handle_.get(), symbol) : nullptr;
    if (!found) {
        throw FileError(std::string("the compiled plan cannot be loaded: ") + dlerror());
    }
    polykernel_ = static_cast<const distile_polykernel *>(found);
}

void SharedObject::Close::operator()(void *handle) const {
    dlclose(handle);
}

}  // namespace distile
