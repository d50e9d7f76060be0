#include "bench/harness/attention_summary.h"
#include "bench/harness/summary.h"
#include "bench/harness/tokens_summary.h"
#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace distile::bench {

namespace attention_summary {
namespace {

constexpr const char *kinds[] = {"attention", "scores", "values", "block"};

bool is_of_attention(const Json &row) {
    return std::find(std::begin(kinds), std::end(kinds), row.value("kind", "")) != std::end(kinds);
}

std::vector<const Json *> rows_of(const Json &rows) {
    std::vector<const Json *> found;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && is_of_attention(row) && row.contains("t_peer_us")) {
            found.push_back(&row);
        }
    }
    return found;
}

std::string name_of(const Json &row) {
    return fmt::format("{}, {}, {}", row.at("kind").get<std::string>(), row.at("op").get<std::string>(),
                       row.at("shape").get<std::string>());
}

double eta_of(const Json &row, const char *ours) {
    return speedup(row, "t_peer_us", ours) * row.at("work_fraction").get<double>();
}

/** The speed-up over the dense operator, eta, and the speed-up over packing where there is one. */
std::string cell_of(const Json &row) {
    const std::string text =
        fmt::format("{:.1f} ({:.2f})", speedup(row, "t_peer_us", "t_masked_us"), eta_of(row, "t_masked_us"));
    return row.contains("t_gather_us") ? fmt::format("{} {:.1f}", text, speedup(row, "t_gather_us", "t_masked_us"))
                                       : text;
}

constexpr double columns[] = {.05, .1, .3, .5, .7, 1};

std::string masks_of_blocks(const std::vector<const Json *> &rows) {
    double worst = 0;
    for (const Json *row : rows) {
        if (row->contains("t_masks_us")) {
            worst = std::max(worst, speedup(*row, "t_masks_us", "t_masked_us"));
        }
    }
    return worst == 0 ? "" : fmt::format("\nMasks take at most {:.1f} % of the time of a block.\n", 100 * worst);
}

}  // namespace
}  // namespace attention_summary

bool has_attention(const Json &rows) {
    using namespace attention_summary;
    return std::any_of(rows.begin(), rows.end(), is_of_attention);
}

std::string attention_lines(const Json &rows) {
    using namespace attention_summary;
    const std::vector<const Json *> measured = rows_of(rows);
    if (measured.empty()) {
        return "";
    }
    std::string text =
        "\nAttention and blocks over active tokens by their density: the speed-up over the dense operator "
        "from the byte mask, in brackets eta, which is this times the fraction of the work that is left, "
        "and the speed-up over the library with packed tokens, packing included.\n\n| Operator | Type | Batch |";
    for (const double density : columns) {
        text += fmt::format(" {:g} |", density);
    }
    text += "\n|---|---|---|---|---|---|---|---|---|\n";
    // In the order of the file.
    std::vector<std::string> heads;
    std::map<std::string, std::map<std::string, std::string>> lines;
    for (const Json *row : measured) {
        const std::string head = fmt::format("| {} | {} | {} |", name_of(*row), row->at("dtype").get<std::string>(),
                                             row->at("batch").get<int>());
        if (std::find(heads.begin(), heads.end(), head) == heads.end()) {
            heads.push_back(head);
        }
        lines[head][token_density(*row)] = cell_of(*row);
    }
    for (const std::string &head : heads) {
        text += head;
        for (const double density : columns) {
            const auto &cells = lines.at(head);
            const auto found = cells.find(fmt::format("{:.2f}", density));
            text += fmt::format(" {} |", found == cells.end() ? "-" : found->second);
        }
        text += "\n";
    }
    return text + masks_of_blocks(measured);
}

std::string attention_table(const Json &rows) {
    using namespace attention_summary;
    std::string lines;
    for (const Json *found : rows_of(rows)) {
        const Json &row = *found;
        const bool has_kernels = row.contains("t_kernels_us"), has_packed = row.contains("t_gather_us");
        lines +=
            fmt::format("| {} | {} | {} | {} | {:.3f} | {} | {} | {} | {} | {:.2f} | {} | {:.2f} | {} | {} |\n",
                        name_of(row), row.at("dtype").get<std::string>(), row.at("batch").get<int>(),
                        token_density(row), row.at("work_fraction").get<double>(), cell(row.at("t_peer_us"), 1),
                        cell(row.value("t_gather_us", 0.), 1), cell(row.value("t_kernels_us", 0.), 1),
                        cell(row.at("t_masked_us"), 1), speedup(row, "t_peer_us", "t_masked_us"),
                        has_kernels ? cell(eta_of(row, "t_kernels_us")) : "-", eta_of(row, "t_masked_us"),
                        has_packed ? cell(speedup(row, "t_gather_us", "t_masked_us")) : "-", row.value("variant", "-"));
    }
    return lines.empty()
               ? ""
               : "\nAttention and blocks over active tokens. Work: the fraction of multiplications that is "
                 "left. Packed: the library over packed tokens, packing included.\n\n"
                 "| Operator | Type | Batch | Density | Work | dense, us | packed, us | kernels, us | masked, "
                 "us | speed-up | eta, kernels | eta | over packed | Variant |\n"
                 "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n" +
                     lines;
}

Panel attention_panel(const Json &file) {
    using namespace attention_summary;
    const Json &header = file.at("header");
    Panel panel;
    panel.note = "dashed: packed tokens";
    panel.axis = "active tokens by all tokens";
    const std::vector<const Json *> rows = rows_of(file.at("rows"));
    const auto work = [](const Json &row) { return row.at("t_peer_us").get<double>() / row.at("batch").get<int>(); };
    const Json *largest = nullptr;
    for (const Json *row : rows) {
        if (row->at("kind") == "attention" && row->at("batch") == 1 && row->contains("t_gather_us") &&
            row->at("dtype") == rows.front()->at("dtype") && (largest == nullptr || work(*row) > work(*largest))) {
            largest = row;
        }
    }
    if (largest == nullptr) {
        return panel;
    }
    panel.title = fmt::format("{}, {}, {}", header.at("device").get<std::string>(),
                              largest->at("op").get<std::string>(), largest->at("dtype").get<std::string>());
    const auto add = [&](const char *keys, const char *name, const char *color, const char *ours, bool dashed) {
        std::set<std::pair<double, double>> points;
        for (const Json *row : rows) {
            if (row->at("kind") == "attention" && row->at("batch") == 1 && row->at("op") == largest->at("op") &&
                row->at("dtype") == largest->at("dtype") && row->at("keys") == keys && row->contains(ours)) {
                points.emplace(std::stod(token_density(*row)), eta_of(*row, ours));
            }
        }
        panel.curves.push_back({name, color, dashed, {points.begin(), points.end()}});
    };
    add("all", "all keys", "#266ebe", "t_masked_us", false);
    add("all", "", "#266ebe", "t_gather_us", true);
    add("active", "active keys", "#d9822b", "t_masked_us", false);
    add("active", "", "#d9822b", "t_gather_us", true);
    return panel;
}

}  // namespace distile::bench
