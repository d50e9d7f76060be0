#include "autoscheduler/compile/compile.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/shipped_plans.h"
#include "autoscheduler/compile/job_slots.h"
#include "autoscheduler/compile/tensor_core_code.h"
#include "autoscheduler/compile/tools.h"
#include "plans/bitmap.h"
#include "plans/dot_product.h"
#include "plans/emit.h"
#include "plans/nonzeros.h"
#include "plans/two_four.h"
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

namespace distile {

const char *const measured_symbol = "distile_measured";

namespace {

namespace fs = std::filesystem;

/** A command that is put together word by word. */
class CommandLine {
public:
    explicit CommandLine(std::vector<std::string> words, const std::string &log) : command_{std::move(words), log} {
    }
    CommandLine &add(std::initializer_list<std::string> words) {
        command_.words.insert(command_.words.end(), words);
        return *this;
    }
    CommandLine &add(const std::vector<std::string> &words) {
        command_.words.insert(command_.words.end(), words.begin(), words.end());
        return *this;
    }
    void run() const {
        run_commands({command_}, 1, [](int) {});
    }

private:
    Command command_;
};

/** What makes the objects of a chain's variants in a folder, and these objects. */
struct Objects {
    std::vector<Command> compilers;
    std::string embedding; /**< Assembly that embeds what some of them make; "": none. */
    std::vector<std::string> paths;
};

bool have(const std::vector<Plan> &plans, Language language) {
    return std::any_of(plans.begin(), plans.end(), [&](const Plan &plan) { return plan.has(language); });
}

Objects objects_of(const std::vector<Plan> &plans, const std::string &symbol, const std::string &folder) {
    Objects objects;
    std::vector<std::string> embedded;
    for (size_t i = 0; i < plans.size(); i++) {
        const std::string plan_path = folder + "/plan_" + std::to_string(i) + ".json";
        write_file(plan_path, to_json(plans[i]).dump());
        if (plans[i].has(Language::TensorCore)) {
            embedded.push_back(plan_name(symbol, i));
            objects.compilers.push_back(tensor_core_command(plans[i], folder, embedded.back()));
        }
        for (const PlanVariant &variant : plans[i].variants) {
            if (variant.language == Language::DotProduct || variant.language == Language::Nonzeros ||
                variant.language == Language::Bitmap || variant.language == Language::TwoFour) {
                check_buildable(plans[i], variant);
            } else if (variant.language == Language::Halide) {
                const std::string name = function_name(symbol, i, variant.name);
                objects.compilers.push_back(generator_command(plans[i], variant, plan_path, "object", folder, name));
                objects.paths.push_back(folder + "/" + name + ".o");
            }
        }
    }
    if (!embedded.empty()) {
        objects.embedding = folder + "/" + symbol + ".embedded";
        write_file(objects.embedding + ".s", embed_code(folder, embedded));
        objects.paths.push_back(objects.embedding + ".o");
    }
    // What every PolyKernel holds besides its variants.
    const std::string &target = plans.front().target;
    if (have(plans, Language::Halide)) {
        for (const char *object : get_backend(plans.front().backend).objects) {
            objects.paths.push_back(linked_object(object, target));
        }
        objects.paths.push_back(linked_object("distile_halide_runtime.o", target));
    }
    std::set<std::string> own_code;
    for (const Plan &plan : plans) {
        if (plan.has(Language::DotProduct)) {
            own_code.insert(dot_product_object(plan));
        }
        if (plan.has(Language::Nonzeros)) {
            own_code.insert(nonzeros_object(plan));
        }
        if (plan.has(Language::Bitmap)) {
            own_code.insert(bitmap_object());
        }
        if (plan.has(Language::TwoFour)) {
            own_code.insert(two_four_object());
        }
    }
    for (const std::string &object : own_code) {
        objects.paths.push_back(linked_object(object, target));
    }
    if (have(plans, Language::TensorCore)) {
        objects.paths.push_back(linked_object("distile_tensor_core.o", target));
    }
    return objects;
}

/** Compiles the variants. */
void make_objects(const Objects &objects, int jobs, const std::function<void(int)> &progress,
                  const JobSlots *slots = nullptr) {
    run_generators(objects.compilers, jobs, progress, slots);
    if (!objects.embedding.empty()) {
        CommandLine(c_compiler(), objects.embedding + ".log")
            .add({"-c", "-o", objects.embedding + ".o", objects.embedding + ".s"})
            .run();
    }
}

/** The plans of a build. `files` are those that hold them. */
std::vector<Plan> read_plans(const BuildOptions &options, std::vector<std::string> &files) {
    files = options.plans;
    const Operator given = read_operator(options.op);
    const Operator op = options.dtype.empty() ? given : in_type(given, options.dtype);
    const Platform &platform = get_platform(options.platform);
    std::vector<Plan> plans;
    for (const std::string &path : options.plans) {
        Plan plan = read_plan(path);
        if (find_platform(plan.target) != &platform) {
            throw FileError("the plan '" + path + "' is for the target " + plan.target + ", but the build is for " +
                            platform.name());
        }
        // The times of a plan for this very type hold.
        if (given == plan.op && !options.dtype.empty()) {
            plan.name += "_" + options.dtype;
            change_type(plan, op);
        }
        if (!(op == plan.op)) {
            throw FileError("the plan '" + path + "' was made for the operator '" + plan.op.name + "' (" +
                            plan.op.summary() + "), not for '" + given.name + "' (" + given.summary() + ")");
        }
        plans.push_back(std::move(plan));
    }
    if (plans.empty()) {
        for (ChosenPlan &chosen : shipped_or_bound_plans(folder_of_shipped_plans(), op, get_backend(options.backend),
                                                         options.tensor_cores, platform)) {
            plans.push_back(std::move(chosen.plan));
            if (!chosen.shipped.empty()) {
                files.push_back(chosen.shipped);
            }
        }
    }
    const Plan &last = plans.back();
    if (options.portable && &get_backend(last.backend) == &portable_backend() && !is_portable(last)) {
        plans.push_back(portable_plan(op, platform));
    }
    check_chain(plans);
    return plans;
}

/** A path as a depfile has it. */
std::string escaped(const std::string &path) {
    std::string text;
    for (const char c : path) {
        text += c == ' ' || c == '#' || c == '\\' ? "\\" : c == '$' ? "$" : "";
        text += c;
    }
    return text;
}

/** Links the variants of a chain with its descriptor into a shared object that shows only the symbol, so that an
 * application may hold any other Halide runtime. Any linker does this. */
void make_shared_object(const std::vector<Plan> &plans, const std::string &symbol, const std::string &folder,
                        const std::string &path, int jobs, const std::function<void(int)> &progress,
                        const JobSlots *slots = nullptr) {
    const std::string base = folder + "/" + symbol;
    write_file(base + ".c", emit_polykernels(plans, symbol));
    write_file(base + ".map", "{ global: " + symbol + "; local: *; };\n");
    // Made before anything is compiled, because it finds out what is missing.
    const Objects objects = objects_of(plans, symbol, folder);
    CommandLine link(c_compiler(), base + ".log");
    link.add({"-shared", "-fPIC", "-O2", "-I", tool("include"), "-I", folder_of_tools(), "-o", base + ".so",
              base + ".c"})
        .add(objects.paths)
        .add({"-Wl,--gc-sections", "-Xlinker", "--version-script=" + base + ".map"});
    for (const char *library : find_platform(plans.front().target)->system.libraries) {
        link.add({library});
    }
    make_objects(objects, jobs, progress, slots);
    link.run();
    std::error_code error;
    fs::copy_file(base + ".so", path, fs::copy_options::overwrite_existing, error);
    if (error) {
        throw FileError("the shared object '" + path + "' cannot be written: " + error.message());
    }
}

void empty(const std::string &folder) {
    std::error_code error;
    fs::remove_all(folder, error);
    fs::create_directories(folder, error);
    if (error) {
        throw FileError("the folder '" + folder + "' cannot be made: " + error.message());
    }
}

}  // namespace

Operator in_type(const Operator &op, const std::string &type) {
    if (!find_type(type)) {
        throw FileError("'" + type + "' is not a data type; the types are " + known_types());
    }
    nlohmann::json json = to_json(op);
    json["name"] = op.name + "_" + type;
    json["params"]["dtype"] = type;
    return parse_operator(json, "the operator '" + op.name + "' in the type " + type);
}

void compile_plan(const Plan &plan, const std::string &path, int jobs, const std::function<void(int)> &progress) {
    const TemporaryFolder folder;
    make_shared_object({plan}, measured_symbol, folder.path(), path, jobs, progress);
}

void build_polykernel(const BuildOptions &options) {
    std::vector<std::string> plan_files;
    const std::vector<Plan> plans = read_plans(options, plan_files);
    empty(options.folder);
    const JobSlots slots(options.slots, options.jobs);
    if (!options.shared.empty()) {
        make_shared_object(
            plans, options.symbol, options.folder, options.shared, options.jobs, [](int) {}, &slots);
        return;
    }
    const std::string base = options.folder + "/" + options.symbol, log = base + ".log";
    write_file(base + ".c", emit_polykernels(plans, options.symbol));
    const Objects objects = objects_of(plans, options.symbol, options.folder);
    // What is missing is found before the variants are compiled, which takes long.
    for (const std::string &program : {options.linker, options.objcopy}) {
        CommandLine({program}, log).add({"--version"}).run();
    }
    CommandLine(c_compiler(), log)
        .add({"-c", "-O2", "-fPIC", "-I", tool("include"), "-I", folder_of_tools(), "-o", base + ".descriptor.o",
              base + ".c"})
        .run();
    make_objects(
        objects, options.jobs, [](int) {}, &slots);
    // Joined by GNU's linker, and left with one visible symbol, so that an application may hold any other Halide
    // runtime.
    CommandLine({options.linker}, log)
        .add({"-r", "--force-group-allocation", "--gc-sections", "-u", options.symbol, "-o", base + ".joined.o",
              base + ".descriptor.o"})
        .add(objects.paths)
        .run();
    CommandLine({options.objcopy}, log)
        .add({"--keep-global-symbol=" + options.symbol, base + ".joined.o", base + ".o"})
        .run();
    write_file(options.header, emit_header(plans, options.symbol));
    if (!options.depfile.empty()) {
        std::string text = escaped(options.object) + ": " + escaped(options.op);
        for (const std::string &plan : plan_files) {
            text += " " + escaped(plan);
        }
        if (have(plans, Language::TensorCore)) {
            for (const std::string &header : tensor_core_headers()) {
                text += " " + escaped(header);
            }
        }
        write_file(options.depfile, text + "\n");
    }
    // Last, so that whatever fails before leaves no object.
    std::error_code error;
    fs::rename(base + ".o", options.object, error);
    if (error) {
        throw FileError("the object '" + options.object + "' cannot be written: " + error.message());
    }
}

void emit_of_variants(const std::string &plan_path, const std::string &what, const std::string &folder, int jobs) {
    const Plan plan = read_plan(plan_path, Times::Drop);
    std::vector<Command> generators;
    for (const PlanVariant &variant : plan.variants) {
        if (variant.language == Language::Halide) {
            generators.push_back(
                generator_command(plan, variant, plan_path, what, folder, plan.name + "." + variant.name, "kernel"));
        }
    }
    run_generators(generators, jobs, [](int) {});
}

}  // namespace distile
