#include "shared_object.h"
#include "process.h"
#include "tools.h"
#include <algorithm>
#include <dlfcn.h>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

namespace distile {

namespace {

/** The only name that a shared object shows. */
constexpr const char *symbol = "distile_measured";

/** Whether code was made for the operator of a plan, and for its variants in their order. */
bool is_of(const distile_polykernel &polykernel, const Plan &plan) {
    const auto &conv = polykernel.conv2d, wanted = plan.op.conv2d();
    const auto same_variant = [](const PlanVariant &of_plan, const distile_variant &variant) {
        return of_plan.name == variant.name && of_plan.theta.at("tile_h") == variant.tile_h &&
               of_plan.theta.at("tile_w") == variant.tile_w && of_plan.dense == (variant.dense != 0);
    };
    return polykernel.name == plan.name && polykernel.kind == plan.op.kind() && conv.groups == wanted.groups &&
           conv.in_channels == wanted.in_channels && conv.out_channels == wanted.out_channels &&
           conv.kernel_h == wanted.kernel_h && conv.kernel_w == wanted.kernel_w && conv.stride_h == wanted.stride_h &&
           conv.stride_w == wanted.stride_w && polykernel.layout == plan.layout &&
           std::equal(plan.variants.begin(), plan.variants.end(), polykernel.variants,
                      polykernel.variants + polykernel.num_variants, same_variant);
}

}  // namespace

void compile_plan(const Plan &plan, const std::string &path, int jobs, const std::function<void(int)> &progress) {
    const TemporaryFolder folder;
    const std::string base = folder.path() + "/" + symbol;
    const std::string plan_path = base + ".json";
    write_file(plan_path, to_json(plan).dump());
    write_file(base + ".c", emit_polykernels({plan}, symbol));

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
    if (polykernel_->version != DISTILE_POLYKERNEL_VERSION || !is_of(*polykernel_, plan)) {
        throw FileError("the shared object '" + path + "' was not compiled from the plan '" + plan.name +
                        "' as it is now; `distile compile` makes a new one");
    }
}

void SharedObject::load(const std::string &path) {
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
