#include "bench/harness/scaling_summary.h"
#include "bench/harness/break_even_summary.h"
#include "bench/harness/density_table.h"
#include "bench/harness/mean.h"
#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace distile::bench {

namespace {

bool is_scaling(const Json &row) {
    return row.at("status") == "measured" && row.value("kind", "") == "scaling";
}

std::set<int> threads_of(const Json &rows) {
    std::set<int> threads;
    for (const Json &row : rows) {
        if (is_scaling(row)) {
            threads.insert(row.at("threads").get<int>());
        }
    }
    return threads;
}

/** Both times and eta. */
std::string times_of(const Json &row) {
    return fmt::format("{:.0f} / {:.0f} ({:.2f})", row.at("t_masked_us").get<double>(),
                       row.at("t_peer_us").get<double>(), row.at("eta").get<double>());
}

/** A measured density is no break-even if denser masks may be faster, too. */
std::string break_even_text(const RelativeTimes &times) {
    const double found = break_even(times), most = std::max_element(times.begin(), times.end())->first;
    return fmt::format("{}{:.2f}", found == most && most < 0.995 ? "> " : "", found);
}

/** The break-even fractions of one image; "" without two densities. */
std::string break_evens(const Json &rows, const std::set<int> &threads) {
    std::map<std::pair<std::string, std::string>, std::map<int, RelativeTimes>> lines;
    for (const Json &row : rows) {
        if (is_scaling(row) && row.at("batch") == 1) {
            const double ours = row.at("t_masked_us"), peer = row.at("t_peer_us");
            lines[{operator_of(row), row.at("dtype")}][row.at("threads")].emplace_back(row.at("density"), ours / peer);
        }
    }
    std::string head = "| Operator | Type |", rule = "|---|---|", text;
    for (const int count : threads) {
        head += fmt::format(" {} |", count);
        rule += "---|";
    }
    bool any = false;
    for (const auto &[key, cells] : lines) {
        text += fmt::format("| {} | {} |", key.first, key.second);
        for (const int count : threads) {
            const auto found = cells.find(count);
            const bool known = found != cells.end() && found->second.size() > 1;
            any = any || known;
            text += known ? " " + break_even_text(found->second) + " |" : " - |";
        }
        text += "\n";
    }
    return any ? "\nThe density up to which the masked convolution of one image is at least as fast as the dense one, "
                 "by "
                 "the number of threads. 1.00: always.\n\n" +
                     head + "\n" + rule + "\n" + text
               : "";
}

}  // namespace

bool has_scaling(const Json &rows) {
    return std::any_of(rows.begin(), rows.end(), is_scaling);
}

std::string scaling_table(const Json &rows) {
    const std::set<int> threads = threads_of(rows);
    std::map<std::tuple<std::string, std::string, int, std::string>, std::map<int, std::string>> lines;
    for (const Json &row : rows) {
        if (is_scaling(row)) {
            lines[{row.at("dtype"), operator_of(row), row.at("batch"), density_of(row)}][row.at("threads")] =
                times_of(row);
        }
    }
    std::string text = "\nMicroseconds from the byte mask / of the fastest dense library in the same type, and in "
                       "brackets eta, by the number of threads.\n\n| Type | Operator | Batch | Density |";
    std::string rule = "|---|---|---|---|";
    for (const int count : threads) {
        text += fmt::format(" {} |", count);
        rule += "---|";
    }
    text += "\n" + rule + "\n";
    for (const auto &[key, cells] : lines) {
        const auto &[dtype, op, batch, density] = key;
        text += fmt::format("| {} | {} | {} | {} |", dtype, op, batch, density);
        for (const int count : threads) {
            const auto found = cells.find(count);
            text += fmt::format(" {} |", found == cells.end() ? "-" : found->second);
        }
        text += "\n";
    }
    return text;
}

std::string scaling_goals(const Json &rows) {
    const std::set<int> threads = threads_of(rows);
    std::string text;
    for (const int count : std::set<int>{2, *threads.rbegin()}) {
        std::map<std::tuple<std::string, std::string, int>, std::map<std::string, std::string>> lines;
        for (const Json &row : rows) {
            if (is_scaling(row) && row.at("threads") == count) {
                lines[{row.at("dtype"), operator_of(row), row.at("batch")}][density_of(row)] = times_of(row);
            }
        }
        const auto first = [](const auto &key) {
            const auto &[dtype, op, batch] = key;
            return fmt::format("| {} | {} | {} |", dtype, op, batch);
        };
        if (!lines.empty()) {
            text += fmt::format("\nWith {} threads, by density: microseconds from the byte mask / of the fastest dense "
                                "library in the same type, and in brackets eta.\n\n{}",
                                count, density_table("| Type | Operator | Batch |", "|---|---|---|", lines, first));
        }
    }
    return text + break_evens(rows, threads);
}

namespace {

/** The times of one operator and one image in one type. */
struct OperatorTimes {
    std::map<int, std::vector<double>> dense;            /**< By the number of threads, of every row. */
    std::map<std::string, std::map<int, double>> masked; /**< By the density and the number of threads. */

    double dense_us(int threads) const {
        std::vector<double> times = dense.at(threads);
        std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
        return times[times.size() / 2];
    }
};

}  // namespace

std::vector<ScalingPanel> scaling_panels(const Json &file) {
    constexpr const char *colors[] = {"#266ebe", "#d9822b", "#3d9a50", "#8a55b5", "#b5476b"};
    std::map<std::string, std::map<std::string, OperatorTimes>> types;
    std::map<std::string, std::set<int>> threads;
    for (const Json &row : file.at("rows")) {
        if (is_scaling(row) && row.at("batch") == 1) {
            const std::string type = row.at("dtype");
            const int count = row.at("threads");
            OperatorTimes &times = types[type][operator_of(row)];
            times.dense[count].push_back(row.at("t_peer_us"));
            times.masked[density_of(row)][count] = row.at("t_masked_us");
            threads[type].insert(count);
        }
    }
    std::vector<ScalingPanel> panels;
    for (const auto &[type, operators] : types) {
        const std::set<int> &counts = threads[type];
        ScalingPanel panel{fmt::format("{}, {}", file.at("header").at("device").get<std::string>(), type), {}};
        std::map<int, Mean> library;
        std::map<std::string, std::map<int, Mean>> ours;
        for (const auto &[op, times] : operators) {
            if (counts.size() < 2 || times.dense.size() < counts.size()) {
                continue;
            }
            const double base = times.dense_us(*counts.begin());
            for (const int count : counts) {
                library[count].add(base / times.dense_us(count));
                for (const auto &[density, masked] : times.masked) {
                    if (masked.size() == counts.size()) {
                        ours[density][count].add(base / masked.at(count));
                    }
                }
            }
        }
        const auto add = [&panel](const std::string &name, const char *color, bool dashed, const auto &means) {
            Curve curve{name, color, dashed, {}};
            for (const auto &[count, mean] : means) {
                curve.points.emplace_back(count, mean.value());
            }
            panel.curves.push_back(std::move(curve));
        };
        size_t color = 0;
        for (const auto &[density, means] : ours) {
            add("distile at " + density, colors[color++ % std::size(colors)], false, means);
        }
        if (!library.empty()) {
            add("library, all", "#1e2228", true, library);
            panels.push_back(std::move(panel));
        }
    }
    return panels;
}

}  // namespace distile::bench
