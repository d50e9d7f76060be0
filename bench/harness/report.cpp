#include "bench/harness/report.h"
#include "bench/harness/attention_summary.h"
#include "bench/harness/break_even_summary.h"
#include "bench/harness/cuda_summary.h"
#include "bench/harness/quantized_summary.h"
#include "bench/harness/scaling_summary.h"
#include "bench/harness/summary.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fmt/core.h>
#include <stdexcept>
#include <utility>

namespace distile::bench {

namespace {

/** What is made of a file of results. */
struct Parts {
    std::string goals, rows;
    Panel panel;
    std::vector<BreakEvenPanel> break_even;
    std::vector<ScalingPanel> scaling;
};

/** Results of what is measured from Python, in one table. */
Parts make_python_parts(const Json &file, const std::string &goals, const std::string &rows, Panel panel) {
    const std::string about = about_python(file);
    return {about + goals, about + rows + not_measured(file.at("rows")), std::move(panel), {}, {}};
}

/** How results are shown: the first for the backend in their header that knows their rows. */
constexpr struct {
    const char *backend;
    bool (*knows)(const Json &rows); /**< Null: all. */
    Parts (*show)(const Json &file);
} reporters[] = {
    {"cpu", has_attention,
     [](const Json &file) {
         const Json &rows = file.at("rows");
         return make_python_parts(file, attention_lines(rows), attention_table(rows), attention_panel(file));
     }},
    {"cpu", has_scaling,
     [](const Json &file) {
         const Json &rows = file.at("rows");
         Parts parts = make_python_parts(file, scaling_goals(rows), scaling_table(rows), {});
         parts.scaling = scaling_panels(file);
         return parts;
     }},
    {"cpu", nullptr,
     [](const Json &file) {
         return Parts{cpu_goals(file), cpu_rows(file), cpu_panel(file), {}, {}};
     }},
    {"cuda", has_quantized,
     [](const Json &file) {
         const Json &rows = file.at("rows");
         return make_python_parts(file, quantized_goals(rows), quantized_table(rows), {});
     }},
    {"cuda", nullptr,
     [](const Json &file) {
         return Parts{cuda_goals(file), cuda_rows(file), cuda_panel(file), break_even_panels(file), {}};
     }},
};

/** Throws std::runtime_error where something is missing in the file. */
Parts make_parts(const std::string &path, const Json &file) {
    // Older results of CPUs do not name it.
    const std::string backend = file.at("header").value("backend", reporters[0].backend);
    try {
        for (const auto &reporter : reporters) {
            if (backend == reporter.backend && (!reporter.knows || reporter.knows(file.at("rows")))) {
                return reporter.show(file);
            }
        }
        throw std::runtime_error("the results '" + path + "' are of an unknown backend '" + backend + "'");
    } catch (const Json::exception &error) {
        throw std::runtime_error("the results '" + path + "' cannot be shown: " + error.what());
    }
}

}  // namespace

void add_report_options(CLI::App &app, ReportOptions &options) {
    CLI::Option *summary =
        app.add_option("--summary", options.results, "Print files of results as Markdown and measure nothing");
    app.add_option("--pages", options.pages,
                   "With --summary: write a page of rows for each file into this folder, and print nothing")
        ->needs(summary);
    app.add_option("--figure", options.figure,
                   "With --summary: draw eta by density, or speed by the number of threads, into this SVG file")
        ->needs(summary);
    app.add_option("--break-even", options.break_even,
                   "With --summary of GPUs: draw the densities at which the dense peer is as fast into this SVG file")
        ->needs(summary);
}

void report(const ReportOptions &options) {
    // Nothing is written before all of it is there.
    std::vector<Parts> parts;
    std::vector<Panel> panels;
    std::vector<BreakEvenPanel> break_even;
    std::vector<ScalingPanel> scaling;
    for (const std::string &path : options.results) {
        parts.push_back(make_parts(path, read_results(path)));
        panels.push_back(parts.back().panel);
        const std::vector<BreakEvenPanel> &more = parts.back().break_even;
        break_even.insert(break_even.end(), more.begin(), more.end());
        scaling.insert(scaling.end(), parts.back().scaling.begin(), parts.back().scaling.end());
    }
    if (!options.break_even.empty() && break_even.empty()) {
        throw std::runtime_error("the results hold no operator of a GPU with masks of two densities in one type, as "
                                 "--break-even needs");
    }
    if (!options.figure.empty()) {
        replace_file(options.figure, scaling.empty() ? draw_eta(panels) : draw_scaling(scaling));
    }
    if (!options.break_even.empty()) {
        replace_file(options.break_even, draw_break_even(break_even));
    }
    for (size_t i = 0; i < parts.size(); i++) {
        if (!options.pages.empty()) {
            const std::filesystem::path results(options.results[i]);
            replace_file((options.pages / results.filename().replace_extension(".md")).string(),
                         fmt::format("# {}\n\n{}\n# Every row\n\n{}", results.filename().string(), parts[i].goals,
                                     parts[i].rows));
        } else if (options.figure.empty() && options.break_even.empty()) {
            fmt::print("{}\n{}\n", parts[i].goals, parts[i].rows);
        }
    }
}

}  // namespace distile::bench
