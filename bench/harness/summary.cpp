#include "bench/harness/summary.h"
#include "bench/harness/measured.h"
#include "bench/harness/own_summary.h"
#include "bench/harness/scaling_summary.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <set>
#include <vector>

namespace distile::bench {

namespace {

constexpr const char *vendor = "onednn3";

std::string name_of(const Json &row, const std::string &mode, const std::string &layout, const std::string &mask,
                    const std::string &density) {
    return fmt::format("{}/{}/{}/n{}/{}/{}/{}", row.at("op").get<std::string>(), mask, density,
                       row.at("batch").get<int>(), mode, layout, vendor);
}

std::string quotient(double numerator, double denominator) {
    return cell(denominator > 0 ? numerator / denominator : 0);
}

/** The second and third part of a row's name: the mask and its density as the file of rows spells it. */
std::pair<std::string, std::string> mask_of(const Json &row) {
    const std::string name = row.at("row");
    const size_t mask = name.find('/') + 1, density = name.find('/', mask) + 1;
    return {name.substr(mask, density - mask - 1), name.substr(density, name.find('/', density) - density)};
}

/** The row in steady use against the vendor in mode keep that represents its mask: with a bordered input, or with a
 * plain one if there is no other, as for operators without padding. */
bool stands_for_mask(const Measured &measured, const Json &row) {
    if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("peer_name") != vendor ||
        row.at("mode") != "keep" || row.at("state") != "hot" || row.at("linked") == true) {
        return false;
    }
    const auto [mask, density] = mask_of(row);
    return row.at("layout") == "bordered" || !measured.find(name_of(row, "keep", "bordered", mask, density));
}

/** The ratio of our dense candidate's time to the vendor's. */
std::string dense_quotient(const Measured &measured, const Json &row) {
    for (const char *layout : {"bordered", "plain"}) {
        if (const Json *dense = measured.find(name_of(row, "keep", layout, "dense", "1.0"))) {
            return quotient(dense->at("t_masked_us"), dense->at("t_peer_us"));
        }
    }
    return cell(0);
}

/** A line for each mask. */
std::string convolutions(const Json &rows) {
    const Measured measured(rows);
    const std::string head = "| Operator | Batch | Mask | Density | Speed-up | eta, keep | eta, zero | eta, plain | "
                             "plain / bordered | dense: ours / oneDNN | Variant |\n"
                             "|---|---|---|---|---|---|---|---|---|---|---|\n";
    std::string text;
    for (const Json &row : rows) {
        if (!stands_for_mask(measured, row)) {
            continue;
        }
        const auto [mask, density] = mask_of(row);
        const std::string layout = row.at("layout");
        const std::string plain = layout == "plain" ? "" : name_of(row, "keep", "plain", mask, density);
        text += fmt::format(
            "| {} {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} | {} |\n", row.at("op").get<std::string>(),
            row.at("shape").get<std::string>(), row.at("batch").get<int>(), mask, row.at("density").get<double>(),
            cell(row.at("speedup")), cell(row.at("eta")),
            cell(measured.value(name_of(row, "zero", layout, mask, density), "eta")),
            cell(measured.value(plain, "eta")), quotient(measured.value(plain, "t_masked_us"), row.at("t_masked_us")),
            dense_quotient(measured, row), row.at("variant").get<std::string>());
    }
    return text.empty() ? "" : head + text;
}

/** A line for each operator, a column for each representative mask. */
std::string headline(const Json &rows) {
    const Measured measured(rows);
    std::vector<std::pair<std::string, std::string>> masks;
    for (const char *density : {"0.05", "0.1", "0.3", "0.5", "0.7", "0.9", "1.0"}) {
        masks.emplace_back("blob", density);
    }
    masks.emplace_back("sige_church", "real");
    std::string head = "| Operator |", rule = "|---|", text;
    for (const auto &[mask, density] : masks) {
        head += fmt::format(" {} |", mask == "blob" ? density : mask);
        rule += "---|";
    }
    std::set<std::string> operators;
    for (const Json &row : rows) {
        if (!stands_for_mask(measured, row) || row.at("batch") != 1 || !operators.insert(row.at("op")).second) {
            continue;
        }
        text += fmt::format("| {} {} |", row.at("op").get<std::string>(), row.at("shape").get<std::string>());
        for (const auto &[mask, density] : masks) {
            const Json *found = measured.find(name_of(row, "keep", row.at("layout"), mask, density));
            text += found ? fmt::format(" {:.1f} ({:.2f}) |", found->at("speedup").get<double>(),
                                        found->at("eta").get<double>())
                          : " - |";
        }
        text += fmt::format(" {} |\n", dense_quotient(measured, row));
    }
    return text.empty() ? "" : head + " dense: ours / oneDNN |\n" + rule + "---|\n" + text;
}

/** Every row of steady use that does not fit into the table of masks. */
std::string other_convolutions(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "convolution" && row.at("state") == "hot" &&
            (row.at("peer_name") != vendor || row.at("linked") == true) && !row.contains("cpu_features")) {
            text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.at("row").get<std::string>(),
                                cell(row.at("t_masked_us"), 1), cell(row.at("t_peer_us"), 1), cell(row.at("speedup")),
                                cell(row.at("eta")), row.at("variant").get<std::string>());
        }
    }
    return text.empty()
               ? ""
               : "\nAgainst our own dense candidate (`dense`), and with oneDNN's among the candidates that the "
                 "dispatcher chooses from (`linked`).\n\n"
                 "| Row | masked, us | peer, us | Speed-up | eta | Variant |\n|---|---|---|---|---|---|\n" +
                     text;
}

/** The code for CPUs with fewer features than this one. */
std::string fewer_features(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "convolution" && row.contains("cpu_features")) {
            const std::string features = row.at("cpu_features");
            text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", row.at("row").get<std::string>(),
                                features.empty() ? "none" : features, cell(row.at("t_masked_us"), 1),
                                cell(row.at("t_peer_us"), 1), cell(row.at("speedup")), cell(row.at("eta")),
                                row.at("variant").get<std::string>());
        }
    }
    return text.empty() ? ""
                        : "\nOn CPUs with fewer features: kernels that use no others, against the dense candidate of "
                          "the same features.\n\n"
                          "| Row | CPU features | masked, us | dense, us | Speed-up | eta | Variant |\n"
                          "|---|---|---|---|---|---|---|\n" +
                              text;
}

/** The name of the same row in another state; "" for steady use. */
std::string in_state(const std::string &cold, const std::string &state) {
    return cold.substr(0, cold.size() - std::string("/cold").size()) + state;
}

/** Cells with the milliseconds of both sides and our speed-up. */
std::string both_sides(const Json *row) {
    if (!row) {
        return "- | - | -";
    }
    const double ours = row->at("t_masked_us"), peer = row->at("t_peer_us");
    return fmt::format("{:.2f} | {:.2f} | {:.2f}", ours / 1000, peer / 1000, peer / ours);
}

/** Steady use, flushed caches and first calls side by side. */
std::string states(const Json &rows) {
    const Measured measured(rows);
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "convolution" && row.at("state") == "cold") {
            const std::string name = row.at("row");
            text += fmt::format("| {} | {:.2f} | {} | {} | {} |\n", in_state(name, ""), row.at("density").get<double>(),
                                both_sides(measured.find(in_state(name, ""))), both_sides(&row),
                                both_sides(measured.find(in_state(name, "/first"))));
        }
    }
    return text.empty()
               ? ""
               : "\nSteady use (hot), after the caches were flushed (cold), and the first call in a new process; "
                 "milliseconds, and the peer's time by ours.\n\n"
                 "| Row | Density | hot: ours | peer | ratio | cold: ours | peer | ratio | first: ours | peer | "
                 "ratio |\n|---|---|---|---|---|---|---|---|---|---|---|\n" +
                     text;
}

/** Bytes for people. */
std::string amount(double bytes) {
    return bytes == 0         ? "0"
           : bytes >= 1 << 20 ? fmt::format("{:.1f} MiB", bytes / (1 << 20))
                              : fmt::format("{:.1f} KiB", bytes / (1 << 10));
}

/** The memory of both sides in addition to the caller's tensors. */
std::string memory(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || !row.contains("theirs")) {
            continue;
        }
        const Json &ours = row.at("ours"), &theirs = row.at("theirs");
        text += fmt::format("| {} | {:.1f} | {:.1f} ", row.at("row").get<std::string>(),
                            ours.at("setup_us").get<double>() / 1000, theirs.at("setup_us").get<double>() / 1000);
        for (const char *field : {"setup_bytes", "calls_bytes", "peak_bytes"}) {
            text += fmt::format("| {} | {} ", amount(ours.at(field)), amount(theirs.at(field)));
        }
        text += fmt::format("| {} | {:.0f} |\n", amount(ours.at("scratch_bytes")),
                            ours.at("later_scratch_allocations").get<double>());
    }
    return text.empty() ? ""
                        : "\nBeside the caller's tensors: what set-up (weights included) and calls keep allocated, and "
                          "the peak of resident memory, code included. Allocations: of scratch, in the ten calls after "
                          "the second.\n\n"
                          "| Row | set-up, ms: ours | peer | set-up: ours | peer | calls: ours | peer | peak: ours | "
                          "peer | scratch | allocations |\n|---|---|---|---|---|---|---|---|---|---|---|\n" +
                              text;
}

/** Ways to keep inactive pixels zero. */
std::string planners(const Json &rows) {
    std::string head, rule, text;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "planner") {
            continue;
        }
        head = "| Row |";
        rule = "|---|";
        text += fmt::format("| {} |", row.at("row").get<std::string>());
        double bytes = 0;
        for (const Json &way : row.at("ways")) {
            head += fmt::format(" {} |", way.at("way").get<std::string>());
            rule += "---|";
            text += fmt::format(" {:.2f} |", way.at("t_us").get<double>() / 1000);
            if (way.at("way") == "planner") {
                bytes = way.at("bytes");
            }
        }
        text += fmt::format(" {} | {:+.1f} % | {:.1f} |\n", row.at("fastest").get<std::string>(),
                            100 * row.at("default_loss").get<double>(), bytes / (1 << 20));
    }
    return text.empty()
               ? ""
               : "\nA step of a chain, milliseconds, by what zeroes its outputs (`nothing` leaves stale pixels: "
                 "a bound).\n\n" +
                     head + " fastest | default against it | planner, MiB |\n" + rule + "---|---|---|\n" + text;
}

/** Where and when, and what the columns mean. */
std::string about(const Json &file) {
    const Json &header = file.at("header");
    return fmt::format("{}, {} threads, {}, {}, {}. Medians. eta = peer's dense time x density / masked time, which "
                       "starts at the byte mask.{}\n\n",
                       header.at("device").get<std::string>(), header.at("threads").get<int>(),
                       header.at("versions").at("oneDNN").get<std::string>(), header.at("compiler").get<std::string>(),
                       header.at("date").get<std::string>().substr(0, 10), disturbance(file));
}

std::string single_steps(const Json &rows) {
    return steps(rows, "mask", "From the byte mask to the tile list, on one core.") +
           steps(rows, "select", "Choosing a variant for a mask whose tiles are counted.") +
           steps(rows, "dispatch", "A whole call whose kernel does nothing.") +
           steps(rows, "pool", "Parallel loops whose tasks only wait.") +
           steps(rows, "algebra", "Masks from masks, on one core.") +
           steps(rows, "difference", "The mask of where two tensors differ, on one core.") +
           steps(rows, "layout", "Conversions from and to NCHW, on one core.") +
           steps(rows, "token", "Tokens between operators, on all threads.");
}

/** The categories of CPU operators in figures and short tables. */
struct Family {
    const char *category, *name, *color;
};
constexpr Family families[] = {{"conv3k", "3x3 convolutions", "#266ebe"},
                               {"conv1k", "1x1 convolutions", "#d9822b"},
                               {"depthwise", "depthwise 3x3 convolutions", "#3d9a50"},
                               {"transposed", "transposed convolutions", "#8a55b5"},
                               {"linear", "linear layers over tokens", "#b5476b"}};

/** The geometric mean of eta over the operators of a category: one image, a mask of blobs, mode keep. 0 if one was not
 * measured. */
double family_eta(const Json &rows, const std::string &category, const std::string &density) {
    const Measured measured(rows);
    double logarithms = 0;
    int operators = 0;
    for (const Json &row : rows) {
        if (!stands_for_mask(measured, row) || row.at("category") != category || row.at("batch") != 1 ||
            mask_of(row) != std::pair<std::string, std::string>("blob", density)) {
            continue;
        }
        logarithms += std::log(row.at("eta").get<double>());
        operators++;
    }
    return operators == 0 ? 0 : std::exp(logarithms / operators);
}

}  // namespace

std::string about_python(const Json &file) {
    const Json &header = file.at("header");
    std::string peers;
    for (const char *peer : {"PyTorch", "ONNX Runtime", "oneDNN"}) {
        const Json version = header.at("versions").value(peer, Json());
        peers += version.is_string() ? fmt::format(", {} {}", peer, version.get<std::string>()) : "";
    }
    // Where rows have numbers of threads of their own, that of the header is the last call's.
    const std::string threads =
        has_scaling(file.at("rows")) ? "" : fmt::format(", {} threads", header.at("threads").get<int>());
    return fmt::format("{}{}{}, {}. Medians.\n", header.at("device").get<std::string>(), threads, peers,
                       header.at("date").get<std::string>().substr(0, 10));
}

std::string steps(const Json &rows, const std::string &kind, const char *caption) {
    using Cells = std::vector<std::string>;
    Cells heads = {"Row", "us", "Against", "Above the tasks, us", "Goal", ""};
    std::vector<Cells> lines;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != kind) {
            continue;
        }
        Cells line = {row.at("row"), cell(row.at("t_us")), "", "", "", ""};
        if (row.contains("ratio")) {
            line[2] = fmt::format("{:.2f} x {}", row.at("ratio").get<double>(), row.value("of", "a copy"));
        }
        if (row.contains("overhead_us")) {
            line[3] = fmt::format("{:.2f}", row.at("overhead_us").get<double>());
        }
        if (row.contains("met")) {
            line[4] = row.contains("goal_us") ? fmt::format("< {} us", row.at("goal_us").dump())
                                              : fmt::format("<= {} x", row.at("goal_ratio").dump());
            line[5] = row.at("met") == true ? "met" : "MISSED";
        }
        lines.push_back(std::move(line));
    }
    if (lines.empty()) {
        return "";
    }
    std::vector<Cells> table = {heads, Cells(heads.size(), "---")};
    table.insert(table.end(), lines.begin(), lines.end());
    std::string text = fmt::format("\n{}\n", caption);
    for (const Cells &line : table) {
        text += "\n|";
        for (size_t i = 0; i < heads.size(); i++) {
            const bool used =
                std::any_of(lines.begin(), lines.end(), [&](const Cells &cells) { return !cells[i].empty(); });
            text += used ? " " + line[i] + " |" : "";
        }
    }
    return text + "\n";
}

std::string types(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "type") {
            text += fmt::format("| {} {} | {} | {} | {} | {:.2f} | {} | {} | {:.2f} | {} | <= {} {} | {} |\n",
                                row.at("op").get<std::string>(), row.at("shape").get<std::string>(),
                                row.at("type").get<std::string>(), row.value("cpu_features", "all"),
                                row.at("batch").get<int>(), row.at("density").get<double>(), cell(row.at("t_us"), 1),
                                cell(row.at("t_plain_us"), 1), row.at("ratio").get<double>(),
                                cell(row.value("ratio_kernels", 0.0)), row.at("goal_ratio").dump(),
                                row.at("met") == true ? "met" : "MISSED", row.at("variant").get<std::string>());
        }
    }
    return text.empty() ? ""
                        : "\nTypes: an operator that stores float16 or bfloat16 against the same in float32, with the "
                          "same masks and variants.\n\n"
                          "| Operator | Type | CPU features | Batch | Density | us | float32, us | ratio | of the "
                          "kernels | Goal | Variant |\n|---|---|---|---|---|---|---|---|---|---|---|\n" +
                              text;
}

std::string cell(double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}", value, digits) : "-";
}

std::string disturbance(const Json &file) {
    const Json &rows = file.at("rows");
    const auto measured = [](const Json &row) { return row.at("status") == "measured"; };
    const auto disturbed = std::count_if(rows.begin(), rows.end(), is_disturbed);
    if (disturbed > 0) {
        return fmt::format(" While {} of {} rows were measured, others took more than {:.0f} % of the cores.",
                           disturbed, std::count_if(rows.begin(), rows.end(), measured), 100 * fair_share_of_others);
    }
    // Earlier files know no more than the load average before them.
    constexpr double fair_load_of_a_core = 0.3;
    const Json &header = file.at("header");
    const double load = header.value("load_average_before", 0.0), cores = header.at("threads");
    const bool known =
        std::any_of(rows.begin(), rows.end(), [](const Json &row) { return row.contains("others_busy"); });
    return !known && load > fair_load_of_a_core * cores
               ? fmt::format(" Others may have disturbed it: the load average before it was {:.1f}.", load)
               : "";
}

std::string not_measured(const Json &rows) {
    // Rows with the same reason share a line.
    std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
    for (const Json &row : rows) {
        if (row.at("status") != "measured") {
            const std::string reason =
                fmt::format("{}: {}", row.at("status").get<std::string>(), row.at("reason").get<std::string>());
            auto known = reasons.begin();
            while (known != reasons.end() && known->first != reason) {
                ++known;
            }
            if (known == reasons.end()) {
                known = reasons.insert(known, {reason, {}});
            }
            known->second.push_back(row.at("row"));
        }
    }
    std::string text;
    for (const auto &[reason, names] : reasons) {
        text += fmt::format("\n- {} row{} {}:", names.size(), names.size() == 1 ? "" : "s", reason);
        constexpr size_t most_names = 3;
        for (size_t i = 0; i < std::min(names.size(), most_names); i++) {
            text += " `" + names[i] + "`";
        }
        if (names.size() > most_names) {
            text += fmt::format(" and {} more", names.size() - most_names);
        }
    }
    return text.empty() ? "" : "\nNot measured:\n" + text + "\n";
}

Panel cpu_panel(const Json &file) {
    const Json &header = file.at("header"), &rows = file.at("rows");
    Panel panel;
    panel.title = fmt::format("{}, {} threads, against oneDNN", header.at("device").get<std::string>(),
                              header.at("threads").get<int>());
    for (const Family &family : families) {
        Curve curve{family.name, family.color, false, {}};
        for (const char *density : {"0.05", "0.1", "0.3", "0.5", "0.7", "0.9", "1.0"}) {
            const double mean = family_eta(rows, family.category, density);
            if (mean > 0) {
                curve.points.emplace_back(std::stod(density), mean);
            }
        }
        if (!curve.points.empty()) {
            panel.curves.push_back(std::move(curve));
        }
    }
    return panel;
}

std::string cpu_goals(const Json &file) {
    return about(file) + headline(file.at("rows")) + own_means(file.at("rows"));
}

std::string cpu_rows(const Json &file) {
    const Json &rows = file.at("rows");
    return about(file) + convolutions(rows) + own_table(rows) + other_convolutions(rows) + fewer_features(rows) +
           types(rows) + states(rows) + memory(rows) + planners(rows) + single_steps(rows) + not_measured(rows);
}

}  // namespace distile::bench
