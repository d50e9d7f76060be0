/** \file
 * Tables that have a column for each density, from results of convolutions measured beside libraries in Python.
 */
#ifndef DISTILE_BENCH_DENSITY_TABLE_H
#define DISTILE_BENCH_DENSITY_TABLE_H

#include "bench/harness/results.h"
#include <fmt/core.h>
#include <set>
#include <string>

namespace distile::bench {

inline std::string operator_of(const Json &row) {
    return fmt::format("{} {}", row.at("op").get<std::string>(), row.at("shape").get<std::string>());
}

/** The density that was asked for: a mask has whole pixels, so it has a little more or less. */
inline std::string density_of(const Json &row) {
    return fmt::format("{:.1f}", row.at("density").get<double>());
}

/** `lines` maps keys to cells by density. `first` makes the first cells of a line from its key, as `head` and `rule`
 * have them, which begin with "|". */
template<typename Lines, typename First>
std::string density_table(std::string head, std::string rule, const Lines &lines, const First &first) {
    std::set<std::string> densities;
    for (const auto &[key, cells] : lines) {
        for (const auto &[density, cell] : cells) {
            densities.insert(density);
        }
    }
    for (const std::string &density : densities) {
        head += fmt::format(" {} |", density);
        rule += "---|";
    }
    std::string text;
    for (const auto &[key, cells] : lines) {
        text += first(key);
        for (const std::string &density : densities) {
            const auto found = cells.find(density);
            text += fmt::format(" {} |", found == cells.end() ? "-" : found->second);
        }
        text += "\n";
    }
    return head + "\n" + rule + "\n" + text;
}

}  // namespace distile::bench

#endif
