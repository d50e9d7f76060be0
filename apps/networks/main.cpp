// distile_networks: whole networks on a CPU, masked and dense. See docs/networks.md.
#include "autoscheduler/compile/process.h"
#include "plans/json_file.h"
#include "reference/processor.h"
#include "runner.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <unistd.h>

namespace {

using namespace distile;
using namespace distile::networks;
using Clock = std::chrono::steady_clock;

constexpr const char *description =
    "Runs a whole network on this CPU: checks the masked one against plain loops, and times it beside the dense one.\n"
    "Weights are random. The dense network is the same program with full masks.\n\n"
    "  distile_networks avit-s --density .3 .5 --build\n"
    "  distile_networks dynconv-resnet --size 224 --threads 2 --json resnet.json\n\n"
    "Networks:\n";

/** A line on the terminal, from the third second on. */
class ProgressLine {
public:
    ProgressLine() = default;
    ~ProgressLine() {
        if (shown_) {
            std::fputs("\r\033[K", stderr);
        }
    }
    ProgressLine(const ProgressLine &) = delete;
    ProgressLine &operator=(const ProgressLine &) = delete;

    void show(const std::string &what, int64_t done, int64_t total) {
        if (isatty(STDERR_FILENO) != 0 && Clock::now() - start_ > std::chrono::seconds(2)) {
            const std::string of = total > done ? fmt::format(" of {}", total) : "";
            std::fputs(fmt::format("\r\033[K{} {}{}", what, done + 1, of).c_str(), stderr);
            shown_ = true;
        }
    }

private:
    Clock::time_point start_ = Clock::now();
    bool shown_ = false;
};

struct Arguments {
    std::string network, json;
    std::vector<double> densities = {0};
    Options options;
    int32_t threads = 0;
    double seconds = 10;
    bool build = false, no_times = false, stages = false;
};

/** Compiles what is missing, if that is asked for. Returns the names of the operators that stay without any code. */
std::vector<std::string> build_missing(Engine &engine, Network &network, bool build) {
    const auto missing = missing_polykernels(engine, network);
    if (!build) {
        std::vector<std::string> names;
        for (const auto &[op, size] : missing) {
            if (!bindings::general_polykernel(op.key())) {
                names.push_back(op.name());
            }
        }
        return names;
    }
    try {
        build_polykernels(missing, [&](size_t done) {
            if (Interrupts::seen()) {
                throw Interrupted();
            }
            fmt::print(stderr, "PolyKernel {} of {}: {}\n", done + 1, missing.size(), missing[done].first.name());
        });
    } catch (const CommandFailed &) {
        if (Interrupts::seen()) {  // The compiler got the signal, too.
            throw Interrupted();
        }
        throw;
    }
    return {};
}

nlohmann::json run(const NetworkType &type, const Arguments &arguments, double density) {
    Engine engine(arguments.threads, arguments.stages);
    Options options = arguments.options;
    options.density = density;
    const std::unique_ptr<Network> network = type.make(engine, options);
    const std::vector<std::string> loops = build_missing(engine, *network, arguments.build);
    if (!loops.empty()) {
        fmt::print("{} operators have no code and run as plain loops: times say nothing of distile. --build "
                   "compiles them\n",
                   loops.size());
    }
    const Check checked = [&] {
        ProgressLine line;
        return check(engine, *network, [&](const auto &what, auto done, auto total) { line.show(what, done, total); });
    }();
    if (!(checked.error <= error_bound)) {
        throw std::runtime_error(
            fmt::format("the result is wrong: the largest error is {:.1e}, above {:.0e}", checked.error, error_bound));
    }
    std::optional<Timings> timings;
    if (!arguments.no_times) {
        ProgressLine line;
        timings = measure(engine, *network, arguments.seconds,
                          [&](const auto &what, auto done, auto total) { line.show(what, done, total); });
    }
    fmt::print("{}", text_of(checked, timings ? &*timings : nullptr));
    std::fflush(stdout);
    nlohmann::json row = json_of(checked, timings ? &*timings : nullptr);
    row["threads"] = engine.threads();
    row["stages"] = arguments.stages;
    row["operators without a PolyKernel"] = loops;
    return row;
}

int run_all(const Arguments &arguments) {
    const NetworkType &type = *std::find_if(network_types().begin(), network_types().end(),
                                            [&](const NetworkType &known) { return known.name == arguments.network; });
    bindings::load_cached_polykernels();
    nlohmann::json rows = nlohmann::json::array();
    fmt::print("{}: weights are random\n", type.name);
    for (const double density : arguments.densities) {
        rows.push_back(run(type, arguments, density));
    }
    if (!arguments.json.empty()) {
        write_file(arguments.json, format_json({{"network", type.name},
                                                {"batch", arguments.options.batch},
                                                {"size", arguments.options.size},
                                                {"small", arguments.options.small},
                                                {"weights", "random"},
                                                {"processor", cpu_name()},
                                                {"rows", rows}}));
    }
    return 0;
}

void add_options(CLI::App &app, Arguments &arguments) {
    std::vector<std::string> names;
    for (const NetworkType &type : network_types()) {
        names.emplace_back(type.name);
    }
    app.add_option("network", arguments.network, "The network")->required()->check(CLI::IsMember(names));
    app.add_option("--density", arguments.densities, "Mean densities, each above 0 and at most 1")
        ->check(CLI::Range(1e-3, 1.0));
    app.add_option("--size", arguments.options.size, "Pixels of a side (default: the network's)")
        ->check(CLI::Range(16, 4096));
    app.add_option("--batch", arguments.options.batch, "Images")->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--threads", arguments.threads, "Threads (default: one for each core)")->check(CLI::Range(1, 4096));
    app.add_option("--seconds", arguments.seconds, "To time each density")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    app.add_flag("--build", arguments.build, "First compile the PolyKernels that are missing, and keep them");
    app.add_flag("--stages", arguments.stages, "Run convolutions together (docs/stages.md), without PolyKernels");
    app.add_flag("--no-times", arguments.no_times, "Only check the result");
    app.add_flag("--small", arguments.options.small, "A narrow network of few layers, for a quick check");
    app.add_option("--json", arguments.json, "File to write the results to");
}

}  // namespace

int main(int argc, char **argv) {
    try {
        std::string text = description;
        for (const NetworkType &type : network_types()) {
            text += fmt::format("  {:22} {}\n", type.name, type.summary);
        }
        CLI::App app(text);
        Arguments arguments;
        add_options(app, arguments);
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError &error) {
            return app.exit(error);
        }
        const Interrupts interrupts;
        return run_all(arguments);
    } catch (const Interrupted &) {
        std::fputs("distile_networks: interrupted\n", stderr);
        return 130;
    } catch (const std::exception &error) {
        fmt::print(stderr, "distile_networks: error: {}.\n", printable(error.what()));
        return 1;
    }
}
