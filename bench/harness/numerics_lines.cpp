#include "bench/harness/numerics_lines.h"
#include <fmt/core.h>

namespace distile::bench {

std::string dtype_of(const Json &row) {
    return row.value("dtype", std::string(strict_dtype));
}

std::vector<NumericsLine> numerics_lines(const Json &rows, const std::string &peer) {
    std::vector<NumericsLine> lines;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("mode") != "keep" ||
            row.at("layout") != "plain" || row.at("peer_name") != peer) {
            continue;
        }
        const std::string name = row.at("row");
        const size_t mask = name.find('/') + 1, density = name.find('/', mask) + 1;
        lines.push_back({dtype_of(row), row.at("op"), row.at("mask"),
                         name.substr(density, name.find('/', density) - density), row.at("batch"), row.at("density"),
                         row.at("t_peer_us"), row.at("t_kernels_us"), row.at("t_masked_us"), row.value("shape", "")});
    }
    return lines;
}

std::set<int> batches_of(const std::vector<NumericsLine> &lines) {
    std::set<int> batches;
    for (const NumericsLine &line : lines) {
        batches.insert(line.batch);
    }
    return batches;
}

std::string batch_table(const std::set<int> &batches, const std::string &blank, const CellOf &cell_of) {
    std::string head = "| Type | Operator |", rule = "|---|---|", text;
    for (const int batch : batches) {
        head += fmt::format(" batch {} |", batch);
        rule += "---|";
    }
    for (const std::string dtype : numerics_dtypes) {
        for (const std::string &op : mean_operators) {
            std::string cells;
            bool measured = false;
            for (const int batch : batches) {
                const std::string cell = cell_of(dtype, op, batch);
                measured = measured || !cell.empty();
                cells += (cell.empty() ? blank : " " + cell) + " |";
            }
            text += measured ? fmt::format("| {} | {} |{}\n", dtype, op, cells) : "";
        }
    }
    return text.empty() ? "" : head + "\n" + rule + "\n" + text;
}

}  // namespace distile::bench
