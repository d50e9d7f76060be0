#include "autoscheduler/command/commands.h"
#include "autoscheduler/search/objective.h"
#include "autoscheduler/search/report.h"
#include "plans/json_rows.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace distile {

namespace report_command {
namespace {

struct Options {
    std::vector<std::string> logs, masks, held_out, plans;
    std::string folder;
    int k = 6;
    bool json = false, quiet = false;
};

void report_logs(const Options &options) {
    nlohmann::json reports = nlohmann::json::array();
    std::vector<Plan> plans;
    for (const std::string &path : options.plans) {
        plans.push_back(read_plan(path));
    }
    for (const std::string &path : options.logs) {
        const LogContents log = read_search_log(path);
        if (!log.warning.empty()) {
            warn(log.warning);
        }
        const MaskSet masks = read_mask_set(options.masks.empty() ? log.header.masks : options.masks, log.header.op);
        std::vector<MaskSet> held_out;
        if (!options.held_out.empty()) {
            held_out.push_back(read_mask_set(options.held_out, log.header.op));
        }
        nlohmann::json report =
            make_report(log, masks, held_out.empty() ? nullptr : &held_out.front(), options.k, plans);
        std::vector<std::string> written;
        if (!options.folder.empty()) {
            std::error_code error;
            std::filesystem::create_directories(options.folder, error);
            const std::string base =
                (std::filesystem::path(options.folder) / std::filesystem::path(path).stem()).string();
            written = write_figures(report, base + "-");
            write_file(base + "-report.json", format_rows(report));
            written.push_back(base + "-report.json");
        }
        if (!options.json && !options.quiet) {
            std::fputs(reports.empty() ? "" : "\n", stdout);
            std::fputs(describe_report(report).c_str(), stdout);
            for (const std::string &file : written) {
                std::fputs(fmt::format("Written to {}\n", file).c_str(), stdout);
            }
        }
        reports.push_back(std::move(report));
    }
    if (options.json) {
        std::fputs(format_json(reports.size() == 1 ? reports[0] : reports).c_str(), stdout);
    }
}

}  // namespace
}  // namespace report_command

void add_report_command(CLI::App &app) {
    using namespace report_command;
    const auto options = std::make_shared<Options>();
    CLI::App *command = app.add_subcommand("report", "Report what searches found, from their logs: tables and figures");
    command->add_option("log", options->logs, "Logs of searches")->required();
    command->add_option("--masks", options->masks,
                        "Masks to judge by, as tune takes them (default: those of the search)");
    command->add_option("--held-out", options->held_out, "Masks that the search did not see");
    command->add_option("--plans", options->plans,
                        "Plans to compare with the search; the log must hold their variants");
    command->add_option("-k", options->k, "Variants besides the dense candidate")
        ->capture_default_str()
        ->check(CLI::Range(1, 63));
    command->add_option("-o,--out", options->folder, "Folder for figures (SVG) and the report (JSON)");
    command->add_flag("--json", options->json, "Print JSON");
    command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
    command->footer("Example:\n  distile report conv3x3_256.log --held-out blob:0.1:901 blob:0.3:902 -o figures");
    command->callback([options] { report_logs(*options); });
}

}  // namespace distile
