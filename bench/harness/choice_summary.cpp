#include "bench/harness/choice_summary.h"
#include "bench/harness/summary.h"
#include <fmt/core.h>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace distile::bench {

namespace {

/** Who chose, the field of what that lost, and how people read both. */
struct ChooserRows {
    const char *name, *field;
    double scale; /**< From the field to what is shown. */
    const char *caption;
};
constexpr ChooserRows choosers[] = {
    {"device", "loss_us", 1,
     "The GPU chooses the variant in a captured graph: microseconds more than with the best variant named"},
    {"linked", "loss", 100,
     "The host chooses, with cuDNN among the candidates: percent slower than cuDNN alone, by the kernels"}};

std::vector<const Json *> rows_of(const Json &rows, const ChooserRows &chooser) {
    std::vector<const Json *> found;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "choice" && row.at("chooser") == chooser.name) {
            found.push_back(&row);
        }
    }
    return found;
}

/** The largest loss, and its operator. */
struct Worst {
    double loss;
    std::string op;
};

/** A line for each type and batch, a column for each density. */
std::string losses_of(const std::vector<const Json *> &rows, const ChooserRows &chooser) {
    std::set<std::string> densities;
    std::map<std::pair<std::string, int>, std::map<std::string, Worst>> lines;
    size_t met = 0;
    for (const Json *row : rows) {
        const std::string density = fmt::format("{:.2f}", row->at("density").get<double>());
        const double loss = row->at(chooser.field).get<double>() * chooser.scale;
        auto &line = lines[{row->at("dtype").get<std::string>(), row->at("batch").get<int>()}];
        const auto worst = line.find(density);
        if (worst == line.end() || worst->second.loss < loss) {
            line[density] = {loss, row->at("op").get<std::string>()};
        }
        densities.insert(density);
        met += row->at("met") == true ? 1 : 0;
    }
    std::string head = "| Type | Batch |", rule = "|---|---|", text;
    for (const std::string &density : densities) {
        head += " " + density + " |";
        rule += "---|";
    }
    for (const auto &[key, line] : lines) {
        text += fmt::format("| {} | {} |", key.first, key.second);
        for (const std::string &density : densities) {
            const auto worst = line.find(density);
            text += worst == line.end() ? " - |" : fmt::format(" {:+.1f} {} |", worst->second.loss, worst->second.op);
        }
        text += "\n";
    }
    return text.empty()
               ? ""
               : fmt::format("\n{}. Each cell has the operator that loses most; {} of {} rows meet the goal, "
                             "at most {:g}.\n\n{}\n{}\n{}",
                             chooser.caption, met, rows.size(),
                             rows.front()->at(std::string("goal_") + chooser.field).get<double>() * chooser.scale, head,
                             rule, text);
}

}  // namespace

std::string choice_losses(const Json &rows) {
    std::string text;
    for (const ChooserRows &chooser : choosers) {
        text += losses_of(rows_of(rows, chooser), chooser);
    }
    return text;
}

std::string choice_table(const Json &rows) {
    std::string text;
    for (const ChooserRows &chooser : choosers) {
        for (const Json *found : rows_of(rows, chooser)) {
            const Json &row = *found;
            text += fmt::format("| {} {} | {} | {} | {:.2f} | {} | {} | {} | {} | {:+.1f} | {} |\n",
                                row.at("op").get<std::string>(), row.at("shape").get<std::string>(),
                                row.at("dtype").get<std::string>(), row.at("batch").get<int>(),
                                row.at("density").get<double>(), chooser.name, cell(row.at("t_peer_us"), 1),
                                cell(row.at("t_kernels_us"), 1), cell(row.at("t_masked_us"), 1),
                                row.at(chooser.field).get<double>() * chooser.scale,
                                row.value(row.contains("best_variant") ? "best_variant" : "variant", ""));
        }
    }
    return text.empty()
               ? ""
               : "\nChoices: by the device in a captured graph, against the best variant named (loss in us); by "
                 "the host with cuDNN linked, against cuDNN (loss in %).\n\n"
                 "| Operator | Type | Batch | Density | By | cuDNN, us | kernels, us | masked, us | Loss | "
                 "Variant |\n|---|---|---|---|---|---|---|---|---|---|\n" +
                     text;
}

}  // namespace distile::bench
