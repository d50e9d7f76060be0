#include "bench/harness/tokens_summary.h"
#include "bench/harness/mean.h"
#include "bench/harness/summary.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <map>
#include <utility>
#include <vector>

namespace distile::bench {

namespace tokens_summary {
namespace {

/** An operator: its name in results, and how people read it and its rival. */
struct Kind {
    const char *name, *caption, *rival;
};
constexpr Kind kinds[] = {
    {"linear", "Linear layers over active tokens", "gather, cuBLAS, scatter"},
};

/** The speed-up over the dense operator that was asked for, by density. */
struct Goal {
    const char *kind, *density;
    double speedup;
};
constexpr Goal goals[] = {{"linear", "0.10", 6}, {"linear", "0.30", 2.7}};

const Kind *kind_of(const Json &row) {
    const auto *found = std::find_if(std::begin(kinds), std::end(kinds),
                                     [&](const Kind &kind) { return row.value("kind", "") == kind.name; });
    return found == std::end(kinds) ? nullptr : found;
}

std::vector<const Json *> rows_of(const Json &rows, const Kind &kind) {
    std::vector<const Json *> found;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && kind_of(row) == &kind) {
            found.push_back(&row);
        }
    }
    return found;
}

struct Means {
    Mean dense_kernels, dense_masked, rival_kernels, rival_masked;
};

std::string means_of(const Json &rows, const Kind &kind) {
    std::map<std::pair<std::string, std::string>, Means> lines;
    for (const Json *row : rows_of(rows, kind)) {
        Means &means = lines[{row->at("dtype"), token_density(*row)}];
        means.dense_kernels.add(speedup(*row, "t_peer_us", "t_kernels_us"));
        means.dense_masked.add(speedup(*row, "t_peer_us", "t_masked_us"));
        means.rival_kernels.add(speedup(*row, "t_gather_us", "t_kernels_us"));
        means.rival_masked.add(speedup(*row, "t_gather_us", "t_masked_us"));
    }
    std::string text;
    for (const auto &[key, means] : lines) {
        const std::string &density = key.second;
        const auto *goal = std::find_if(std::begin(goals), std::end(goals), [&](const Goal &one) {
            return std::string(one.kind) == kind.name && one.density == density;
        });
        const std::string wanted =
            goal == std::end(goals)
                ? ""
                : fmt::format(" ({} {:g})", means.dense_kernels.value() >= goal->speedup ? "goal" : "**misses**",
                              goal->speedup);
        text += fmt::format("| {} | {} | {}{} | {} | {} | {} |\n", key.first, density, means.dense_kernels.text(),
                            wanted, means.dense_masked.text(), means.rival_kernels.text(), means.rival_masked.text());
    }
    return text.empty()
               ? ""
               : fmt::format("\n{}: how many times as fast as the dense operator, and as the library over the active "
                             "tokens ({}), which is given their list. Ours by the kernels alone, for a mask that is "
                             "known, and from the byte mask. Geometric means, in brackets the worst row.\n\n"
                             "| Type | Density | dense, kernels | dense, masked | over active tokens, kernels | over "
                             "active tokens, masked |\n|---|---|---|---|---|---|\n{}",
                             kind.caption, kind.rival, text);
}

}  // namespace
}  // namespace tokens_summary

std::string token_density(const Json &row) {
    using namespace tokens_summary;
    constexpr double step = .05;
    return fmt::format("{:.2f}", std::round(row.at("density").get<double>() / step) * step);
}

double speedup(const Json &row, const char *over, const char *ours) {
    using namespace tokens_summary;
    return row.at(over).get<double>() / row.at(ours).get<double>();
}

bool is_of_tokens(const Json &row) {
    using namespace tokens_summary;
    return kind_of(row) != nullptr;
}

std::string token_means(const Json &rows) {
    using namespace tokens_summary;
    std::string text;
    for (const Kind &kind : kinds) {
        text += means_of(rows, kind);
    }
    return text;
}

std::string token_table(const Json &rows) {
    using namespace tokens_summary;
    std::string text;
    for (const Kind &kind : kinds) {
        std::string lines;
        for (const Json *found : rows_of(rows, kind)) {
            const Json &row = *found;
            lines += fmt::format(
                "| {} {} | {} | {} | {} | {} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {} |\n",
                row.at("op").get<std::string>(), row.at("shape").get<std::string>(), row.at("dtype").get<std::string>(),
                row.at("batch").get<int>(), token_density(row), cell(row.at("t_peer_us"), 1),
                cell(row.at("t_gather_us"), 1), cell(row.at("t_kernels_us"), 1), cell(row.at("t_masked_us"), 1),
                speedup(row, "t_peer_us", "t_kernels_us"), speedup(row, "t_peer_us", "t_masked_us"),
                speedup(row, "t_gather_us", "t_kernels_us"), speedup(row, "t_gather_us", "t_masked_us"),
                row.at("variant").get<std::string>());
        }
        if (!lines.empty()) {
            text +=
                fmt::format("\n{}. The rival: {}.\n\n"
                            "| Operator | Type | Batch | Density | dense, us | rival, us | kernels, us | masked, us "
                            "| dense by kernels | dense by masked | rival by kernels | rival by masked | Variant |\n"
                            "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n{}",
                            kind.caption, kind.rival, lines);
        }
    }
    return text;
}

}  // namespace distile::bench
