#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/rank.h"
#include "autoscheduler/command/commands.h"
#include "autoscheduler/search/mask_set.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace rank_command {
namespace {

struct Options {
    std::string op, device, target, out, form = "corrected";
    Math math = Math::Float32;
    std::vector<double> densities;
    std::vector<std::string> masks;
    int top = 10;
    bool json = false, quiet = false;
};

nlohmann::json to_json(const Ranking &ranking, const Operator &op, const DeviceProfile &device, const CodeChoice &code,
                       size_t top) {
    nlohmann::json densities = nlohmann::json::array(), kept = nlohmann::json::array();
    for (const Bucket &bucket : ranking.buckets) {
        densities.push_back(bucket.density);
    }
    for (size_t i = 0; i < std::min(top, ranking.kept.size()); i++) {
        kept.push_back({{"theta", ranking.kept[i].theta}, {"us", ranking.kept[i].us}});
    }
    return {{"distile_ranking", 1},
            {"operator", op.name},
            {"device", device.id()},
            {"target", code.target},
            {"legal_points", ranking.legal_points},
            {"kept_points", ranking.kept.size()},
            {"densities", densities},
            {"kept", kept}};
}

std::string describe(const Ranking &ranking, const Space &space, size_t top) {
    std::string text = fmt::format("{} legal schedules, {} kept. The best {} of them, by the bound in microseconds at "
                                   "a density of\n",
                                   ranking.legal_points, ranking.kept.size(), std::min(top, ranking.kept.size()));
    for (const Bucket &bucket : ranking.buckets) {
        text += fmt::format("{:>10.3f}", bucket.density);
    }
    text += "\n";
    for (size_t i = 0; i < std::min(top, ranking.kept.size()); i++) {
        for (const double us : ranking.kept[i].us) {
            text += fmt::format("{:>10.1f}", us);
        }
        text += "  " + space.describe(ranking.kept[i].theta) + "\n";
    }
    return text;
}

void rank_operator(const Options &options) {
    const Operator op = read_operator(options.op);
    const DeviceProfile device = device_of_option(options.device);
    const CodeChoice code = choose_code(op, device, options.target, options.math);
    const Workload workload = workload_of(op, device, code);
    std::vector<Bucket> buckets;
    if (!options.masks.empty()) {
        buckets = read_mask_set(options.masks, op).buckets();
    }
    for (const double density : options.densities) {
        buckets.push_back(density_bucket(workload, density));
    }
    Ranking ranking;
    {
        ProgressLine line(options.quiet);
        RankOptions rank_options;
        rank_options.form = options.form == "paper" ? BoundForm::Paper : BoundForm::Corrected;
        rank_options.progress = [&](const std::string &what, double part) { line.show(what, part); };
        ranking = rank(workload, buckets, rank_options);
    }
    if (!options.out.empty()) {
        write_file(options.out, format_json(to_json(ranking, op, device, code, ranking.kept.size())));
    }
    if (options.json) {
        std::fputs(format_json(to_json(ranking, op, device, code, options.top)).c_str(), stdout);
    } else if (!options.quiet) {
        std::fputs(describe(ranking, space_of(device.backend, workload.problem), options.top).c_str(), stdout);
        if (!options.out.empty()) {
            std::fputs(fmt::format("\nWritten to {}\n", options.out).c_str(), stdout);
        }
    }
}

}  // namespace
}  // namespace rank_command

void add_rank_command(CLI::App &app) {
    using namespace rank_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command =
        app.add_subcommand("rank", "Rank every schedule of an operator by the analytical bound, and keep the best");
    command->add_option("operator", options->op, "Operator file")->required();
    command->add_option("--device", options->device, device_option_help)->required();
    command->add_option("--target", options->target,
                        "Target of the code, for instance x86-64-linux-cuda-cuda_capability_80 (default: what the "
                        "device can run)");
    add_math_option(*command, options->math);
    CLI::Option *masks = command->add_option("--masks", options->masks, mask_option_help);
    command
        ->add_option("--density", options->densities,
                     "Parts of the pixels that are active (default without masks: .05,.1,.2,.3,.5,.7,.9,1)")
        ->delimiter(',')
        ->check(CLI::Range(1e-6, 1.0))
        ->excludes(masks);
    command->add_option("--form", options->form, "Form of the bound: corrected, or as the paper prints it")
        ->capture_default_str()
        ->check(CLI::IsMember({"corrected", "paper"}));
    command->add_option("--top", options->top, "Schedules to print")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 30));
    command->add_option("-o,--out", options->out, "JSON file for all that is kept");
    command->add_flag("--json", options->json, "Print JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
    command->footer("Examples:\n  distile rank data/operators/conv3x3_256.json --device generic_avx512 --density .3\n"
                    "  distile rank my_operator.json --device my_cpu.json --masks masks.npy -o kept.json\n"
                    "  distile rank data/operators/conv3x3_256.json --device generic_cuda_sm90 --math tf32");
    command->callback([options] {
        if (options->masks.empty() && options->densities.empty()) {
            options->densities = {.05, .1, .2, .3, .5, .7, .9, 1};
        }
        rank_operator(*options);
    });
}

}  // namespace distile
