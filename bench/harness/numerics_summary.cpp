#include "bench/harness/numerics_summary.h"
#include "bench/harness/break_even_summary.h"
#include "bench/harness/mean.h"
#include "bench/harness/numerics_lines.h"
#include "bench/harness/summary.h"
#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace distile::bench {

namespace numerics_summary {
namespace {

/** The goals for the means of speed-ups; 0 if there is none. */
struct Goal {
    const char *dtype;
    int batch;
    const char *density;
    double kernels, masked;
};
constexpr Goal goals[] = {
    {"tf32", 1, "0.1", 2.1, 0},      {"tf32", 1, "0.3", 1.6, 1.2},   {"tf32", 4, "0.1", 3.6, 0},
    {"tf32", 4, "0.3", 2.2, 1.9},    {"tf32", 4, "1.0", .9, 0},      {"tf32", 32, "0.1", 6.5, 0},
    {"tf32", 32, "0.3", 3.2, 3},     {"tf32", 32, "1.0", .9, 0},     {"float16", 1, "0.1", 2.3, 0},
    {"float16", 1, "0.3", 1.9, 1.3}, {"float16", 4, "0.1", 3.5, 0},  {"float16", 4, "0.3", 2.4, 2},
    {"float16", 4, "1.0", 1, 0},     {"float16", 32, "0.1", 7.5, 0}, {"float16", 32, "0.3", 3.8, 3.6},
    {"float16", 32, "1.0", 1, 0}};
/** The least ratio of our rate on masks of blocks to that of our dense code. */
constexpr double blocks_goal = .95;

/** The columns of means: masks, and their densities as row names have them. */
struct Column {
    const char *mask, *density, *head;
};
constexpr Column columns[] = {{"blob", "0.02", "0.02"},
                              {"blob", "0.05", "0.05"},
                              {"blob", "0.1", "0.1"},
                              {"blob", "0.3", "0.3"},
                              {"blob", "0.5", "0.5"},
                              {"blob", "1.0", "1.0"},
                              {"blocks8x8", "0.3", "8x8 blocks, 0.3"},
                              {"sige_sd_inpaint", "real", "sige_sd_inpaint"},
                              {"sige_church", "real", "sige_church"},
                              {"sige_church_edit", "real", "sige_church_edit"}};

/** Null if it was not measured. */
const NumericsLine *find(const std::vector<NumericsLine> &lines, const std::string &dtype, int batch,
                         const std::string &op, const Column &column) {
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const NumericsLine &one) {
        return one.dtype == dtype && one.batch == batch && one.op == op && one.mask == column.mask &&
               one.density == column.density;
    });
    return line == lines.end() ? nullptr : &*line;
}

/** The mean over the operators of what `value` makes of a line; empty unless all were measured. */
template<typename Value> Mean mean_of(const std::vector<NumericsLine> &lines, const std::string &dtype, int batch,
                                      const Column &column, Value value) {
    Mean mean;
    for (const std::string &op : mean_operators) {
        const NumericsLine *line = find(lines, dtype, batch, op, column);
        if (!line) {
            return {};
        }
        mean.add(value(*line), op);
    }
    return mean;
}

double by_kernels(const NumericsLine &line) {
    return line.peer / line.kernels;
}

double by_masked(const NumericsLine &line) {
    return line.peer / line.masked;
}

/** A mean beside its goal, if there is one. */
std::string against(const Mean &mean, double goal) {
    return mean.text() + (mean.empty() || goal == 0 ? ""
                          : mean.value() >= goal    ? fmt::format(", goal {:.2f}", goal)
                                                    : fmt::format(", **misses** {:.2f}", goal));
}

Goal goal_of(const std::string &dtype, int batch, const Column &column) {
    const auto *found = std::find_if(std::begin(goals), std::end(goals), [&](const Goal &goal) {
        return goal.dtype == dtype && goal.batch == batch && std::strcmp(column.mask, "blob") == 0 &&
               std::strcmp(goal.density, column.density) == 0;
    });
    return found == std::end(goals) ? Goal{} : *found;
}

std::string speedup_means(const std::vector<NumericsLine> &lines, bool has_goals) {
    std::vector<Column> shown;
    for (const Column &column : columns) {
        if (std::any_of(lines.begin(), lines.end(), [&](const NumericsLine &line) {
                return line.dtype != strict_dtype && line.mask == column.mask && line.density == column.density;
            })) {
            shown.push_back(column);
        }
    }
    std::string head = "| Type | Batch | Timed |", rule = "|---|---|---|", text;
    for (const Column &column : shown) {
        head += fmt::format(" {} |", column.head);
        rule += "---|";
    }
    for (const std::string dtype : numerics_dtypes) {
        for (const int batch : batches_of(lines)) {
            std::string kernels, masked;
            bool measured = false;
            for (const Column &column : shown) {
                const Goal goal = has_goals ? goal_of(dtype, batch, column) : Goal{};
                const Mean mean = mean_of(lines, dtype, batch, column, by_kernels);
                measured = measured || !mean.empty();
                kernels += " " + against(mean, goal.kernels) + " |";
                masked += " " + against(mean_of(lines, dtype, batch, column, by_masked), goal.masked) + " |";
            }
            if (measured && dtype != strict_dtype) {
                text += fmt::format("| {0} | {1} | kernels |{2}\n| {0} | {1} | from the mask |{3}\n", dtype, batch,
                                    kernels, masked);
            }
        }
    }
    return text.empty() ? ""
                        : "\nSpeed-ups over cuDNN in the same type by density: geometric means over operators 3, 7, 12 "
                          "and 21, with the worst in brackets; blob masks, blocks and real masks, mode keep.\n\n" +
                              head + "\n" + rule + "\n" + text;
}

/** The rate of code with tiles of 8 x 8 on masks of blocks by that of our dense code. */
std::string block_rates(const std::vector<NumericsLine> &lines, bool has_goals) {
    std::string text;
    for (const std::string dtype : numerics_dtypes) {
        for (const int batch : batches_of(lines)) {
            const Mean mean = mean_of(lines, dtype, batch, {"blocks8x8", "0.3", ""},
                                      [](const NumericsLine &line) { return line.active * by_kernels(line); });
            if (!mean.empty()) {
                text += fmt::format("| {} | {} | {} |\n", dtype, batch, against(mean, has_goals ? blocks_goal : 0));
            }
        }
    }
    return text.empty() ? ""
                        : "\nThe rate of kernels with tiles of 8 x 8 on masks of such blocks by that of our fastest "
                          "dense variant.\n\n| Type | Batch | Rate |\n|---|---|---|\n" +
                              text;
}

/** Masks of real edits with so few active pixels are small. */
constexpr double small_edit = .05;

bool is_small_edit(const NumericsLine &line) {
    return line.mask.rfind("sige_", 0) == 0 && line.active <= small_edit;
}

/** The least speed-up from the mask on over all small edits. */
std::string edit_table(const std::vector<NumericsLine> &all, bool has_goals) {
    std::vector<NumericsLine> lines;
    std::copy_if(all.begin(), all.end(), std::back_inserter(lines), is_small_edit);
    if (lines.empty()) {
        return "";
    }
    const auto [least, most] = std::minmax_element(
        lines.begin(), lines.end(), [](const NumericsLine &a, const NumericsLine &b) { return a.active < b.active; });
    const std::string table =
        batch_table(batches_of(lines), " -", [&](const std::string &dtype, const std::string &op, int batch) {
            Mean mean;
            for (const NumericsLine &line : lines) {
                if (line.dtype == dtype && line.op == op && line.batch == batch) {
                    mean.add(by_masked(line));
                }
            }
            const bool missed = !mean.empty() && has_goals && dtype == "tf32" && mean.worst() <= 1;
            return mean.empty() ? "" : mean.text() + (missed ? ", **misses** 1.00" : "");
        });
    return fmt::format("\nReal edits with {:.3f} to {:.3f} of the pixels active: speed-ups over cuDNN in the same type "
                       "from the mask on, and in brackets the least.\n\n{}",
                       least->active, most->active, table);
}

/** Speed-ups of the other operators on blob masks: means over all of them at each density. */
std::string other_operator_means(const std::vector<NumericsLine> &lines) {
    // By type, batch and density.
    std::map<std::tuple<std::string, int, std::string>, std::pair<Mean, Mean>> means;
    std::map<std::tuple<std::string, int, std::string>, std::pair<int, int>> counts;
    for (const NumericsLine &line : lines) {
        if (line.dtype == strict_dtype || line.mask != "blob" ||
            std::find(mean_operators.begin(), mean_operators.end(), line.op) != mean_operators.end()) {
            continue;
        }
        const auto key = std::tuple(line.dtype, line.batch, line.density);
        means[key].first.add(by_kernels(line), line.op);
        means[key].second.add(by_masked(line), line.op);
        counts[key].first++;
        counts[key].second += by_masked(line) > 1 ? 1 : 0;
    }
    std::string text;
    for (const auto &[key, mean] : means) {
        const auto &[dtype, batch, density] = key;
        text += fmt::format("| {} | {} | {} | {} | {} | {} of {} |\n", dtype, batch, density, mean.first.text(),
                            mean.second.text(), counts[key].second, counts[key].first);
    }
    return text.empty()
               ? ""
               : "\nSpeed-ups of the other convolutions over cuDNN in the same type: geometric means, with the "
                 "worst in brackets, and how many are faster from the mask on.\n\n"
                 "| Type | Batch | Density | kernels | from the mask | faster |\n|---|---|---|---|---|---|\n" +
                     text;
}

}  // namespace
}  // namespace numerics_summary

std::string numerics_means(const Json &rows, bool has_goals) {
    using namespace numerics_summary;
    const std::vector<NumericsLine> lines = numerics_lines(rows, "cudnn");
    const bool others =
        std::any_of(lines.begin(), lines.end(), [](const NumericsLine &line) { return line.dtype != strict_dtype; });
    return (others ? speedup_means(lines, has_goals) : "") + block_rates(numerics_lines(rows, "dense"), has_goals) +
           edit_table(lines, has_goals) + other_operator_means(lines) + (others ? break_even_table(lines) : "");
}

std::string numerics_rows(const Json &rows) {
    using namespace numerics_summary;
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || dtype_of(row) == strict_dtype) {
            continue;
        }
        const double peer = row.at("t_peer_us"), kernels = row.at("t_kernels_us"), masked = row.at("t_masked_us");
        text += fmt::format("| {} {} | {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                            row.at("op").get<std::string>(), row.at("shape").get<std::string>(),
                            row.at("dtype").get<std::string>(), row.at("batch").get<int>(),
                            row.at("mask").get<std::string>(), row.at("density").get<double>(),
                            row.at("mode").get<std::string>(), row.at("layout").get<std::string>(), cell(peer, 1),
                            cell(kernels, 1), cell(masked, 1), cell(peer / kernels), cell(peer / masked),
                            cell(row.at("t_host_until_launched_us"), 1), row.at("variant").get<std::string>(),
                            row.at("variant") == row.at("best_variant")
                                ? ""
                                : fmt::format("{} (chosen: {:+.1f} %)", row.at("best_variant").get<std::string>(),
                                              100 * row.at("choice_loss").get<double>()));
    }
    return text.empty() ? ""
                        : "\nAgainst cuDNN in the same type; masks of blocks also against our own dense variant.\n\n"
                          "| Operator | Type | Batch | Mask | Density | Mode | Layout | dense, us | kernels, us | "
                          "masked, us | Speed-up, kernels | Speed-up | host, us | Variant | Best, if another |\n"
                          "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n" +
                              text;
}

}  // namespace distile::bench
