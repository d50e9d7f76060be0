#include "bench/harness/quantized_summary.h"
#include "bench/harness/density_table.h"
#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <string>
#include <tuple>

namespace distile::bench {

namespace {

bool is_quantized(const Json &row) {
    return row.at("status") == "measured" && row.value("kind", "") == "quantized";
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
    std::map<std::tuple<std::string, int, std::string>, std::map<std::string, std::string>> lines;
    for (const Json &row : rows) {
        if (is_quantized(row)) {
            const double ours = row.at("t_masked_us"), peer = row.at("t_peer_us");
            lines[{operator_of(row), row.at("batch"), row.at("peer")}][density_of(row)] =
                fmt::format("{:.1f} / {:.1f} ({:.2f})", ours, peer, peer / ours);
        }
    }
    const auto first = [](const auto &key) {
        const auto &[op, batch, peer] = key;
        return fmt::format("| {} | {} | {} |", op, batch, peer);
    };
    return "\nQuantized convolutions by density: microseconds from the byte mask / of the fastest dense library, and "
           "in "
           "brackets the speed-up.\n\n" +
           density_table("| Operator | Batch | Library |", "|---|---|---|", lines, first);
}

}  // namespace distile::bench
