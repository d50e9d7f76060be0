#include "autoscheduler/command/commands.h"
#include "autoscheduler/measure/measure_backend.h"
#include "autoscheduler/measure/waiting.h"
#include "autoscheduler/search/disturbance.h"
#include "plans/operator.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace calibrate_command {
namespace {

struct Options {
    std::string device = cpu_backend().name, out;
    int cores = 0;
    bool json = false, quiet = false;
};

std::string describe(const DeviceProfile &device) {
    const Backend &backend = get_backend(device.backend);
    std::string text =
        fmt::format("{}\n{:.2f} GHz; {:.1f} {} a cycle, {:.1f} cycles each; a launch takes {:.1f} us\n"
                    "A task takes {:.3g} us for each 1000 operations of {} and {:.3g} us to start\n",
                    device.id(), device.ghz, device.fma_per_cycle, backend.multiply_adds, device.fma_latency,
                    device.launch_us, 1000 * device.alpha_us, backend.operation, device.gamma_us);
    for (const MemoryLevel &level : device.memory) {
        text += fmt::format("  {:<8}{:>12} {:>10.1f} GB/s {:>8.1f} ns  {}\n", level.name,
                            level.bytes == 0 ? "" : fmt::format("{} KB", level.bytes >> 10), level.gb_per_s,
                            level.latency_ns, level.shared ? "for all" : fmt::format("for each {}", backend.core));
    }
    return text;
}

void calibrate(const Options &options) {
    DeviceProfile device;
    std::string doubt;
    {
        ProgressLine line(options.quiet);
        const auto progress = [&](const std::string &what, double part) { line.show(what, part); };
        const Waiting waiting(options.cores);
        device = measure_backend(options.device).calibrate(options.cores, progress);
        const bool on_cpu = options.device == cpu_backend().name;
        doubt = doubt_of(disturbance_of({}, on_cpu ? waiting.share() : 0));
    }
    if (!doubt.empty()) {
        warn(fmt::format("the profile is doubtful; {}; run the same command again when nothing else runs", doubt));
    }
    const std::string text = format_json(to_json(device));
    if (!options.out.empty()) {
        write_file(options.out, text);
    }
    if (options.json) {
        std::fputs(text.c_str(), stdout);
    } else if (!options.quiet) {
        std::fputs(describe(device).c_str(), stdout);
        if (!options.out.empty()) {
            std::fputs(fmt::format("Written to {}\n", options.out).c_str(), stdout);
        }
    }
}

}  // namespace
}  // namespace calibrate_command

void add_calibrate_command(CLI::App &app) {
    using namespace calibrate_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand(
        "calibrate", "Measure this machine's device profile, which ranks schedules; the machine should be idle");
    command->add_option("-o,--out", options->out, "Device profile to write");
    command->add_option("--device", options->device, "What to calibrate")
        ->capture_default_str()
        ->check(CLI::IsMember(backend_names()));
    command->add_option("--cores", options->cores, "Cores or multiprocessors that calls will use (default: all)")
        ->check(CLI::Range(1, 4096));
    command->add_flag("--json", options->json, "Print the profile as JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors and warnings");
    command->footer("Examples:\n  distile calibrate -o my_cpu.json\n"
                    "  distile calibrate --device cuda --cores 16 -o slice_of_my_gpu.json");
    command->callback([options] { calibrate(*options); });
}

}  // namespace distile
