#include "bench/harness/opencl_summary.h"
#include "bench/harness/mean.h"
#include "bench/harness/summary.h"
#include <fmt/core.h>
#include <map>
#include <utility>
#include <vector>

namespace distile::bench {

namespace opencl_summary {
namespace {

std::vector<const Json *> rows_of(const Json &rows) {
    std::vector<const Json *> found;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "opencl") {
            found.push_back(&row);
        }
    }
    return found;
}

struct Means {
    Mean kernels, from_mask;
    double goal = 0;
};

}  // namespace
}  // namespace opencl_summary

std::string opencl_means(const Json &rows) {
    using namespace opencl_summary;
    std::map<std::pair<int, std::string>, Means> lines;
    for (const Json *row : rows_of(rows)) {
        Means &means = lines[{row->at("batch"), fmt::format("{:.1f}", row->at("density").get<double>())}];
        means.kernels.add(row->at("ratio"));
        means.from_mask.add(row->at("ratio_masked"));
        means.goal = row->at("goal_ratio");
    }
    std::string text;
    for (const auto &[key, means] : lines) {
        const double ratio = means.kernels.value();
        text += fmt::format("| {} | {} | {:.2f} | {:.2f} | {} | {:.2f} |\n", key.first, key.second, ratio, means.goal,
                            ratio <= means.goal ? "met" : "MISSED", means.from_mask.value());
    }
    return text.empty()
               ? ""
               : "\nOpenCL's time by CUDA's, in float32: calls in a row and the wait for them, geometric "
                 "means over the operators.\n\n"
                 "| Batch | Density | Kernels | At most | | From the byte mask |\n|---|---|---|---|---|---|\n" +
                     text;
}

std::string opencl_table(const Json &rows) {
    using namespace opencl_summary;
    std::string text;
    for (const Json *found : rows_of(rows)) {
        const Json &row = *found;
        text +=
            fmt::format("| {} {} | {} | {:.2f} | {} | {} | {:.2f} | {:.2f} | {} | {} |\n",
                        row.at("op").get<std::string>(), row.at("shape").get<std::string>(), row.at("batch").get<int>(),
                        row.at("density").get<double>(), cell(row.at("t_us"), 1), cell(row.at("t_plain_us"), 1),
                        row.at("ratio").get<double>(), row.at("ratio_masked").get<double>(),
                        row.at("variant").get<std::string>(), row.at("cuda_variant").get<std::string>());
    }
    return text.empty() ? ""
                        : "\nOpenCL against CUDA: calls in a row, by the host's clock.\n\n"
                          "| Operator | Batch | Density | OpenCL, us | CUDA, us | ratio | from the byte mask | Variant "
                          "| CUDA's |\n|---|---|---|---|---|---|---|---|---|\n" +
                              text;
}

}  // namespace distile::bench
