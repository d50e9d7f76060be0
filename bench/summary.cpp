#include "summary.h"
#include "cuda_summary.h"
#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <vector>

namespace distile::bench {

namespace {

constexpr const char *vendor = "onednn3";

std::string name_of(const Json &row, const std::string &mode, const std::string &layout, const std::string &mask,
                    const std::string &density) {
    return fmt::format("{}/{}/{}/n{}/{}/{}/{}", row.at("op").get<std::string>(), mask, density,
                       row.at("batch").get<int>(), mode, layout, vendor);
}

/** The rows that were measured, by name. */
class Measured {
public:
    explicit Measured(const Json &rows) {
        for (const Json &row : rows) {
            if (row.at("status") == "measured") {
                rows_[row.at("row")] = &row;
            }
        }
    }

    /** A row, or null if it was not measured. */
    const Json *find(const std::string &name) const {
        const auto row = rows_.find(name);
        return row == rows_.end() ? nullptr : row->second;
    }
    /** A field of a row, or 0 if it was not measured. */
    double value(const std::string &name, const char *field) const {
        const Json *row = find(name);
        return row ? row->at(field).get<double>() : 0;
    }

private:
    std::map<std::string, const Json *> rows_;
};

std::string quotient(double numerator, double denominator) {
    return cell(denominator > 0 ? numerator / denominator : 0);
}

/** The second and third part of a row's name: the mask and its density as the file of rows spells it. */
std::pair<std::string, std::string> mask_of(const Json &row) {
    const std::string name = row.at("row");
    const size_t mask = name.find('/') + 1, density = name.find('/', mask) + 1;
    return {name.substr(mask, density - mask - 1), name.substr(density, name.find('/', density) - density)};
}

/** A line for each mask; with `few`, only those of one image, blobs and a real mask. */
std::string convolutions(const Json &rows, bool few) {
    const Measured measured(rows);
    const std::string head = "| Operator | Batch | Mask | Density | Speed-up | eta, keep | eta, zero | eta, plain | "
                             "plain / bordered | dense: ours / oneDNN | Variant |\n"
                             "|---|---|---|---|---|---|---|---|---|---|---|\n";
    std::string text;
    for (const Json &row : rows) {
        // One line for each mask. Its row of mode keep and bordered layout stands for the others.
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("peer_name") != vendor ||
            row.at("mode") != "keep" || row.at("layout") != "bordered" || row.at("state") != "hot" ||
            row.at("linked") == true) {
            continue;
        }
        const auto [mask, density] = mask_of(row);
        if (few && (row.at("batch") != 1 || (mask != "blob" && mask != "sige_church" && mask != "dense"))) {
            continue;
        }
        const std::string plain = name_of(row, "keep", "plain", mask, density);
        const std::string dense = name_of(row, "keep", "bordered", "dense", "1.0");
        text += fmt::format(
            "| {} {} | {} | {} | {:.2f} | {} | {} | {} | {} | {} | {} | {} |\n", row.at("op").get<std::string>(),
            row.at("shape").get<std::string>(), row.at("batch").get<int>(), mask, row.at("density").get<double>(),
            cell(row.at("speedup")), cell(row.at("eta")),
            cell(measured.value(name_of(row, "zero", "bordered", mask, density), "eta")),
            cell(measured.value(plain, "eta")), quotient(measured.value(plain, "t_masked_us"), row.at("t_masked_us")),
            quotient(measured.value(dense, "t_masked_us"), measured.value(dense, "t_peer_us")),
            row.at("variant").get<std::string>());
    }
    return text.empty() ? "" : head + text;
}

/** Every row of steady use that the table above has no place for. */
std::string other_convolutions(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "convolution" && row.at("state") == "hot" &&
            (row.at("peer_name") != vendor || row.at("linked") == true)) {
            text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.at("row").get<std::string>(),
                                cell(row.at("t_masked_us"), 1), cell(row.at("t_peer_us"), 1), cell(row.at("speedup")),
                                cell(row.at("eta")), row.at("variant").get<std::string>());
        }
    }
    return text.empty()
               ? ""
               : "\n| Row | masked, us | peer, us | Speed-up | eta | Variant |\n|---|---|---|---|---|---|\n" + text;
}

/** The row that is the same in another state: "" for steady use. */
std::string in_state(const std::string &cold, const std::string &state) {
    return cold.substr(0, cold.size() - std::string("/cold").size()) + state;
}

/** Milliseconds of both sides and how many times as fast ours is, as cells. */
std::string both_sides(const Json *row) {
    if (!row) {
        return "- | - | -";
    }
    const double ours = row->at("t_masked_us"), peer = row->at("t_peer_us");
    return fmt::format("{:.2f} | {:.2f} | {:.2f}", ours / 1000, peer / 1000, peer / ours);
}

/** Steady use, flushed caches and first calls beside each other. */
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

/** Bytes as people read them. */
std::string amount(double bytes) {
    return bytes >= 1 << 20 ? fmt::format("{:.1f} MiB", bytes / (1 << 20))
                            : fmt::format("{:.1f} KiB", bytes / (1 << 10));
}

/** What both sides take beside the caller's tensors. */
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

/** Ways to have zeros where nothing is computed. */
std::string planners(const Json &rows) {
    std::string head, rule, text;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "planner") {
            continue;
        }
        head = "| Row |";
        rule = "|---|";
        text += fmt::format("| {} |", row.at("row").get<std::string>());
        for (const Json &way : row.at("ways")) {
            head += fmt::format(" {} |", way.at("way").get<std::string>());
            rule += "---|";
            text += fmt::format(" {:.2f} |", way.at("t_us").get<double>() / 1000);
        }
        text += fmt::format(" {} | {:+.1f} % |\n", row.at("fastest").get<std::string>(),
                            100 * row.at("default_loss").get<double>());
    }
    return text.empty()
               ? ""
               : "\nA step of a chain, milliseconds, by what zeroes its outputs (`nothing` leaves stale pixels: "
                 "a bound).\n\n" +
                     head + " fastest | default against it |\n" + rule + "---|---|\n" + text;
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

std::string verdict(const Json &row) {
    if (row.contains("met")) {
        return row.at("met") == true ? "met" : "MISSED";
    }
    return row.contains("overhead_us") ? fmt::format("{} above the tasks", row.at("overhead_us").dump()) : "";
}

std::string single_steps(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") == "convolution" || row.at("kind") == "planner") {
            continue;
        }
        const std::string ratio = row.contains("ratio") ? fmt::format("{:.2f} x {}", row.at("ratio").get<double>(),
                                                                      row.at("of").get<std::string>())
                                                        : "";
        const std::string goal = row.contains("goal_us")      ? fmt::format("< {} us", row.at("goal_us").dump())
                                 : row.contains("goal_ratio") ? fmt::format("<= {} x", row.at("goal_ratio").dump())
                                                              : "";
        text += fmt::format("| {} | {} | {} | {} | {} |\n", row.at("row").get<std::string>(), cell(row.at("t_us")),
                            ratio, goal, verdict(row));
    }
    return text.empty() ? "" : "\n| Step | us | Against | Goal | |\n|---|---|---|---|---|\n" + text;
}

}  // namespace

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
    // Earlier files know no more than what ran before them.
    const Json &header = file.at("header");
    const double load = header.value("load_average_before", 0.0), cores = header.at("threads");
    const bool known =
        std::any_of(rows.begin(), rows.end(), [](const Json &row) { return row.contains("others_busy"); });
    return !known && is_high_load(load, cores)
               ? fmt::format(" Others may have disturbed it: the load average before it was {:.1f}.", load)
               : "";
}

std::string not_measured(const Json &rows) {
    // Rows of one reason stand together.
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
        text += fmt::format("\n- {} rows {}:", names.size(), reason);
        for (const std::string &name : names) {
            text += " `" + name + "`";
        }
    }
    return text.empty() ? "" : "\nNot measured:\n" + text + "\n";
}

std::string cpu_goals(const Json &file) {
    return about(file) + convolutions(file.at("rows"), true);
}

std::string summarise(const Json &file) {
    if (file.at("header").value("backend", "cpu") == "cuda") {
        return cuda_goals(file) + "\n" + cuda_rows(file);
    }
    const Json &rows = file.at("rows");
    return about(file) + convolutions(rows, false) + other_convolutions(rows) + states(rows) + memory(rows) +
           planners(rows) + single_steps(rows) + not_measured(rows);
}

}  // namespace distile::bench
