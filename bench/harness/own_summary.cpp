#include "bench/harness/own_summary.h"
#include "bench/harness/mean.h"
#include "bench/harness/summary.h"
#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace distile::bench {

namespace own_summary {
namespace {

/** The way that others are compared with. */
constexpr const char *reference_way = "tune";

/** A measured row, and etas by way. */
struct Line {
    const Json *row;
    std::string op, mask, density; /**< The parts of the row's name. */
    bool bordered;
    std::map<std::string, double> eta;
};

std::vector<Line> lines_of(const Json &rows) {
    std::vector<Line> lines;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "own") {
            continue;
        }
        Line line{&row, row.at("op"), row.at("mask"), row.at("row"), row.at("layout") == "bordered", {}};
        line.density.erase(line.density.rfind('/'));
        line.density.erase(0, line.density.rfind('/') + 1);
        for (const Json &way : row.at("ways")) {
            line.eta[way.at("way")] = way.at("eta");
        }
        lines.push_back(std::move(line));
    }
    return lines;
}

/** All ways, by name. */
std::set<std::string> ways_of(const std::vector<Line> &lines) {
    std::set<std::string> ways;
    for (const Line &line : lines) {
        for (const auto &[way, eta] : line.eta) {
            ways.insert(way);
        }
    }
    return ways;
}

/** The column of a mask in the short table: the density of blobs, or its kind. */
std::string column_of(const Line &line) {
    return line.mask == "blob" ? line.density : line.density == "real" ? "real masks" : line.mask;
}

/** The columns in the order of their first rows. */
std::vector<std::string> columns_of(const std::vector<Line> &lines) {
    std::vector<std::string> columns;
    for (const Line &line : lines) {
        if (std::find(columns.begin(), columns.end(), column_of(line)) == columns.end()) {
            columns.push_back(column_of(line));
        }
    }
    return columns;
}

/** What to make the plan of a way took, and to compile it, in seconds; 0 where nobody kept it. */
std::pair<double, double> seconds_of(const Line &line, const std::string &way) {
    std::pair<double, double> sums;
    for (const Json &each : line.row->at("ways")) {
        if (each.at("way") == way) {
            for (const auto &[step, seconds] : each.at("seconds").items()) {
                (step == "compile" ? sums.second : sums.first) += seconds.get<double>();
            }
        }
    }
    return sums;
}

/** A way's eta by that of the reference: of each operator the mean over masks, and of these the mean. */
Mean against_reference(const std::vector<Line> &lines, const std::string &way) {
    std::map<std::string, Mean> by_operator;
    for (const Line &line : lines) {
        const auto ours = line.eta.find(way), theirs = line.eta.find(reference_way);
        if (ours != line.eta.end() && theirs != line.eta.end() && theirs->second > 0) {
            by_operator[line.op].add(ours->second / theirs->second);
        }
    }
    Mean all;
    for (const auto &[op, mean] : by_operator) {
        all.add(mean.value(), op);
    }
    return all;
}

/** A table with an operator a line and a way a column, under a title; "" without operators. */
std::string table_by_way(const std::string &title, const std::set<std::string> &ways,
                         const std::map<std::string, std::map<std::string, std::string>> &by_operator) {
    std::string head = "| Operator |", rule = "|---|", text;
    for (const std::string &way : ways) {
        head += " " + way + " |";
        rule += "---|";
    }
    for (const auto &[op, by_way] : by_operator) {
        text += "| " + op + " |";
        for (const std::string &way : ways) {
            const auto found = by_way.find(way);
            text += " " + (found == by_way.end() ? "-" : found->second) + " |";
        }
        text += "\n";
    }
    return text.empty() ? "" : fmt::format("\n{}\n\n{}\n{}\n{}", title, head, rule, text);
}

std::string means(const std::vector<Line> &lines) {
    std::vector<std::string> columns = columns_of(lines);
    std::string head = "| Plan |", rule = "|---|", text;
    for (const std::string &column : columns) {
        head += " " + column + " |";
        rule += "---|";
    }
    std::set<std::string> operators;
    for (const std::string &way : ways_of(lines)) {
        std::map<std::string, Mean> by_column;
        std::pair<double, double> most;
        for (const Line &line : lines) {
            operators.insert(line.op);
            const auto eta = line.eta.find(way);
            // A real mask, scaled to a small operator, may have no active pixel.
            if (eta != line.eta.end() && eta->second > 0) {
                by_column[column_of(line)].add(eta->second);
            }
            const std::pair<double, double> taken = seconds_of(line, way);
            most = {std::max(most.first, taken.first), std::max(most.second, taken.second)};
        }
        text += "| " + way + " |";
        for (const std::string &column : columns) {
            text += " " + by_column[column].text() + " |";
        }
        text += fmt::format(" {} | {} | {} |\n", against_reference(lines, way).text(), cell(most.first, 0),
                            cell(most.second, 0));
    }
    return fmt::format("Geometric means of eta over {} operators, with the worst in brackets; seconds are those of the "
                       "slowest.\n\n{} against {} | plan, s | compile, s |\n{}---|---|---|\n{}",
                       operators.size(), head, reference_way, rule, text);
}

/** Plain inputs against bordered ones, for operators that were measured with both. */
std::string layouts(const std::vector<Line> &lines) {
    std::map<std::string, std::map<std::string, Mean>> by_operator;
    for (const Line &plain : lines) {
        for (const Line &other : lines) {
            if (plain.bordered || !other.bordered || plain.op != other.op || plain.mask != other.mask ||
                plain.density != other.density) {
                continue;
            }
            for (const auto &[way, eta] : plain.eta) {
                if (other.eta.count(way) != 0 && other.eta.at(way) > 0 && eta > 0) {
                    by_operator[plain.op][way].add(eta / other.eta.at(way), column_of(plain));
                }
            }
        }
    }
    std::map<std::string, std::map<std::string, std::string>> texts;
    for (const auto &[op, by_way] : by_operator) {
        for (const auto &[way, mean] : by_way) {
            texts[op][way] = mean.text();
        }
    }
    return table_by_way("Eta of a plain input by that of a bordered one: means over masks, with the worst in brackets.",
                        ways_of(lines), texts);
}

/** The seconds that each plan took, an operator a line. */
std::string seconds(const std::vector<Line> &lines) {
    std::map<std::string, std::map<std::string, std::string>> by_operator;
    for (const Line &line : lines) {
        for (const Json &way : line.row->at("ways")) {
            std::string text;
            for (const auto &[step, taken] : way.at("seconds").items()) {
                text += fmt::format("{}{} {:.1f}", text.empty() ? "" : ", ", step, taken.get<double>());
            }
            if (!text.empty()) {
                by_operator[line.op][way.at("way")] = text;
            }
        }
    }
    return table_by_way("Seconds that each took.", ways_of(lines), by_operator);
}

}  // namespace
}  // namespace own_summary

std::string own_means(const Json &rows) {
    using namespace own_summary;
    const std::vector<Line> all = lines_of(rows);
    std::vector<Line> counted;
    std::copy_if(all.begin(), all.end(), std::back_inserter(counted),
                 [](const Line &line) { return line.row->at("in_means") == true; });
    return (counted.empty() ? "" : means(counted)) + layouts(all);
}

std::string own_table(const Json &rows) {
    using namespace own_summary;
    const std::vector<Line> lines = lines_of(rows);
    if (lines.empty()) {
        return "";
    }
    const std::set<std::string> ways = ways_of(lines);
    std::string head = "| Operator | Mask | Density | Input | peer, us |", rule = "|---|---|---|---|---|", text;
    for (const std::string &way : ways) {
        head += fmt::format(" {}: us | eta | variant |", way);
        rule += "---|---|---|";
    }
    for (const Line &line : lines) {
        const Json &row = *line.row;
        text += fmt::format("| {} {} | {} | {:.2f} | {} | {} |", line.op, row.at("shape").get<std::string>(), line.mask,
                            row.at("density").get<double>(), row.at("layout").get<std::string>(),
                            cell(row.at("t_peer_us"), 1));
        for (const std::string &way : ways) {
            std::string cells = " - | - | - |";
            for (const Json &each : row.at("ways")) {
                if (each.at("way") == way) {
                    cells = fmt::format(" {} | {} | {} |", cell(each.at("t_masked_us"), 1), cell(each.at("eta")),
                                        each.at("variant").get<std::string>());
                }
            }
            text += cells;
        }
        text += "\n";
    }
    return "\nOperators of their own, by the way to their plan.\n\n" + head + "\n" + rule + "\n" + text +
           seconds(lines);
}

}  // namespace distile::bench
