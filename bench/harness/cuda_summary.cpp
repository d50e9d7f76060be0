#include "bench/harness/cuda_summary.h"
#include "bench/harness/attention_summary.h"
#include "bench/harness/choice_summary.h"
#include "bench/harness/measured.h"
#include "bench/harness/numerics_lines.h"
#include "bench/harness/numerics_summary.h"
#include "bench/harness/opencl_summary.h"
#include "bench/harness/summary.h"
#include "bench/harness/tokens_summary.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <set>
#include <utility>

namespace distile::bench {

namespace {

constexpr int slice_multiprocessors = 16;
const std::vector<int> batches = {1, 4, 32};
const std::vector<std::string> densities = {"0.1", "0.3", "0.5", "1.0"};

/** The goal for the geometric mean of a field; 0 if there is none. */
struct Goal {
    int batch;
    const char *density;
    double eta, eta_kernel;
};
constexpr Goal goals_whole[] = {{1, "0.3", .75, .95}, {4, "0.3", .8, .88}, {32, "0.3", .8, .83}, {32, "0.1", .7, 0}};
constexpr Goal goals_slice[] = {{1, "0.1", .5, 0}, {1, "0.3", .85, 0}, {1, "0.5", .85, 0},
                                {4, "0.1", .7, 0}, {4, "0.3", .85, 0}, {4, "0.5", .85, 0}};

/** The rows of a file that were measured. */
class Rows : public Measured {
public:
    explicit Rows(const Json &file) : Measured(file.at("rows")) {
    }

    /** The geometric mean of a field over the operators, 0 if one was not measured. */
    double mean(int batch, const std::string &density, const char *layout, const char *field) const {
        double logarithms = 0;
        for (const std::string &op : mean_operators) {
            double one = value(name(op, "blob", density, batch, "keep", layout), field);
            if (one == 0 && op == "op21") {
                one = value(name(op, "blob", density, batch, "keep", "plain"), field);  // It has no padding.
            }
            if (one <= 0) {
                return 0;
            }
            logarithms += std::log(one);
        }
        return std::exp(logarithms / static_cast<double>(mean_operators.size()));
    }

    static std::string name(const std::string &op, const std::string &mask, const std::string &density, int batch,
                            const std::string &mode, const std::string &layout, const std::string &peer = "cudnn") {
        return fmt::format("{}/{}/{}/n{}/{}/{}/{}", op, mask, density, batch, mode, layout, peer);
    }
};

bool is_slice(const Json &file) {
    return file.at("header").at("multiprocessors").get<int>() <= slice_multiprocessors;
}

Goal goal_of(const Json &file, int batch, const std::string &density) {
    const auto search = [&](const auto &goals) {
        const auto *found = std::find_if(std::begin(goals), std::end(goals), [&](const Goal &goal) {
            return goal.batch == batch && goal.density == density;
        });
        return found == std::end(goals) ? Goal{} : *found;
    };
    return is_slice(file) ? search(goals_slice) : search(goals_whole);
}

/** A mean and its goal, if it has one. */
std::string against(double value, double goal) {
    if (goal == 0 || value == 0) {
        return cell(value);
    }
    return fmt::format("{:.2f} ({} {:.2f})", value, value >= goal ? "goal" : "**misses**", goal);
}

/** The other side of rows of tokens: attention is measured through PyTorch. */
std::string library_of_tokens(const Json &versions) {
    return versions.contains("PyTorch") ? "PyTorch " + versions.at("PyTorch").get<std::string>()
                                        : versions.at("cuBLAS").get<std::string>();
}

std::string heading(const Json &file) {
    const Json &header = file.at("header"), &rows = file.at("rows");
    const bool has_peer = std::any_of(rows.begin(), rows.end(), [](const Json &row) {
        const std::string kind = row.value("kind", "");
        return kind == "convolution" || kind == "choice";
    });
    const bool has_tokens = std::any_of(rows.begin(), rows.end(), is_of_tokens) || has_attention(rows);
    return fmt::format("{}, {} multiprocessors, {}{}{}.{}", header.at("device").get<std::string>(),
                       header.at("multiprocessors").get<int>(),
                       has_peer ? header.at("versions").at("cuDNN").get<std::string>() + ", " : "",
                       has_tokens ? library_of_tokens(header.at("versions")) + ", " : "",
                       header.at("date").get<std::string>().substr(0, 10), disturbance(file));
}

/** The peer of a row in words. */
const char *peer_of(const Json &row) {
    return row.at("peer_name") == "dense" ? "our dense variant" : "cuDNN";
}

std::string convolution_table(const Json &file) {
    const Rows rows(file);
    const std::string head =
        "| Operator | Batch | Mask | Density | Peer | in float32, us | TF32, us | kernels, us | masked, us | Speed-up "
        "| "
        "eta_kernel | eta | eta, bordered | eta, zero | eta, host chooses | eta, TF32 | host, us | Variant | "
        "Best, if another |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    std::string text;
    for (const Json &row : file.at("rows")) {
        // One line for each mask, from its row of mode keep and plain layout. Other types have their own table.
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("mode") != "keep" ||
            row.at("layout") != "plain" || dtype_of(row) != strict_dtype) {
            continue;
        }
        const std::string own = row.at("row"), keep_plain = "/keep/plain/";
        const auto other = [&](const char *replacement) {
            std::string name = own;
            return rows.value(name.replace(name.find(keep_plain), keep_plain.size(), replacement), "eta");
        };
        const bool best = row.at("variant") == row.at("best_variant");
        text += fmt::format(
            "| {} {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.at("op").get<std::string>(), row.at("shape").get<std::string>(), row.at("batch").get<int>(),
            row.at("mask").get<std::string>(), row.at("density").get<double>(), peer_of(row),
            cell(row.at("t_peer_us"), 1), cell(row.value("t_peer_tf32_us", 0.0), 1), cell(row.at("t_kernels_us"), 1),
            cell(row.at("t_masked_us"), 1), cell(row.at("speedup")), cell(row.at("eta_kernel")), cell(row.at("eta")),
            cell(other("/keep/bordered/")), cell(other("/zero/plain/")),
            cell(row.at("t_peer_us").get<double>() * row.at("density").get<double>() /
                 row.at("t_host_until_done_us").get<double>()),
            cell(row.value("eta_tf32", 0.0)), cell(row.at("t_host_until_launched_us"), 1),
            row.at("variant").get<std::string>(),
            best ? ""
                 : fmt::format("{} (chosen: {:+.1f} %)", row.at("best_variant").get<std::string>(),
                               100 * row.at("choice_loss").get<double>()));
    }
    return text.empty() ? "" : "\n" + head + text;
}

/** Eta of the operators outside the means: a line for each operator and batch. */
std::string other_operators(const Json &file) {
    const Rows rows(file);
    std::string head = "| Operator | Batch |", rule = "|---|---|", text;
    for (const std::string &density : densities) {
        head += " eta at " + density + " |";
        rule += "---|";
    }
    std::set<std::pair<std::string, int>> seen;
    for (const Json &row : file.at("rows")) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("mask") != "blob" ||
            dtype_of(row) != strict_dtype ||
            std::find(mean_operators.begin(), mean_operators.end(), row.at("op")) != mean_operators.end() ||
            !seen.emplace(row.at("op"), row.at("batch")).second) {
            continue;
        }
        text += fmt::format("| {} {} | {} |", row.at("op").get<std::string>(), row.at("shape").get<std::string>(),
                            row.at("batch").get<int>());
        for (const std::string &density : densities) {
            text += fmt::format(" {} |", cell(rows.value(Rows::name(row.at("op"), "blob", density, row.at("batch"),
                                                                    "keep", "plain", row.at("peer_name")),
                                                         "eta")));
        }
        text += fmt::format(" {} |\n", peer_of(row));
    }
    return text.empty() ? "" : "\n" + head + " Peer |\n" + rule + "---|\n" + text;
}

/** The share of a copy's bandwidth that operators with little arithmetic reach. */
std::string bandwidths(const Json &file) {
    std::string text;
    for (const Json &row : file.at("rows")) {
        if (row.at("status") == "measured" && row.at("kind") == "bandwidth") {
            const std::string goal = row.contains("met") ? fmt::format(">= {} {}", row.at("goal_share").dump(),
                                                                       row.at("met") == true ? "met" : "MISSED")
                                                         : "";
            text += fmt::format("| {} {} | {} | {:.2f} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {} | {} |\n",
                                row.at("op").get<std::string>(), row.at("shape").get<std::string>(),
                                row.at("batch").get<int>(), row.at("density").get<double>(), cell(row.at("t_us"), 1),
                                cell(row.at("gb_per_s"), 0), row.at("share").get<double>(),
                                row.at("share_of_large_copy").get<double>(), row.at("share_masked").get<double>(), goal,
                                row.at("variant").get<std::string>());
        }
    }
    return text.empty()
               ? ""
               : "\nThe bytes of the active pixels, read and written once each, by the time of the kernels; and their "
                 "rate by that of copies: of as many bytes, of 512 MiB, and the first with the time from the byte mask "
                 "on.\n\n"
                 "| Operator | Batch | Density | kernels, us | GB/s | by a copy | by a large copy | masked, by a copy "
                 "| "
                 "Goal | Variant |\n|---|---|---|---|---|---|---|---|---|---|\n" +
                     text;
}

/** The time that zeroing inactive pixels adds to an operator, by the way of zeroing. */
std::string planner_table(const Json &file) {
    std::string text;
    for (const Json &row : file.at("rows")) {
        if (row.at("status") == "measured" && row.at("kind") == "planner") {
            const double bare = row.at("t_keep_us");
            text += fmt::format("| {} | {} |", row.at("row").get<std::string>(), cell(bare, 1));
            for (const char *field : {"t_zero_us", "t_written_us", "t_all_us", "t_background_us"}) {
                text += fmt::format(" {:+.1f} |", row.at(field).get<double>() - bare);
            }
            text += "\n";
        }
    }
    return text.empty()
               ? ""
               : "\nA layer of a chain, and what zeros add to it, in us: the mode `DISTILE_ZERO`, and a planner.\n\n"
                 "| Row | no zeros | `DISTILE_ZERO` | `CLEAR_WRITTEN` | `CLEAR_ALL` | `CLEAR_BACKGROUND` |\n"
                 "|---|---|---|---|---|---|\n" +
                     text;
}

/** How much the choice by the time table loses against the best variant. */
std::string choice_summary(const Json &file) {
    constexpr double fair_loss = 0.03;
    int rows = 0, fair = 0;
    double worst = 0;
    std::string worst_row;
    for (const Json &row : file.at("rows")) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution") {
            continue;
        }
        const double loss = row.at("choice_loss");
        rows++;
        fair += loss <= fair_loss;
        if (loss > worst) {
            worst = loss;
            worst_row = row.at("row");
        }
    }
    return rows == 0 ? ""
                     : fmt::format("\nThe time table's choice is within 3 % of the best variant in {} of {} rows{}.\n",
                                   fair, rows,
                                   worst > fair_loss
                                       ? fmt::format("; at worst it loses {:.0f} %, in `{}`", 100 * worst, worst_row)
                                       : "");
}

/** Rows in which the search for the peer's fastest plan ended before it had timed all plans. */
std::string unfinished_searches(const Json &file) {
    std::set<std::string> all, unfinished;
    for (const Json &row : file.at("rows")) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution") {
            continue;
        }
        for (const char *field : {"peer_implementation", "peer_tf32_implementation"}) {
            // The rows of an operator and batch share their peers.
            const std::string search = fmt::format("{}, batch {}, {}, {}", row.at("op").get<std::string>(),
                                                   row.at("batch").get<int>(), row.value("dtype", "float32"), field);
            if (!row.contains(field)) {
                continue;
            }
            all.insert(search);
            if (row.value(field, "").find(" plans (of ") != std::string::npos) {
                unfinished.insert(search);
            }
        }
    }
    return unfinished.empty()
               ? ""
               : fmt::format("\nIn {} of {} searches for cuDNN's fastest plan the time was up before all plans were "
                             "timed.\n",
                             unfinished.size(), all.size());
}

std::string color_of(int batch) {
    return batch == 1 ? "#266ebe" : batch == 4 ? "#d9822b" : "#3d9a50";
}

}  // namespace

std::string cuda_goals(const Json &file) {
    const Rows rows(file);
    std::string text;
    for (const int batch : batches) {
        for (const std::string &density : densities) {
            if (rows.mean(batch, density, "plain", "eta") == 0) {
                continue;
            }
            const Goal goal = goal_of(file, batch, density);
            text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", batch, density,
                                against(rows.mean(batch, density, "plain", "eta_kernel"), goal.eta_kernel),
                                against(rows.mean(batch, density, "plain", "eta"), goal.eta),
                                cell(rows.mean(batch, density, "bordered", "eta_kernel")),
                                cell(rows.mean(batch, density, "bordered", "eta")),
                                cell(rows.mean(batch, density, "plain", "eta_tf32")));
        }
    }
    if (!text.empty()) {
        text = " Geometric means over operators 3, 7, 12 and 21, blob masks, mode keep.\n\n"
               "| Batch | Density | eta_kernel | eta | eta_kernel, bordered | eta, bordered | eta, TF32 |\n"
               "|---|---|---|---|---|---|---|\n" +
               text;
    } else {
        text = "\n";
    }
    const Json &all = file.at("rows");
    return heading(file) + text + numerics_means(all, !is_slice(file)) + choice_losses(all) + opencl_means(all) +
           token_means(all) + attention_lines(all) + other_operators(file) + bandwidths(file) + types(all);
}

std::string cuda_rows(const Json &file) {
    const Json &rows = file.at("rows");
    return heading(file) + " Medians.\n" + convolution_table(file) + numerics_rows(rows) + choice_table(rows) +
           opencl_table(rows) + token_table(rows) + attention_table(rows) + bandwidths(file) + types(rows) +
           steps(rows, "mask", "From the byte mask to the tile list.") + choice_summary(file) +
           unfinished_searches(file) + steps(rows, "algebra", "Masks from masks.") +
           steps(rows, "difference", "The mask of where two tensors differ.") + planner_table(file) +
           not_measured(rows);
}

Panel cuda_panel(const Json &file) {
    if (has_attention(file.at("rows"))) {
        return attention_panel(file);
    }
    const Rows rows(file);
    const Json &header = file.at("header");
    Panel panel;
    panel.title = fmt::format("{}, {} multiprocessors", header.at("device").get<std::string>(),
                              header.at("multiprocessors").get<int>());
    panel.note = "dashed: kernels alone";
    for (const int batch : batches) {
        for (const bool kernels : {true, false}) {
            Curve curve{kernels ? "" : fmt::format("batch {}", batch), color_of(batch), kernels, {}};
            for (const std::string &density : densities) {
                const double mean = rows.mean(batch, density, "plain", kernels ? "eta_kernel" : "eta");
                if (mean > 0) {
                    curve.points.emplace_back(std::stod(density), mean);
                }
            }
            panel.curves.push_back(std::move(curve));
        }
    }
    return panel;
}

}  // namespace distile::bench
