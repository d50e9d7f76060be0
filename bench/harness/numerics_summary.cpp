#include "numerics_summary.h"
#include "mean.h"
#include "summary.h"
#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <iterator>
#include <set>
#include <utility>

namespace distile::bench {

namespace {

constexpr const char *strict = "float32";
constexpr const char *dtypes[] = {strict, "tf32", "float16", "bfloat16"};

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
/** Of our rate on masks of blocks by that with all pixels active. */
constexpr double blocks_goal = .95;

/** The columns of means: masks, and their densities as row names have them. */
struct Column {
    const char *mask, *density, *head;
};
constexpr Column blobs_of_all = {"blob", "1.0", "1.0"}, blocks = {"blocks8x8", "0.3", "8x8 blocks, 0.3"};
constexpr Column columns[] = {{"blob", "0.02", "0.02"},
                              {"blob", "0.05", "0.05"},
                              {"blob", "0.1", "0.1"},
                              {"blob", "0.3", "0.3"},
                              {"blob", "0.5", "0.5"},
                              blobs_of_all,
                              blocks,
                              {"sige_sd_inpaint", "real", "sige_sd_inpaint"},
                              {"sige_church", "real", "sige_church"},
                              {"sige_church_edit", "real", "sige_church_edit"}};

/** A measured row against cuDNN in its type: mode keep, plain input. */
struct Line {
    std::string dtype, op, mask, density; /**< The last two as the row's name has them. */
    int batch;
    double active, peer, kernels, masked; /**< The fraction of active pixels, and times. */
};

/** Older results are of float32 and do not say so. */
std::string dtype_of(const Json &row) {
    return row.value("dtype", std::string(strict));
}

std::vector<Line> lines_of(const Json &rows) {
    std::vector<Line> lines;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("mode") != "keep" ||
            row.at("layout") != "plain" || row.at("peer_name") != "cudnn") {
            continue;
        }
        const std::string name = row.at("row");
        const size_t mask = name.find('/') + 1, density = name.find('/', mask) + 1;
        lines.push_back({dtype_of(row), row.at("op"), row.at("mask"),
                         name.substr(density, name.find('/', density) - density), row.at("batch"), row.at("density"),
                         row.at("t_peer_us"), row.at("t_kernels_us"), row.at("t_masked_us")});
    }
    return lines;
}

bool has_other_types(const std::vector<Line> &lines) {
    return std::any_of(lines.begin(), lines.end(), [](const Line &line) { return line.dtype != strict; });
}

std::set<int> batches_of(const std::vector<Line> &lines) {
    std::set<int> batches;
    for (const Line &line : lines) {
        batches.insert(line.batch);
    }
    return batches;
}

/** Null if it was not measured. */
const Line *find(const std::vector<Line> &lines, const std::string &dtype, int batch, const std::string &op,
                 const Column &column) {
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const Line &one) {
        return one.dtype == dtype && one.batch == batch && one.op == op && one.mask == column.mask &&
               one.density == column.density;
    });
    return line == lines.end() ? nullptr : &*line;
}

/** The mean over the operators of what `value` makes of a line; empty unless all were measured. */
template<typename Value>
Mean mean_of(const std::vector<Line> &lines, const std::string &dtype, int batch, const Column &column, Value value) {
    Mean mean;
    for (const std::string &op : mean_operators) {
        const Line *line = find(lines, dtype, batch, op, column);
        if (!line) {
            return {};
        }
        mean.add(value(*line), op);
    }
    return mean;
}

double by_kernels(const Line &line) {
    return line.peer / line.kernels;
}

double by_masked(const Line &line) {
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

std::string speedup_means(const std::vector<Line> &lines, bool has_goals) {
    std::vector<Column> shown;
    for (const Column &column : columns) {
        if (std::any_of(lines.begin(), lines.end(), [&](const Line &line) {
                return line.dtype != strict && line.mask == column.mask && line.density == column.density;
            })) {
            shown.push_back(column);
        }
    }
    std::string head = "| Type | Batch | Timed |", rule = "|---|---|---|", text;
    for (const Column &column : shown) {
        head += fmt::format(" {} |", column.head);
        rule += "---|";
    }
    for (const std::string dtype : dtypes) {
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
            if (measured && dtype != strict) {
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

/** Our rate on masks of blocks by our rate with all pixels active. */
std::string block_rates(const std::vector<Line> &lines, bool has_goals) {
    std::string text;
    for (const std::string dtype : dtypes) {
        for (const int batch : batches_of(lines)) {
            if (mean_of(lines, dtype, batch, blobs_of_all, by_kernels).empty()) {
                continue;
            }
            const Mean mean = mean_of(lines, dtype, batch, blocks, [&](const Line &line) {
                return line.active * find(lines, dtype, batch, line.op, blobs_of_all)->kernels / line.kernels;
            });
            if (!mean.empty()) {
                text += fmt::format("| {} | {} | {} |\n", dtype, batch, against(mean, has_goals ? blocks_goal : 0));
            }
        }
    }
    return text.empty() ? ""
                        : "\nThe rate of the kernels on masks of 8x8 blocks by that with all pixels active.\n\n"
                          "| Type | Batch | Rate |\n|---|---|---|\n" +
                              text;
}

/** Densities, and times by the peer's. */
using Times = std::vector<std::pair<double, double>>;

/** The density up to which the peer takes at least as long; 0 if it is faster at the least that was measured. Between
 * measured densities, times are straight lines. */
double break_even(Times times) {
    std::sort(times.begin(), times.end());
    if (times.front().second > 1) {
        return 0;
    }
    for (size_t i = 1; i < times.size(); i++) {
        if (times[i].second > 1) {
            const auto [below, fast] = times[i - 1];
            const auto [above, slow] = times[i];
            return below + (1 - fast) / (slow - fast) * (above - below);
        }
    }
    return times.back().first;
}

/** Of operators and batches with blobs of two densities at least. */
std::vector<BreakEven> break_evens(const std::vector<Line> &lines, const std::string &dtype) {
    std::vector<BreakEven> found;
    for (const std::string &op : mean_operators) {
        for (const int batch : batches_of(lines)) {
            Times masked, kernels;
            for (const Line &line : lines) {
                if (line.dtype == dtype && line.op == op && line.batch == batch && line.mask == "blob") {
                    masked.emplace_back(line.active, line.masked / line.peer);
                    kernels.emplace_back(line.active, line.kernels / line.peer);
                }
            }
            if (masked.size() > 1) {
                found.push_back({op, batch, break_even(masked), break_even(kernels)});
            }
        }
    }
    return found;
}

std::string break_even_table(const std::vector<Line> &lines) {
    const std::set<int> batches = batches_of(lines);
    std::string head = "| Type | Operator |", rule = "|---|---|", text;
    for (const int batch : batches) {
        head += fmt::format(" batch {} |", batch);
        rule += "---|";
    }
    for (const std::string dtype : dtypes) {
        const std::vector<BreakEven> values = break_evens(lines, dtype);
        for (const std::string &op : mean_operators) {
            std::string cells;
            bool measured = false;
            for (const int batch : batches) {
                const auto value = std::find_if(values.begin(), values.end(), [&](const BreakEven &one) {
                    return one.op == op && one.batch == batch;
                });
                measured = measured || value != values.end();
                cells +=
                    value == values.end() ? " |" : fmt::format(" {} ({}) |", cell(value->masked), cell(value->kernels));
            }
            if (measured) {
                text += fmt::format("| {} | {} |{}\n", dtype, op, cells);
            }
        }
    }
    return text.empty() ? ""
                        : "\nThe density at which cuDNN takes as long, from the mask and in brackets by the kernels "
                          "alone; a dash where it is faster at every measured density. 1.00: it is never faster.\n\n" +
                              head + "\n" + rule + "\n" + text;
}

}  // namespace

std::string numerics_means(const Json &rows, bool has_goals) {
    const std::vector<Line> lines = lines_of(rows);
    return has_other_types(lines)
               ? speedup_means(lines, has_goals) + block_rates(lines, has_goals) + break_even_table(lines)
               : "";
}

std::string numerics_rows(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || dtype_of(row) == strict) {
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
                        : "\nAgainst cuDNN in the same type.\n\n"
                          "| Operator | Type | Batch | Mask | Density | Mode | Layout | cuDNN, us | kernels, us | "
                          "masked, us | Speed-up, kernels | Speed-up | host, us | Variant | Best, if another |\n"
                          "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n" +
                              text;
}

std::vector<BreakEvenPanel> break_even_panels(const Json &file) {
    const Json &header = file.at("header");
    const std::vector<Line> lines = lines_of(file.at("rows"));
    std::vector<BreakEvenPanel> panels;
    for (const std::string dtype : dtypes) {
        std::vector<BreakEven> values = break_evens(lines, dtype);
        if (!values.empty()) {
            panels.push_back({fmt::format("{}, {} multiprocessors, {}", header.at("device").get<std::string>(),
                                          header.at("multiprocessors").get<int>(), dtype),
                              std::move(values)});
        }
    }
    return panels;
}

std::vector<Speedups> numerics_speedups(const Json &file) {
    constexpr int batch = 4;
    const std::vector<Line> lines = lines_of(file.at("rows"));
    std::vector<Speedups> found;
    for (const auto &[dtype, name] : {std::pair("tf32", "TF32"), std::pair("float16", "float16")}) {
        Speedups line;
        line.name = fmt::format("convolutions on an {}, batch {}, against cuDNN in {}",
                                file.at("header").at("device").get<std::string>(), batch, name);
        bool measured = false;
        for (const double density : speedup_densities) {
            const std::string text = density == 1 ? "1.0" : fmt::format("{}", density);
            const Mean mean = mean_of(lines, dtype, batch, {"blob", text.c_str(), ""}, by_masked);
            measured = measured || !mean.empty();
            line.cells.push_back(mean.empty() ? "-" : fmt::format("{:.1f}", mean.value()));
        }
        if (measured) {
            found.push_back(std::move(line));
        }
    }
    return found;
}

}  // namespace distile::bench
