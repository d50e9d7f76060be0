#include "shared_object.h"
#include <dlfcn.h>
#include <nlohmann/json.hpp>

namespace distile {

SharedObject::SharedObject(const Plan &plan, int jobs, const std::function<void(int)> &progress) {
    const std::string symbol = "distile_measured", base = folder_.path() + "/" + symbol;
    const std::string plan_path = base + ".json";
    write_file(plan_path, to_json(plan).dump());
    write_file(base + ".c", emit_polykernel(plan, symbol));

    std::vector<Command> generators;
    for (const PlanVariant &variant : plan.variants) {
        const std::string name = symbol + "_" + variant.name;
        Command command;
        command.words = {DISTILE_GENERATORS,
                         "-n",
                         name,
                         "-g",
                         plan.op.generator,
                         "-f",
                         name,
                         "-e",
                         "object",
                         "-o",
                         folder_.path(),
                         "-p",
                         DISTILE_PLUGIN,
                         "target=" + plan.target + "-user_context-no_runtime",
                         "autoscheduler=PolyKernel",
                         "autoscheduler.plan=" + plan_path,
                         "autoscheduler.variant=" + variant.name};
        for (const auto &[key, value] : plan.op.params) {
            command.words.push_back(key + "=");
            command.words.back() += value;
        }
        for (const char *knob : {"tile_h", "tile_w"}) {
            command.words.push_back(std::string(knob) + "=" + std::to_string(variant.theta.at(knob)));
        }
        command.log = folder_.path() + "/" + name + ".log";
        generators.push_back(command);
    }
    run_commands(generators, jobs, progress);

    Command link;
    link.words = {DISTILE_C_COMPILER, "-shared", "-fPIC",      "-O2",      "-I",
                  DISTILE_INCLUDE,    "-o",      base + ".so", base + ".c"};
    for (const PlanVariant &variant : plan.variants) {
        link.words.push_back(base + "_" + variant.name + ".o");
    }
    for (const char *word :
         {DISTILE_HOOKS, DISTILE_HALIDE_RUNTIME, "-Wl,-Bsymbolic", "-lstdc++", "-ldl", "-lpthread"}) {
        link.words.emplace_back(word);
    }
    link.log = base + ".log";
    run_commands({link}, 1, [](int) {});

    handle_.reset(dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL));
    const void *found = handle_ ? dlsym(handle_.get(), symbol.c_str()) : nullptr;
    if (!found) {
        throw FileError(std::string("the compiled plan cannot be loaded: ") + dlerror());
    }
    polykernel_ = static_cast<const distile_polykernel *>(found);
}

void SharedObject::Close::operator()(void *handle) const {
    dlclose(handle);
}

}  // namespace distile
