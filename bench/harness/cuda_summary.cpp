#include "cuda_summary.h"
#include "summary.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <set>

namespace distile::bench {

namespace {

constexpr int slice_multiprocessors = 16;
const std::vector<std::string> operators = {"op3", "op7", "op12", "op21"};
const std::vector<int> batches = {1, 4, 32};
const std::vector<std::string> densities = {"0.1", "0.3", "0.5", "1.0"};

/** What was asked of the geometric mean of a field; 0 where nothing was. */
struct Goal {
    int batch;
    const char *density;
    double eta, eta_kernel;
};
constexpr Goal goals_whole[] = {{1, "0.3", .75, .95}, {4, "0.3", .8, .88}, {32, "0.3", .8, .83}, {32, "0.1", .7, 0}};
constexpr Goal goals_slice[] = {{1, "0.1", .5, 0}, {1, "0.3", .85, 0}, {1, "0.5", .85, 0},
                                {4, "0.1", .7, 0}, {4, "0.3", .85, 0}, {4, "0.5", .85, 0}};

/** The rows of a file that were measured. */
class Rows {
public:
    explicit Rows(const Json &file) : rows_(file.at("rows")) {
    }

    const Json *find(const std::string &name) const {
        const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Json &candidate) {
            return candidate.at("status") == "measured" && candidate.at("row") == name;
        });
        return row == rows_.end() ? nullptr : &*row;
    }

    /** A field of a row, or 0. */
    double value(const std::string &name, const char *field) const {
        const Json *row = find(name);
        return row ? row->at(field).get<double>() : 0;
    }

    /** The geometric mean of a field over the operators, 0 if one was not measured. */
    double mean(int batch, const std::string &density, const char *layout, const char *field) const {
        double logarithms = 0;
        for (const std::string &op : operators) {
            double one = value(name(op, "blob", density, batch, "keep", layout), field);
            if (one == 0 && op == "op21") {
                one = value(name(op, "blob", density, batch, "keep", "plain"), field);  // It has no padding.
            }
            if (one <= 0) {
                return 0;
            }
            logarithms += std::log(one);
        }
        return std::exp(logarithms / static_cast<double>(operators.size()));
    }

    static std::string name(const std::string &op, const std::string &mask, const std::string &density, int batch,
                            const std::string &mode, const std::string &layout) {
        return fmt::format("{}/{}/{}/n{}/{}/{}/cudnn", op, mask, density, batch, mode, layout);
    }

private:
    const Json &rows_;
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

/** A mean and, where there is one, its goal. */
std::string against(double value, double goal) {
    if (goal == 0 || value == 0) {
        return cell(value);
    }
    return fmt::format("{:.2f} ({} {:.2f})", value, value >= goal ? "goal" : "**misses**", goal);
}

std::string heading(const Json &file) {
    const Json &header = file.at("header"), &rows = file.at("rows");
    const bool has_peer =
        std::any_of(rows.begin(), rows.end(), [](const Json &row) { return row.value("kind", "") == "convolution"; });
    return fmt::format("{}, {} multiprocessors, {}{}.{}", header.at("device").get<std::string>(),
                       header.at("multiprocessors").get<int>(),
                       has_peer ? header.at("versions").at("cuDNN").get<std::string>() + ", " : "",
                       header.at("date").get<std::string>().substr(0, 10), disturbance(file));
}

std::string convolution_table(const Json &file) {
    const Rows rows(file);
    const std::string head =
        "| Operator | Batch | Mask | Density | cuDNN fp32, us | TF32, us | kernels, us | masked, us | Speed-up | "
        "eta_kernel | eta | eta, bordered | eta, zero | eta, host chooses | eta, TF32 | host, us | Variant | "
        "Best, if another |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    std::string text;
    for (const Json &row : file.at("rows")) {
        // One line for each mask. Its row of mode keep and plain layout stands for the others.
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("mode") != "keep" ||
            row.at("layout") != "plain") {
            continue;
        }
        const std::string own = row.at("row"), keep_plain = "/keep/plain/";
        const auto other = [&](const char *replacement) {
            std::string name = own;
            return rows.value(name.replace(name.find(keep_plain), keep_plain.size(), replacement), "eta");
        };
        const bool best = row.at("variant") == row.at("best_variant");
        text += fmt::format(
            "| {} {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.at("op").get<std::string>(), row.at("shape").get<std::string>(), row.at("batch").get<int>(),
            row.at("mask").get<std::string>(), row.at("density").get<double>(), cell(row.at("t_peer_us"), 1),
            cell(row.at("t_peer_tf32_us"), 1), cell(row.at("t_kernels_us"), 1), cell(row.at("t_masked_us"), 1),
            cell(row.at("speedup")), cell(row.at("eta_kernel")), cell(row.at("eta")), cell(other("/keep/bordered/")),
            cell(other("/zero/plain/")),
            cell(row.at("t_peer_us").get<double>() * row.at("density").get<double>() /
                 row.at("t_host_until_done_us").get<double>()),
            cell(row.at("eta_tf32")), cell(row.at("t_host_until_launched_us"), 1), row.at("variant").get<std::string>(),
            best ? ""
                 : fmt::format("{} (chosen: {:+.1f} %)", row.at("best_variant").get<std::string>(),
                               100 * row.at("choice_loss").get<double>()));
    }
    return text.empty() ? "" : "\n" + head + text;
}

/** What zeros where nothing is computed add to an operator, by who writes them. */
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

/** Where the search for the peer's fastest plan ended before all plans were timed. */
std::string unfinished_searches(const Json &file) {
    std::set<std::string> all, unfinished;
    for (const Json &row : file.at("rows")) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution") {
            continue;
        }
        for (const char *field : {"peer_implementation", "peer_tf32_implementation"}) {
            // The rows of an operator and batch share their peers.
            const std::string search =
                fmt::format("{}, batch {}, {}", row.at("op").get<std::string>(), row.at("batch").get<int>(), field);
            all.insert(search);
            if (row.at(field).get<std::string>().find(" plans (of ") != std::string::npos) {
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

constexpr int panel_width = 380, panel_height = 300, margin = 56;
double x_of(double density) {
    return margin + density * (panel_width - margin - 20);
}

/** The vertical axis: from 0 to the first whole step above everything that is drawn. */
struct EtaAxis {
    static constexpr double step = 0.2;
    int steps = 6;

    explicit EtaAxis(const std::vector<Json> &files) {
        for (const Json &file : files) {
            const Rows rows(file);
            for (const int batch : batches) {
                for (const std::string &density : densities) {
                    for (const char *field : {"eta", "eta_kernel"}) {
                        const double mean = rows.mean(batch, density, "plain", field);
                        steps = std::max(steps, static_cast<int>(std::ceil(mean / step)));
                    }
                }
            }
        }
    }
    double y_of(double eta) const {
        return 40 + (1 - eta / (steps * step)) * (panel_height - 40 - 44);
    }
};

std::string label(double x, double y, const std::string &anchor, const std::string &text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

/** A line through the means of a field, and its points. */
std::string curve(const EtaAxis &axis, const Rows &rows, int batch, const char *field, const char *color, bool dashed) {
    std::string points, dots;
    for (const std::string &density : densities) {
        const double mean = rows.mean(batch, density, "plain", field);
        if (mean > 0) {
            const double x = x_of(std::stod(density)), y = axis.y_of(mean);
            points += fmt::format("{:.1f},{:.1f} ", x, y);
            dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", x, y, color);
        }
    }
    return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}/>\n", points, color,
                       dashed ? " stroke-dasharray=\"4 3\"" : "") +
           dots;
}

std::string panel(const EtaAxis &axis, const Json &file, int left) {
    const Json &header = file.at("header");
    std::string text = fmt::format("<g transform=\"translate({},0)\">\n", left);
    text += label(panel_width / 2.0, 20, "middle",
                  fmt::format("{}, {} multiprocessors", header.at("device").get<std::string>(),
                              header.at("multiprocessors").get<int>()));
    for (int i = 0; i <= axis.steps; i++) {
        const double eta = i * EtaAxis::step;
        text += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x_of(0),
                            x_of(1), axis.y_of(eta), axis.y_of(eta), i == 5 ? "#969ca5" : "#e4e7eb");
        text += label(x_of(0) - 6, axis.y_of(eta) + 4, "end", fmt::format("{:.1f}", eta));
    }
    for (const std::string &density : densities) {
        text += label(x_of(std::stod(density)), axis.y_of(0) + 16, "middle", density);
    }
    text += label(x_of(.5), panel_height - 8, "middle", "active pixels by all pixels");
    text += label(x_of(0) - 6, 30, "end", "eta");
    text += label(x_of(1), axis.y_of(0.1) - 64, "end", "dashed: kernels alone");
    const Rows rows(file);
    const char *const colors[] = {"#266ebe", "#d9822b", "#3d9a50"};
    for (size_t i = 0; i < batches.size(); i++) {
        text += curve(axis, rows, batches[i], "eta_kernel", colors[i], true);
        text += curve(axis, rows, batches[i], "eta", colors[i], false);
        const double y = axis.y_of(0.1) - 45 + 15.0 * static_cast<double>(i);
        text += fmt::format("<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
                            "stroke-width=\"1.6\"/>\n",
                            x_of(.72), x_of(.79), y - 4, colors[i]);
        text += label(x_of(.81), y, "start", fmt::format("batch {}", batches[i]));
    }
    return text + "</g>\n";
}

}  // namespace

std::string cuda_goals(const Json &file) {
    const Rows rows(file);
    std::string text = heading(file) + " Geometric means over operators 3, 7, 12 and 21, blob masks, mode keep.\n\n"
                                       "| Batch | Density | eta_kernel | eta | eta_kernel, bordered | eta, bordered | "
                                       "eta, TF32 |\n|---|---|---|---|---|---|---|\n";
    for (const int batch : batches) {
        for (const std::string &density : densities) {
            const Goal goal = goal_of(file, batch, density);
            text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", batch, density,
                                against(rows.mean(batch, density, "plain", "eta_kernel"), goal.eta_kernel),
                                against(rows.mean(batch, density, "plain", "eta"), goal.eta),
                                cell(rows.mean(batch, density, "bordered", "eta_kernel")),
                                cell(rows.mean(batch, density, "bordered", "eta")),
                                cell(rows.mean(batch, density, "plain", "eta_tf32")));
        }
    }
    return text;
}

std::string cuda_rows(const Json &file) {
    const Json &rows = file.at("rows");
    return heading(file) + " Medians.\n" + convolution_table(file) +
           steps(rows, "mask", "From the byte mask to the tile list.") + choice_summary(file) +
           unfinished_searches(file) + steps(rows, "algebra", "Masks from masks.") +
           steps(rows, "difference", "The mask of where two tensors differ.") + planner_table(file) +
           not_measured(rows);
}

std::string cuda_figure(const std::vector<Json> &files) {
    const int width = panel_width * static_cast<int>(files.size());
    std::string text =
        fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
                    "font-family=\"sans-serif\" font-size=\"11\" fill=\"#1e2228\">\n"
                    "<title>eta (lines) and eta of the kernels alone (dashes) by density, geometric means over four "
                    "operators</title>\n"
                    "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
                    width, panel_height);
    const EtaAxis axis(files);
    for (size_t i = 0; i < files.size(); i++) {
        text += panel(axis, files[i], panel_width * static_cast<int>(i));
    }
    return text + "</svg>\n";
}

}  // namespace distile::bench
