// Every operator of the tests on every device of the machine: what runs, whether it is right, and how fast it is.
#include "autoscheduler/measure/measure_backend.h"
#include "autoscheduler/search/spread.h"
#include "linked_polykernels.h"
#include "masks/mask_families.h"
#include "plans/backend.h"
#include "plans/json_file.h"
#include "plans/operator.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <distile/distile.hpp>
#include <exception>
#include <filesystem>
#include <fmt/core.h>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

using namespace distile;
using nlohmann::json;

namespace {

constexpr const char *examples = R"(
Examples:
  device_operators support                            which operator runs where, or why not
  device_operators test                               every variant on every device, against plain loops
  device_operators test --device opencl --filter conv3
  device_operators perf --device cuda --filter '^test_conv3_16_48_' --json
A device that the machine lacks is named with the reason, and is no failure. The command ends with 1 if a result is
wrong.
)";

struct Options {
    std::string mode, filter;
    std::vector<std::string> devices = backend_names();
    bool as_json = false;
};

/** The operator of a PolyKernel: its file has its name, without what says for which device it is. */
Operator operator_of(const std::string &polykernel) {
    std::string name = polykernel;
    for (;;) {
        const std::filesystem::path path = std::filesystem::path(DISTILE_TEST_OPERATORS) / (name + ".json");
        if (std::filesystem::exists(path)) {
            return read_operator(path.string());
        }
        const size_t end = name.rfind('_');
        if (end == std::string::npos) {
            throw std::runtime_error("no file in " DISTILE_TEST_OPERATORS " is of the operator of " + polykernel);
        }
        name.resize(end);
    }
}

/** A device, or why there is none. */
struct Device {
    const MeasureBackend *backend = nullptr;
    std::unique_ptr<TrialDevice> trials;
    std::string name, missing;
};

distile_device device_of(const std::string &backend) {
    return backend == "cpu" ? DISTILE_CPU : backend == "cuda" ? DISTILE_CUDA : DISTILE_OPENCL;
}

Device open_device(const std::string &backend) {
    Device device{&measure_backend(backend), nullptr, "", ""};
    try {
        device.trials = device.backend->trial_device(0);
        device.name = device.trials->name();
    } catch (const std::exception &error) {
        device.missing = error.what();
    }
    return device;
}

std::vector<uint8_t> draw(const TrialData &data, double density) {
    return random_mask(data.batch, data.output_extents.height, data.output_extents.width, density, 1).bytes;
}

/** Why a device cannot run a PolyKernel; "" if it can. */
std::string why_not(const Device &device, const distile_polykernel &polykernel, const Operator &op) {
    try {
        const TrialData data(op, 1, {op.typical_height, op.typical_width}, false);
        device.trials->runner(alone(polykernel, 0), data);
        return "";
    } catch (const Error &error) {
        if (error.status() != DISTILE_ERROR_UNSUPPORTED_DEVICE) {
            throw;
        }
        return error.what();
    }
}

/** What is wrong with a variant; "" if nothing is. */
std::string test(const Device &device, const distile_polykernel &polykernel, const Operator &op) {
    constexpr size_t most_pixels = 500;
    const TrialData data(op, 2, {op.typical_height, op.typical_width}, false);
    const std::unique_ptr<TrialRunner> runner = device.trials->runner(polykernel, data);
    for (const double density : {0.0, 0.3, 1.0}) {
        const std::string wrong = check_output(*runner, data, polykernel, draw(data, density), most_pixels);
        if (!wrong.empty()) {
            return fmt::format("at density {}: {}", density, wrong);
        }
    }
    return "";
}

constexpr double timed_densities[] = {0.1, 0.3, 1.0};

/** Microseconds of a call, by density. */
std::vector<double> time(const Device &device, const distile_polykernel &polykernel, const Operator &op) {
    constexpr int rounds = 5;
    const TrialData data(op, 4, {op.typical_height, op.typical_width}, false);
    const std::unique_ptr<TrialRunner> runner = device.trials->runner(polykernel, data);
    std::vector<double> medians;
    for (const double density : timed_densities) {
        const size_t mask = runner->add_mask(draw(data, density));
        std::vector<double> times(rounds);
        std::generate(times.begin(), times.end(), [&] { return runner->time_us(mask); });
        medians.push_back(Spread(times).median);
    }
    return medians;
}

/** Goes through the PolyKernels of the devices and prints a line for each, or for each variant. */
class Report {
public:
    explicit Report(Options options) : options_(std::move(options)), wanted_(options_.filter) {
    }

    /** Returns whether nothing was wrong. */
    bool run() {
        for (const std::string &backend : options_.devices) {
            const Device device = open_device(backend);
            line({{"device", backend}, {"name", device.name}, {"missing", device.missing}},
                 device.trials ? fmt::format("{}: {}", backend, device.name)
                               : fmt::format("[SKIP] {}: {}", backend, device.missing));
            for (const auto &[name, first] : linked_polykernels) {
                for (const distile_polykernel *each = first; device.trials && each; each = each->fallback) {
                    if (each->device == device_of(backend) && std::regex_search(name, wanted_)) {
                        report(device, name, *each);
                    }
                }
            }
        }
        if (options_.as_json) {
            std::cout << lines_.dump(1) << "\n";
        } else if (options_.mode == "test") {
            fmt::print("{} variants, {} wrong, {} PolyKernels not for these devices\n", tested_, wrong_, unsupported_);
        }
        return wrong_ == 0;
    }

private:
    void line(json fields, const std::string &text) {
        if (options_.as_json) {
            lines_.push_back(std::move(fields));
        } else {
            fmt::print("{}\n", text);
            std::fflush(stdout);
        }
    }

    void report(const Device &device, const std::string &name, const distile_polykernel &polykernel) {
        const Operator op = operator_of(name);
        const std::string reason = why_not(device, polykernel, op);
        json fields = {{"device", device.backend->backend.name},
                       {"polykernel", name},
                       {"plan", polykernel.name},
                       {"supported", reason.empty()}};
        if (!reason.empty()) {
            unsupported_++;
            fields["reason"] = reason;
            line(fields, fmt::format("  {}: no: {}", polykernel.name, reason));
            return;
        }
        if (options_.mode == "support") {
            line(fields, fmt::format("  {}: yes, {} variants", polykernel.name, polykernel.num_variants));
            return;
        }
        for (int32_t i = 0; i < polykernel.num_variants; i++) {
            const distile_polykernel variant = alone(polykernel, i);
            fields["variant"] = variant.variants->name;
            const std::string start = fmt::format("  {}, variant {}: ", polykernel.name, variant.variants->name);
            if (options_.mode == "test") {
                const std::string wrong = test(device, variant, op);
                tested_++;
                wrong_ += wrong.empty() ? 0 : 1;
                fields["wrong"] = wrong;
                line(fields, start + (wrong.empty() ? "right" : "WRONG " + wrong));
            } else {
                const std::vector<double> times = time(device, variant, op);
                std::string text = start;
                for (size_t density = 0; density < times.size(); density++) {
                    fields["us"][fmt::format("{}", timed_densities[density])] = times[density];
                    text += fmt::format("{:.1f} us at {}{}", times[density], timed_densities[density],
                                        density + 1 < times.size() ? ", " : "");
                }
                line(fields, text);
            }
        }
    }

    Options options_;
    std::regex wanted_;
    json lines_ = json::array();
    int tested_ = 0, wrong_ = 0, unsupported_ = 0;
};

}  // namespace

int main(int argc, char **argv) {
    CLI::App app("Every operator of the tests on every device of the machine");
    app.footer(examples);
    Options options;
    app.add_option("mode", options.mode, "test: compare with plain loops; perf: time; support: say what runs")
        ->required()
        ->check(CLI::IsMember({"test", "perf", "support"}));
    app.add_option("--device", options.devices, "Devices")
        ->check(CLI::IsMember(backend_names()))
        ->capture_default_str();
    app.add_option("--filter", options.filter, "Regular expression that the names of PolyKernels match");
    app.add_flag("--json", options.as_json, "Print JSON");
    CLI11_PARSE(app, argc, argv);
    try {
        return Report(options).run() ? 0 : 1;
    } catch (const std::exception &error) {
        fmt::print(stderr, "device_operators: error: {}\n", error.what());
        return 2;
    }
}
