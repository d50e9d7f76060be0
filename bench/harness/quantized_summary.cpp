#include "quantized_summary.h"
#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace distile::bench {

namespace {

bool is_quantized(const Json &row) {
    return row.at("status") == "measured" && row.value("kind", "") == "quantized";
}

std::string operator_of(const Json &row) {
    return fmt::format("{} {}", row.at("op").get<std::string>(), row.at("shape").get<std::string>());
}

/** As it was asked for: a mask has whole pixels. */
std::string density_of(const Json &row) {
    return fmt::format("{:.1f}", row.at("density").get<double>());
}

}  // namespace

bool has_quantized(const Json &rows) {
    return std::any_of(rows.begin(), rows.end(), is_quantized);
}

std::string quantized_table(const Json &rows) {
    std::string text =
        "\nMicroseconds from the byte mask, of our own dense variant, and of the fastest dense library.\n\n"
        "| Operator | Type | Batch | Density | Variant | Masked | Own dense | Library | Dense | eta | Largest "
        "error |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (const Json &row : rows) {
        if (is_quantized(row)) {
            text += fmt::format("| {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {} | {:.1f} | {:.2f} | {:.1e} |\n",
                                operator_of(row), row.at("dtype").get<std::string>(), row.at("batch").get<int>(),
                                density_of(row), row.at("variant").get<std::string>(),
                                row.at("t_masked_us").get<double>(), row.at("t_own_dense_us").get<double>(),
                                row.at("peer").get<std::string>(), row.at("t_peer_us").get<double>(),
                                row.at("eta").get<double>(), row.at("max_rel_err").get<double>());
        }
    }
    return text;
}

std::string quantized_goals(const Json &rows) {
    std::set<std::string> densities;
    std::map<std::tuple<std::string, int, std::string>, std::map<std::string, std::string>> lines;
    for (const Json &row : rows) {
        if (is_quantized(row)) {
            const double ours = row.at("t_masked_us"), peer = row.at("t_peer_us");
            densities.insert(density_of(row));
            lines[{operator_of(row), row.at("batch"), row.at("peer")}][density_of(row)] =
                fmt::format("{:.1f} / {:.1f} ({:.2f})", ours, peer, peer / ours);
        }
    }
    std::string head = "| Operator | Batch | Library |", rule = "|---|---|---|", text;
    for (const std::string &density : densities) {
        head += fmt::format(" {} |", density);
        rule += "---|";
    }
    for (const auto &[key, cells] : lines) {
        const auto &[op, batch, peer] = key;
        text += fmt::format("| {} | {} | {} |", op, batch, peer);
        for (const std::string &density : densities) {
            const auto found = cells.find(density);
            text += fmt::format(" {} |", found == cells.end() ? "-" : found->second);
        }
        text += "\n";
    }
    return fmt::format("\nQuantized convolutions by density: microseconds from the byte mask / of the fastest dense "
                       "library, and in brackets the speed-up.\n\n{}\n{}\n{}",
                       head, rule, text);
}

}  // namespace distile::bench
