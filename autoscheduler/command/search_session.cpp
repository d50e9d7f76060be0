#include "autoscheduler/command/search_session.h"
#include "autoscheduler/bound/bound_backend.h"
#include "autoscheduler/bound/rank.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/compile/compile.h"
#include "autoscheduler/measure/measure_backend.h"
#include "autoscheduler/measure/profile.h"
#include "autoscheduler/search/gaussian_model.h"
#include "autoscheduler/search/weight_file.h"
#include "plans/nonzeros.h"
#include "reference/processor.h"
#include "runtime/cpu/cpu_features.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <map>
#include <set>
#include <thread>

namespace distile {

namespace {

/** This machine's CPU as a generic profile describes it. */
DeviceProfile generic_cpu() {
    DeviceProfile device;
    for (const CpuLevel &level : host_platform().architecture.levels) {
        device = generic_device_profile(level.profile);
        if (missing_cpu_feature(cpu_backend().features_of(host_platform().target(level.words)).c_str()).empty()) {
            break;
        }
    }
    device.name = cpu_name();
    device.features = present_cpu_features();
    device.cores = cores_of_machine();
    return device;
}

/** Refuses a target whose code has other vectors than those that a device's schedules are ranked and compiled for. */
void check_target(const std::string &target, const DeviceProfile &device) {
    const char *name = generic_device_of(target);
    const DeviceProfile generic = generic_device_profile(name);
    if (generic.backend != device.backend || generic.vector_lanes != device.vector_lanes ||
        generic.vector_registers != device.vector_registers) {
        throw FileError("the target '" + target + "' is for devices like " + name + ", but the device is '" +
                        device.name + "': name another with --device");
    }
}

/** The device as it would be with no more CPU features than a generic one. */
DeviceProfile lesser_cpu(const DeviceProfile &device, const std::string &level) {
    DeviceProfile lesser = generic_device_profile("generic_" + level);
    if (device.backend != lesser.backend || device.vector_lanes <= lesser.vector_lanes) {
        throw FileError("--also " + level + " is for CPUs below the device, but '" + device.name + "' has " +
                        device.features + " and no more than they have: leave it out");
    }
    lesser.name = device.name;
    lesser.cores = device.cores;
    return lesser;
}

}  // namespace

DeviceProfile find_device(const SessionOptions &options) {
    DeviceProfile device;
    if (!options.device.empty()) {
        device = device_of_option(options.device);
    } else if (options.backend == cpu_backend().name) {
        device = generic_cpu();
    } else {
        throw FileError("the device is not known: name its profile with --device (distile calibrate writes one on the "
                        "machine itself)");
    }
    if (device.backend != options.backend) {
        throw FileError("the device '" + device.name + "' is of the backend \"" + device.backend +
                        "\", but --backend is \"" + options.backend + "\"");
    }
    return options.level.empty() ? device : lesser_cpu(device, options.level);
}

int SessionOptions::parallel_jobs() const {
    return jobs > 0 ? jobs : cores_of_machine();
}

void add_dtype_option(CLI::App &command, std::string &dtype) {
    command.add_option("--dtype", dtype, "Take the operator in another type than its file's, as builds with DTYPE do");
}

void add_held_out_option(CLI::App &command, std::vector<std::string> &held_out) {
    command.add_option("--held-out", held_out, "Masks that the search does not see, to judge its result");
}

void take_suite(std::vector<std::string> &masks, std::vector<std::string> &held_out) {
    if (masks.empty()) {
        masks = {"suite:train"};
        held_out = held_out.empty() ? std::vector<std::string>{"suite:held-out"} : held_out;
    }
}

CLI::Option *add_session_options(CLI::App &command, SessionOptions &options) {
    CLI::Option *op = command.add_option("operator", options.op, "Operator file")->required();
    add_dtype_option(command, options.dtype);
    command.add_option("--masks", options.masks, mask_option_help);
    command.add_option("--weights", options.weights, weights_option_help);
    command.add_option("--backend", options.backend, "Backend")
        ->capture_default_str()
        ->check(CLI::IsMember(backend_names()));
    command.add_option("--device", options.device,
                       std::string(device_option_help) + " (default: a generic profile of this machine's CPU)");
    command.add_option("--target", options.target,
                       "Halide target, or for tensor cores x86-64-linux-cuda-cuda_capability_90a or _80 (default: what "
                       "the device can run)");
    add_math_option(command, options.math);
    command.add_option("--threads", options.threads, "Threads of a call (default: one per core of the device)")
        ->check(CLI::Range(1, 4096));
    command.add_option("--jobs", options.jobs, "Compilers that run at once (default: one per core)")
        ->check(CLI::Range(1, 4096));
    command.add_option("--timing-seconds", options.timing_seconds, "Seconds for the repeats of a measurement")
        ->capture_default_str()
        ->check(CLI::Range(0.001, 600.0));
    command.add_option("--measure-limit", options.measure_limit_s, "Seconds after which a measurement counts as hung")
        ->capture_default_str()
        ->check(CLI::Range(0.1, 3600.0));
    command.add_option("--compile-limit", options.compile_limit_s, "Seconds after which a compiler counts as hung")
        ->capture_default_str()
        ->check(CLI::Range(0.1, 3600.0));
    command.add_option("--memory-mb", options.memory_mb, "Memory that a compiler or a measurement may use")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 24));
    command
        .add_option("--seed", options.search.seed, "Seed; it makes a search repeatable, except for noise in the times")
        ->capture_default_str();
    return op;
}

void add_search_options(CLI::App &command, SessionOptions &options) {
    SearchOptions &search = options.search;
    command.add_option("-k", search.k, "Variants besides the dense candidate")
        ->capture_default_str()
        ->check(CLI::Range(1, 63));
    command.add_option("--trials", search.trials, "Schedules to measure in all, those of the log included")
        ->capture_default_str()
        ->check(CLI::Range(2, 1 << 24));
    command.add_option("--per-round", search.per_round, "Schedules to measure for each of the k rounds of a batch")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    command.add_option("--mini-batch", search.mini_batch, "Masks that are drawn for a batch")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    command
        .add_option("--counts", search.counts,
                    "Numbers of tiles to measure a schedule at (default: 6; on a GPU, "
                    "whose time moves in steps, 12)")
        ->check(CLI::Range(2, 64));
    command.add_option("--warm", options.warm, "Logs of other operators on the same backend to learn from first");
    command
        .add_option(
            "--strategy", options.strategy,
            "How to pick what is measured next: greedy (Algorithm 1 with a learned model), bayes (with a Gaussian "
            "process), grid (at even distances) or random")
        ->capture_default_str()
        ->check(CLI::IsMember(strategy_names()));
    command.add_flag("--no-bound", options.no_bound, "Search the whole space, without the analytical bound");
    command.add_flag("--no-model", options.no_model, "Search without a learned model, by the bound alone");
}

void check_weights_for(const std::string &backend, const std::string &weights) {
    const std::vector<BackendLayout> &layouts = get_backend(backend).layouts;
    const bool skips = std::any_of(layouts.begin(), layouts.end(),
                                   [](const BackendLayout &each) { return each.language == Language::Nonzeros; });
    if (!weights.empty() && !skips) {
        throw FileError(fmt::format("--weights is for CPUs and NVIDIA GPUs: no code for {} skips zeros, so where "
                                    "weights are 0 does not change its time",
                                    get_backend(backend).display_name));
    }
}

Operator read_operator(const std::string &path, const std::string &weights, const std::string &dtype) {
    Operator op = read_operator(path);
    if (!dtype.empty() && dtype != op.dtype().name) {
        op = in_type(op, dtype);
    }
    if (weights.empty()) {
        return op;
    }
    const double zeros = share_of_zeros(op, read_weights(weights, op), weights);
    if (op.typical_zeros == 0) {
        throw FileError(fmt::format("the operator '{}' says nothing of zeros, by which a build knows what to link: add "
                                    "\"weight_zeros\": {} to its \"typical\"",
                                    path, zeros));
    }
    op.typical_zeros = zeros;
    return op;
}

Session::Session(const SessionOptions &options)
    : op(options.all_weights ? with_all_weights(read_operator(options.op, "", options.dtype))
                             : read_operator(options.op, options.weights, options.dtype)),
      device(find_device(options)), code(choose_code(op, device, options.target, options.math)),
      workload(workload_of(op, device, code)), masks(read_mask_set(options.masks, op, &empty_masks)) {
    workload.threads = options.threads > 0 ? options.threads : workload.threads;
    check_target(code.target, device);
    check_weights_for(device.backend, options.weights);
    check_for_legal_points(space(), workload.problem);
}

Session::Session(const LogHeader &header, const std::vector<std::string> &other_masks)
    : op(header.op), device(header.device), code{header.target, header.math}, workload(workload_of(header)),
      masks(read_mask_set(other_masks.empty() ? header.masks : other_masks, op, &empty_masks)) {
}

void Session::check_machine(const SessionOptions &options) const {
    measure_backend(device.backend).check(batch_setup(options).device, code.target);
}

LogHeader Session::header(const SessionOptions &options) const {
    LogHeader header;
    header.op = op;
    header.backend = device.backend;
    header.target = code.target;
    header.math = code.math;
    header.device = device;
    header.threads = workload.threads;
    header.knobs = knob_names(space());
    header.seed = options.search.seed;
    header.masks = options.masks;
    header.weights = batch_setup(options).weights;
    return header;
}

BatchSetup Session::batch_setup(const SessionOptions &options) const {
    BatchSetup setup;
    setup.op = op;
    setup.backend = device.backend;
    setup.code = code;
    setup.device = options.device.rfind("generic_", 0) == 0 ? "" : device.name;
    setup.threads = workload.threads;
    setup.timing_seconds = options.timing_seconds;
    setup.compile_limit_s = options.compile_limit_s;
    setup.measure_limit_s = options.measure_limit_s;
    setup.memory_bytes = static_cast<int64_t>(options.memory_mb) << 20;
    setup.weights = options.all_weights ? "" : options.weights;
    return setup;
}

Pool Session::pool(bool pruned, bool dense) const {
    if (!pruned) {
        return Pool(space(), legal_points(space(), workload.problem));
    }
    const Ranking ranking = rank(workload, dense ? std::vector<Bucket>{density_bucket(workload, 1)} : masks.buckets());
    std::vector<Theta> kept;
    for (const Candidate &candidate : ranking.kept) {
        kept.push_back(candidate.theta);
    }
    return Pool(space(), kept);
}

std::unique_ptr<CostModel> Session::model(const SessionOptions &options, bool dense) const {
    const Strategy strategy = find_strategy(options.strategy);
    if (options.no_model || strategy == Strategy::Grid || strategy == Strategy::Random) {
        return std::make_unique<BoundModel>(workload);
    }
    if (strategy == Strategy::Bayes) {
        return std::make_unique<GaussianModel>(space(), workload, dense, !options.no_bound);
    }
    LearnedModelOptions model_options;
    model_options.dense = dense;
    model_options.with_bound = !options.no_bound;
    model_options.seed = options.search.seed;
    auto model = std::make_unique<LearnedModel>(space(), workload, model_options);
    for (const std::string &path : options.warm) {
        const LogContents log = read_search_log(path);
        if (log.header.backend != device.backend || log.header.knobs != knob_names(space())) {
            throw FileError("the log '" + path + "' is of the backend \"" + log.header.backend + "\" with the knobs " +
                            log.header.knobs + ": nothing can be learned from it for this space");
        }
        model->warm(workload_of(log.header), log.measured);
    }
    return model;
}

void say_how_to_measure(const std::string &folder, size_t measured, const std::string &log) {
    std::fputs(fmt::format("The next trials are compiled in '{0}'. Run `distile measure {0}` on the device, bring the "
                           "folder back, and run this command again: the {1} measurements so far are kept in {2}\n",
                           folder, measured, log)
                   .c_str(),
               stdout);
}

Plan plan_of(const Session &session, const Solution &solution, const std::string &name) {
    Plan plan = make_plan(name, session.op, get_backend(session.device.backend), session.code);
    plan.profiled_device = session.device.name;
    std::vector<const Measurement *> all = solution.members;
    all.push_back(solution.dense);
    std::map<std::string, int> seen;
    for (const Measurement *measurement : all) {
        const Theta &theta = measurement->theta;
        std::string variant = "t" + std::to_string(theta.at("tile_h")) + "x" + std::to_string(theta.at("tile_w"));
        variant = measurement->dense ? "dense" : variant + "_" + std::to_string(++seen[variant]);
        for (const MeasuredTime &time : measurement->times) {
            plan.times.push_back({variant, session.workload.threads, time.tiles, time.us});
        }
        add_variant(plan, variant, theta, measurement->dense);
    }
    return plan;
}

}  // namespace distile
