#include "summary.h"
#include "cuda_summary.h"
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

    /** A field of a row, or 0 if it was not measured. */
    double value(const std::string &name, const char *field) const {
        const auto row = rows_.find(name);
        return row == rows_.end() ? 0 : row->second->at(field).get<double>();
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

std::string convolutions(const Json &rows) {
    const Measured measured(rows);
    std::string text = "| Operator | Batch | Mask | Density | Speed-up | eta, keep | eta, zero | eta, plain | "
                       "plain / bordered | dense: ours / oneDNN | Variant |\n"
                       "|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (const Json &row : rows) {
        // One line for each mask. Its row of mode keep and bordered layout stands for the others.
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("peer_name") != vendor ||
            row.at("mode") != "keep" || row.at("layout") != "bordered" || row.at("state") != "hot" ||
            row.at("linked") == true) {
            continue;
        }
        const auto [mask, density] = mask_of(row);
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
    return text;
}

/** Every row that the table above has no place for. */
std::string other_convolutions(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") == "convolution" &&
            (row.at("peer_name") != vendor || row.at("state") != "hot" || row.at("linked") == true)) {
            text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.at("row").get<std::string>(),
                                cell(row.at("t_masked_us"), 1), cell(row.at("t_peer_us"), 1), cell(row.at("speedup")),
                                cell(row.at("eta")), row.at("variant").get<std::string>());
        }
    }
    return text.empty()
               ? ""
               : "\n| Row | masked, us | peer, us | Speed-up | eta | Variant |\n|---|---|---|---|---|---|\n" + text;
}

std::string single_steps(const Json &rows) {
    std::string text;
    for (const Json &row : rows) {
        if (row.at("status") == "measured" && row.at("kind") != "convolution") {
            const bool has_goal = row.contains("goal_us");
            text += fmt::format("| {} | {} | {} | {} |\n", row.at("row").get<std::string>(), cell(row.at("t_us")),
                                has_goal ? "< " + row.at("goal_us").dump() : "-",
                                !has_goal ? fmt::format("{} above the tasks", row.at("overhead_us").dump())
                                : row.at("met") == true ? "met"
                                                        : "MISSED");
        }
    }
    return text.empty() ? "" : "\n| Step | us | Goal, us | |\n|---|---|---|---|\n" + text;
}

}  // namespace

std::string cell(double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}", value, digits) : "-";
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

std::string summarise(const Json &file) {
    if (file.at("header").value("backend", "cpu") == "cuda") {
        return cuda_goals(file) + "\n" + cuda_rows(file);
    }
    const Json &header = file.at("header"), &rows = file.at("rows");
    return fmt::format("{}, {} threads, {}, {}, {}. Medians. eta = peer's dense time x density / masked time, which "
                       "starts at the byte mask.\n\n",
                       header.at("device").get<std::string>(), header.at("threads").get<int>(),
                       header.at("versions").at("oneDNN").get<std::string>(), header.at("compiler").get<std::string>(),
                       header.at("date").get<std::string>().substr(0, 10)) +
           convolutions(rows) + other_convolutions(rows) + single_steps(rows) + not_measured(rows);
}

}  // namespace distile::bench
