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

void write_text(const std::string &path, const std::string &text) {
    std::ofstream stream(path);
    stream << text;
    stream.close();
    if (!stream) {
        throw std::runtime_error("the file '" + path + "' cannot be written");
    }
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
    std::vector<Json> files;
    for (const std::string &path : options.results) {
        files.push_back(read_results(path));
    }
    if (!options.figure.empty()) {
        std::vector<Json> of_gpus;
        std::copy_if(files.begin(), files.end(), std::back_inserter(of_gpus), is_gpu);
        write_text(options.figure, cuda_figure(of_gpus));
    }
    if (options.into.empty()) {
        for (const Json &file : files) {
            fmt::print("{}\n", summarise(file));
        }
        return;
    }
    std::string document = read_text(options.into);
    for (size_t i = 0; i < files.size(); i++) {
        const std::string name = std::filesystem::path(options.results[i]).filename().string();
        const bool gpu = is_gpu(files[i]);
        const bool has_goals =
            replace_part(document, name + " goals", gpu ? cuda_goals(files[i]) : cpu_goals(files[i]));
        const bool has_rows = replace_part(document, name + " rows", gpu ? cuda_rows(files[i]) : summarise(files[i]));
        if (!has_goals && !has_rows) {
            throw std::runtime_error(fmt::format(
                "the document '{0}' has neither a line '<!-- begin {1} goals -->' nor '<!-- begin {1} rows -->'",
                options.into, name));
        }
    }
    write_text(options.into, document);
}

}  // namespace distile::bench
