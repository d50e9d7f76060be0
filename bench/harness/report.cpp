#include "report.h"
#include "cuda_summary.h"
#include "summary.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace distile::bench {

namespace {

std::string read_text(const std::string &path) {
    std::ifstream stream(path);
    if (!stream) {
        throw std::runtime_error("the document '" + path + "' cannot be opened");
    }
    return std::string(std::istreambuf_iterator<char>(stream), {});
}

bool is_gpu(const Json &file) {
    return file.at("header").value("backend", "cpu") == "cuda";
}

/** Replaces what stands between two lines; false if they are not there. */
bool replace_part(std::string &document, const std::string &name, const std::string &text) {
    const std::string begin = "<!-- begin " + name + " -->\n", end = "<!-- end -->";
    const size_t at = document.find(begin);
    if (at == std::string::npos) {
        return false;
    }
    const size_t from = at + begin.size(), to = document.find(end, from);
    if (to == std::string::npos) {
        throw std::runtime_error("the document has no '" + end + "' after '<!-- begin " + name + " -->'");
    }
    document.replace(from, to - from, text);
    return true;
}

/** The parts of a file of results that documents show. */
struct Parts {
    std::string goals, rows;
};

/** Throws std::runtime_error where something is missing in the file. */
Parts make_parts(const std::string &path, const Json &file) {
    try {
        return is_gpu(file) ? Parts{cuda_goals(file), cuda_rows(file)} : Parts{cpu_goals(file), cpu_rows(file)};
    } catch (const Json::exception &error) {
        throw std::runtime_error("the results '" + path + "' cannot be shown: " + error.what());
    }
}

}  // namespace

void add_report_options(CLI::App &app, ReportOptions &options) {
    CLI::Option *summary =
        app.add_option("--summary", options.results, "Print files of results as Markdown and measure nothing");
    app.add_option("--into", options.into, "With --summary: put the tables into this document in place of printing")
        ->needs(summary);
    app.add_option("--figure", options.figure, "With --summary of GPUs: draw eta by density into this SVG file")
        ->needs(summary);
}

void report(const ReportOptions &options) {
    // Nothing is written before all of it is there.
    std::vector<Parts> parts;
    std::vector<Json> of_gpus;
    for (const std::string &path : options.results) {
        const Json file = read_results(path);
        parts.push_back(make_parts(path, file));
        if (is_gpu(file)) {
            of_gpus.push_back(file);
        }
    }
    const std::string figure = options.figure.empty() ? "" : cuda_figure(of_gpus);
    if (options.into.empty()) {
        for (size_t i = 0; i < parts.size(); i++) {
            fmt::print("{}\n{}\n", parts[i].goals, parts[i].rows);
        }
    } else {
        std::string document = read_text(options.into);
        for (size_t i = 0; i < parts.size(); i++) {
            const std::string name = std::filesystem::path(options.results[i]).filename().string();
            const bool has_goals = replace_part(document, name + " goals", parts[i].goals);
            const bool has_rows = replace_part(document, name + " rows", parts[i].rows);
            if (!has_goals && !has_rows) {
                throw std::runtime_error(fmt::format(
                    "the document '{0}' has neither a line '<!-- begin {1} goals -->' nor '<!-- begin {1} rows -->'",
                    options.into, name));
            }
        }
        replace_file(options.into, document);
    }
    if (!options.figure.empty()) {
        replace_file(options.figure, figure);
    }
}

}  // namespace distile::bench
